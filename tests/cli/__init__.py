"""Tests of the ``audioproxy`` command, as people and scripts run it."""
