"""Tests with the real ffmpeg, real files and real sockets."""
