"""Renders: the job, the loop and its states, the output, the write-back, and the registry."""
