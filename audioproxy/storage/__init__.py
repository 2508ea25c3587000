"""Bytes at rest: where sources are read and where variants are kept."""
