"""The service's own HTTP server: connections and their limits, the fast path, and sendfile."""
