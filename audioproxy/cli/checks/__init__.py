"""What `audioproxy doctor` checks."""
