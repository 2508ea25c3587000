"""Tests with a real ffmpeg, real files and real sockets."""
