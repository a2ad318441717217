"""Jobs in the memory of one process: the reference store, which reads like the specification.

`store.py` is the door, `shelf.py` the data, `verbs/` what is done with it, one function per verb.
"""

from penstock.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
