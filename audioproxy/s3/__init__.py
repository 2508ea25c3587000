"""S3-compatible object stores: signed requests, multipart uploads, and hints for errors."""
