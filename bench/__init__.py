"""Benchmarks of the service and its peers; ``make bench`` runs them."""
