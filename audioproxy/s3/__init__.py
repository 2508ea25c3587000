"""Signed requests to an S3-compatible object store, uploads in parts, and hints at its errors."""
