"""Child processes, with their pipes, deadlines and slots."""
