"""A store wrapper that fails on demand, for tests of store failures."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Generator
from typing import NamedTuple, TypeVar

from penstock.core.errors import ConfigError, StoreUnavailable, did_you_mean
from penstock.stores.around import EndedJobs, StoreAround, StorePlan, SyncStoreAround, asked
from penstock.stores.contract import Request, Store, StreamEnds, SyncStore, verbs

A = TypeVar("A")


class _PlannedFault(NamedTuple):
    after: bool  # the call has its effect, and its reply is lost
    error: Exception


class FaultyStore(StoreAround):
    """A wrapper around a store whose calls fail on demand: `app.use_store(FaultyStore(app.store).store)`.

    - `fail("settle", times=2)`: the next two calls fail before they reach the store.
    - `lose_reply("settle")`: the next call reaches the store, and its reply is lost.
    - `down()`: all calls fail until `up()`.
    """

    def __init__(self, store: Store, *, origin: FaultyStore | None = None) -> None:
        super().__init__(store)
        self._origin = origin  # the wrapper whose faults apply; None: its own
        self._next: dict[str, deque[_PlannedFault]] = defaultdict(deque)
        self._is_down = False
        #: Number of calls of each verb.
        self.calls: dict[str, int] = defaultdict(int)

    @property
    def store(self) -> Store:
        """This wrapper."""
        return self

    def fail(self, verb: str, *, times: int = 1, error: Exception | None = None) -> None:
        """Make the next calls of a verb raise `error` (default StoreUnavailable) without any effect."""
        self._plan_faults(verb, False, times, error)

    def lose_reply(self, verb: str, *, times: int = 1, error: Exception | None = None) -> None:
        """Make the next calls of a verb take effect and then raise `error` (default StoreUnavailable)."""
        self._plan_faults(verb, True, times, error)

    def down(self) -> None:
        """Make every call fail, as if the store were unreachable."""
        self._is_down = True

    def up(self) -> None:
        """End `down()`."""
        self._is_down = False

    def around(self, store: Store) -> Store:
        return FaultyStore(store, origin=self._origin or self)

    def plan(self, request: Request[A]) -> StorePlan[A]:
        fault = self._take(request.called)
        if fault is not None and not fault.after:
            raise fault.error
        answer = yield from asked(request)
        if fault is not None:
            raise fault.error
        return answer

    async def stream(self, request: StreamEnds) -> AsyncGenerator[EndedJobs, None]:
        self._refuse_stream()
        async for some in super().stream(request):
            yield some

    @property
    def sync(self) -> SyncStore:
        return _SyncFaultyStore(self._store.sync, self)

    def _refuse_stream(self) -> None:
        fault = self._take(StreamEnds.verb)
        if fault is not None:
            raise fault.error

    def _plan_faults(self, verb: str, after: bool, times: int, error: Exception | None) -> None:
        if verb not in verbs():
            raise ConfigError(f"a store has no verb {verb!r}{did_you_mean(verb, verbs())}")
        fault = _PlannedFault(after, error or StoreUnavailable(f"a test makes {verb} fail"))
        self._next[verb].extend([fault] * times)

    def _take(self, verb: str) -> _PlannedFault | None:
        if self._origin is not None:
            return self._origin._take(verb)
        self.calls[verb] += 1
        if self._is_down:
            return _PlannedFault(False, StoreUnavailable("a test has taken the store away"))
        return self._next[verb].popleft() if self._next[verb] else None


class _SyncFaultyStore(SyncStoreAround):
    def __init__(self, sync: SyncStore, faults: FaultyStore) -> None:
        super().__init__(sync, faults)
        self._faults = faults

    def stream(self, request: StreamEnds) -> Generator[EndedJobs, None, None]:
        self._faults._refuse_stream()
        yield from super().stream(request)
