"""Outbound HTTP: one connection pool for each trust store, and a timeout for every wait."""
