"""Places inside a source at which decoding may start, and the sample that each of them has."""
