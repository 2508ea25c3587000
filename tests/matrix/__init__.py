"""Trims of every container and codec, against the same places of a full decode (`make matrix`)."""
