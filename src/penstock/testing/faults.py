"""A store wrapper that fails on demand, for tests of store failures."""

from __future__ import annotations

import inspect
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, cast

from penstock.core.errors import ConfigError, StoreUnavailable, did_you_mean
from penstock.stores.contract import Store
from penstock.stores.facade import VERBS

__all__ = ["FaultyStore"]


class FaultyStore:
    """A wrapper around a store whose calls fail on demand: `app.use_store(FaultyStore(app.store).store)`.

    - `fail("settle", times=2)`: the next two calls fail before they reach the store.
    - `lose_reply("settle")`: the next call reaches the store, and its reply is lost.
    - `down()`: all calls fail until `up()`.
    """

    def __init__(self, store: Store, *, origin: FaultyStore | None = None) -> None:
        self._store = store
        self._origin = origin  # the wrapper whose faults apply; None: its own
        self._next: dict[str, deque[tuple[bool, Exception]]] = defaultdict(deque)
        self._is_down = False
        #: Number of calls of each verb.
        self.calls: dict[str, int] = defaultdict(int)

    @property
    def store(self) -> Store:
        """This wrapper, typed as a store."""
        return cast(Store, self)

    def fail(self, verb: str, *, times: int = 1, error: Exception | None = None) -> None:
        """Make the next calls of a verb raise `error` (default StoreUnavailable) without any effect."""
        self._plan(verb, False, times, error)

    def lose_reply(self, verb: str, *, times: int = 1, error: Exception | None = None) -> None:
        """Make the next calls of a verb take effect and then raise `error` (default StoreUnavailable)."""
        self._plan(verb, True, times, error)

    def down(self) -> None:
        """Make every call fail, as if the store were unreachable."""
        self._is_down = True

    def up(self) -> None:
        """End `down()`."""
        self._is_down = False

    @property
    def sync(self) -> Any:
        """The synchronous store, with the same faults."""
        return _SyncFaultyStore(self._store.sync, self)

    def in_namespace(self, namespace: str) -> Store:
        """The store of another namespace, with the same faults."""
        return FaultyStore(self._store.in_namespace(namespace), origin=self._origin or self).store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._guarded(name, found) if name in VERBS else found

    def _plan(self, verb: str, after: bool, times: int, error: Exception | None) -> None:
        if verb not in VERBS:
            raise ConfigError(f"a store has no verb {verb!r}{did_you_mean(verb, VERBS)}")
        fault = error or StoreUnavailable(f"a test makes {verb} fail")
        self._next[verb].extend([(after, fault)] * times)

    def _take(self, verb: str) -> tuple[bool, Exception] | None:
        if self._origin is not None:
            return self._origin._take(verb)
        self.calls[verb] += 1
        if self._is_down:
            return False, StoreUnavailable("a test has taken the store away")
        return self._next[verb].popleft() if self._next[verb] else None

    def _guarded(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(call):

            async def guarded_async(*args: Any, **kwargs: Any) -> Any:
                fault = self._take(verb)
                if fault is not None and not fault[0]:
                    raise fault[1]
                answer = await call(*args, **kwargs)
                if fault is not None:
                    raise fault[1]
                return answer

            return guarded_async

        def guarded(*args: Any, **kwargs: Any) -> Any:
            fault = self._take(verb)
            if fault is not None and not fault[0]:
                raise fault[1]
            answer = call(*args, **kwargs)
            if fault is not None:
                raise fault[1]
            return answer

        return guarded


class _SyncFaultyStore:
    def __init__(self, door: Any, faults: FaultyStore) -> None:
        self._store = door
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._faults._guarded(name, found) if name in VERBS else found
