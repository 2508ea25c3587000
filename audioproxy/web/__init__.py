"""HTTP resources: routing, response headers, bodies and the access log."""
