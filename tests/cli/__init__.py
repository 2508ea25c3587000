"""The ``audioproxy`` command, as people and scripts call it."""
