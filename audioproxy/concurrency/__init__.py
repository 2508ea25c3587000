"""Waiting together, in threads, and for a limited time."""
