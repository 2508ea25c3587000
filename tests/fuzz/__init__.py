"""Fuzz tests: arbitrary bytes for every parser of the service."""
