"""Tests of the files in deploy/, as they are deployed."""
