"""What a URL means, sentence by sentence."""
