"""audioproxy: an HTTP server that renders audio on request, from signed URLs, with ffmpeg."""

__version__ = "0.1.0"
