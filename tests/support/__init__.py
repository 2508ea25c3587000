"""Shared code of the tests: doubles, servers, Hypothesis strategies, and tests of these."""
