"""Command lines of ffmpeg: how it opens, converts and encodes."""
