"""Checks that ``audioproxy doctor`` runs."""
