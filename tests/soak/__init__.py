"""Fault runs: two real nodes on one store under load and faults, with every byte compared."""
