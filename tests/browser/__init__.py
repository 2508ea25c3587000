"""Tests with the programs that the output is for: a browser, and what draws waveforms in it."""
