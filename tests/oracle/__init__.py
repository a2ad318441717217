"""The oracle: a store in plain Python that reads like the specification. Tests compare stores with it.

`store.py` has the store, `state.py` its data, `indexes.py` and `transitions.py` move a job between states,
and `verbs/` has one function per verb.
"""

from tests.oracle.store import OracleStore

__all__ = ["OracleStore"]
