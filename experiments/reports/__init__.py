"""Runs side by side with the paper's numbers: tables, figures, pages."""
