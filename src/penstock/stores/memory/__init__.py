"""Jobs in the memory of one process: the reference store, which reads like the specification.

`store.py` has the two facades, `state.py` the data, `indexes.py` and `transitions.py` how a job moves in it,
`verbs/` one function per verb.
"""

from penstock.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
