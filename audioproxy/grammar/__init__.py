"""The grammar of URLs: from a path to a request. Pure: no Twisted, no I/O, no clock."""
