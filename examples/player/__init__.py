"""A page to hear, see and try what the service does, in an application that embeds it."""
