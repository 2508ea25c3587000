"""A fault at every step: each system call of the service that can fail fails once."""
