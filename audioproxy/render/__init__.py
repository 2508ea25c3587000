"""Renders: preparation, states, output, write-back, and the registry that shares them."""
