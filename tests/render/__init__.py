"""One render and all who wait for it."""
