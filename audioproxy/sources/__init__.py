"""Audio sources: local files, https addresses, objects in a bucket."""
