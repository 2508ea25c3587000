"""The examples, as far as they do something of their own."""
