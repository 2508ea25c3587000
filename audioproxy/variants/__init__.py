"""Variant stores: files in a folder, or objects in a bucket."""
