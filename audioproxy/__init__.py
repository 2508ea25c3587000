"""audioproxy: signed URLs in, audio rendered by ffmpeg out, every result stored once."""

__version__ = "0.1.0"
