"""Command lines of ffmpeg and ffprobe, and parsers of their output. Pure: no Twisted, no I/O."""
