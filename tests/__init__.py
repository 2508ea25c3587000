"""Tests, laid out as the package is; `support` holds the shared code."""
