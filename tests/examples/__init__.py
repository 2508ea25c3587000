"""Tests of the parts of the examples that have logic of their own."""
