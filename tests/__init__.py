"""The tests, laid out as the package is; `support` holds what they share."""
