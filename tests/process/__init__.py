"""Children, with their pipes, deadlines and slots."""
