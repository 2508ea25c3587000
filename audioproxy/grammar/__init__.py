"""What a URL means. Pure: no Twisted, no I/O, no clock."""
