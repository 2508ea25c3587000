"""Tests of `audioproxy.web`."""
