"""Byte streams, and files without a name."""
