"""Tests with a browser, and with libraries that show waveforms."""
