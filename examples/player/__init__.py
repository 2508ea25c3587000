"""Web page that demonstrates the service, in an application that embeds it."""
