"""The ``audioproxy`` command: signs, verifies, explains and fetches URLs, and checks the set-up."""
