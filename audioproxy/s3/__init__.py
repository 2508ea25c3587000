"""Requests to an S3-compatible object store: signed, uploaded in parts, with its errors explained."""
