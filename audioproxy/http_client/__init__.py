"""Requests to other machines, on connections of one pool, with a deadline for every wait."""
