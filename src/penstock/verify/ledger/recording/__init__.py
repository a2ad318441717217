"""Records facts: the store calls of producers and workers, and the answers."""
