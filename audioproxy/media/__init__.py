"""What ffmpeg and ffprobe are told, and what they tell us. Pure: no Twisted, no I/O."""
