"""The verbs of the contract as plain functions of a `MemoryState`, run under its lock (`MemoryState.run`)."""
