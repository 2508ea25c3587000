"""Two real nodes on one store, under mixed load and faults, with every byte compared."""
