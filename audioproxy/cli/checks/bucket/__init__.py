"""Checks of an operator's own bucket: one row of a table for each thing that the service needs."""
