"""The number of samples of a source, as its headers state it and its end confirms it."""
