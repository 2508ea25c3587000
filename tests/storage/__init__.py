"""Bytes at rest: confinement, crashes and what they leave."""
