"""Figures, tables and pages made from rows. Imports no torch."""
