"""Tests of the grammar of URLs."""
