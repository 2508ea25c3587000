"""HTTP resources: routing, plans of responses, headers and bodies."""
