"""The memory store: jobs in the memory of one process. It is the reference implementation of the contract.

`store.py` has the store, `state.py` its data, `indexes.py` and `transitions.py` move a job between states,
and `verbs/` has one function per verb.
"""

from penstock.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
