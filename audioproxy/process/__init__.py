"""Child processes: the encoder and the probe, with their pipes, deadlines and slots."""
