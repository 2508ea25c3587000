"""Tests of renders and of the clients that wait for them."""
