"""What arbitrary bytes do to every reader of the service: nothing that a promise rules out."""
