"""Where audio is read: local files, https addresses, objects in a bucket."""
