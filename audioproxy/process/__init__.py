"""Child processes: ffmpeg and ffprobe, with their limits, pipes, deadlines and slots."""
