"""Rows → figures and tables. Imports no torch."""
