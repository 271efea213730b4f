"""Rows → numbers that respect seeds. Imports no torch."""
