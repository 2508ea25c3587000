"""Measures the service beside its peers; ``make bench`` runs it."""
