"""Records concurrent calls, and searches for an order of them that explains their answers.

A store is linearizable if all calls can be put into an order with two properties: no call stands before one
that had returned when it began; and executed in that order, all calls give the same answers. The memory store
is the specification: each order is executed on it until an answer differs.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from penstock.core.clock import Clock
from penstock.core.job import Job, Lease, NewJob, Ref
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Fetched, HeartbeatRequest, Settlement, Share, Store
from tests.oracle import OracleStore

__all__ = ["Asked", "Call", "Loan", "ask", "order_of", "shown"]

_LEASE = 15_000

#: A lease, as everybody names it: the generation is each store's own.
Loan = tuple[str, str]  # token, id


@dataclass(frozen=True)
class Asked:
    """A call before it is made: what it asks, in words that mean the same on every store."""

    verb: str
    queue: str
    who: str = ""
    token: str = ""
    jobs: tuple[NewJob, ...] = ()
    ids: tuple[str, ...] = ()
    loans: tuple[tuple[Loan, Transition | None], ...] = ()
    number: int = 0  # a limit, or a delay


@dataclass(frozen=True)
class Call:
    """A call that was made, and its answer. It took place at some instant between these two (ns)."""

    asked: Asked
    answer: Any
    began: int
    ended: int

    def __str__(self) -> str:
        asked = self.asked
        what = [asked.token, *(job.id for job in asked.jobs), *asked.ids]
        what += [f"{id} of {token}" for (token, id), _ in asked.loans]
        return f"{asked.who}: {asked.verb}({', '.join(w for w in what if w)}) → {_short(self.answer)}"


async def ask(store: Store, asked: Asked, leases: dict[Loan, Lease]) -> Any:
    """Make the call; its answer without what is each store's own. New leases are noted."""
    refs = [Ref(asked.queue, id) for id in asked.ids]
    held = [leases[loan] for loan, _ in asked.loans]
    match asked.verb:
        case "enqueue":
            return await store.enqueue(asked.jobs)
        case "fetch":
            found = await store.fetch(
                [Share(asked.queue, asked.number, asked.number)],
                limit=asked.number,
                lease=_LEASE,
                worker=asked.who,
                token=asked.token,
            )
            return _noted(found, leases)
        case "reclaim":
            found = await store.reclaim(
                (), limit=9, lease=_LEASE, worker=asked.who, token=asked.token, of=asked.ids
            )
            return _noted(found, leases)
        case "settle":
            moves = [move for _, move in asked.loans if move is not None]
            return await store.settle([Settlement(*pair) for pair in zip(held, moves, strict=True)])
        case "extend":
            return await store.extend([HeartbeatRequest(lease, _LEASE, started=True) for lease in held])
        case "promote":
            return await store.promote([asked.queue], limit=asked.number)
        case "get":
            return [_bare(job) for job in await store.get(refs)]
        case "reschedule":
            return await store.reschedule(refs, delay=asked.number)
        case "queues":
            return [info.counts for info in await store.queues() if info.name == asked.queue]
        case _:
            return await getattr(store, asked.verb)(refs)


def _noted(found: Fetched, leases: dict[Loan, Lease]) -> Fetched:
    leases.update({(job.lease.token, job.id): job.lease for job in found.jobs})
    return replace(found, jobs=[_bare(job) for job in found.jobs])


def _bare(job: Job | None) -> Any:
    return job and replace(job, generation=0)


# ── is there an order? ───────────────────────────────────────────────────────────────────────────


def order_of(calls: Sequence[Call], clock: Clock) -> list[Call] | None:
    """An order of the calls that explains all answers; None: there is none."""
    return _Search(sorted(calls, key=lambda call: call.began), clock).order()


class _Search:
    """Depth first; what was tried in vain from the same state of affairs is not tried again."""

    def __init__(self, calls: list[Call], clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._in_vain: set[tuple[frozenset[int], Any]] = set()

    def order(self) -> list[Call] | None:
        found = self._go_on([], _Played(self._clock))
        return None if found is None else [self._calls[n] for n in found]

    def _go_on(self, order: list[int], played: _Played) -> list[int] | None:
        left = [n for n in range(len(self._calls)) if n not in order]
        if not left:
            return order
        here = (frozenset(left), played.facts())
        if here in self._in_vain:
            return None
        first_end = min(self._calls[n].ended for n in left)
        for n in left:
            if self._calls[n].began > first_end:
                break  # another had returned before this one began, and so before all that follow
            if played.spoiled:
                played = self._again(order)
            if played.answers(self._calls[n]):
                found = self._go_on([*order, n], played)
                if found is not None:
                    return found
            played.spoiled = True
        self._in_vain.add(here)
        return None

    def _again(self, order: list[int]) -> _Played:
        played = _Played(self._clock)
        for n in order:
            assert played.answers(self._calls[n])
        return played


@dataclass
class _Played:
    """The specification, after some calls."""

    clock: Clock
    spoiled: bool = False
    leases: dict[Loan, Lease] = field(default_factory=dict)
    leased_by: dict[Loan, Call] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._store = OracleStore(clock=self.clock)

    def answers(self, call: Call) -> bool:
        """Whether this call, made now, is answered as it was."""
        if any(loan not in self.leases for loan, _ in call.asked.loans):
            return False
        with self._left_out(call):
            same = bool(_at_once(ask(self._store, call.asked, self.leases)) == call.answer)
        if same and isinstance(call.answer, Fetched):
            self.leased_by.update({(job.lease.token, job.id): call for job in call.answer.jobs})
        return same

    @contextmanager
    def _left_out(self, call: Call) -> Iterator[None]:
        """Hide leases that a reclaim of named workers may leave out: taken while it was under way."""
        memory = self._store.memory
        hidden: list[tuple[str, int, Any]] = []
        if call.asked.verb == "reclaim":
            found = {job.id for job in call.answer.jobs}
            for worker in call.asked.ids:
                for generation, row in list(memory.held.get(worker, {}).items()):
                    by = self.leased_by.get((row.job.token or "", row.job.id))
                    if row.job.id not in found and by is not None and by.ended > call.began:
                        hidden.append((worker, generation, memory.held[worker].pop(generation)))
        yield
        for worker, generation, row in hidden:
            memory.held.setdefault(worker, {})[generation] = row

    def facts(self) -> Any:
        """All that later answers may depend on: the jobs in order of enqueue, and how they stand in line."""
        rows = list(self._store.memory.rows.values())
        line = {place: n for n, place in enumerate(sorted({row.place for row in rows}))}
        return tuple((_bare(row.job), line[row.place], row.charged) for row in rows)


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What `memory` answers without waiting for anything."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("memory had to wait")


# ── in words ─────────────────────────────────────────────────────────────────────────────────────


def shown(calls: Sequence[Call]) -> str:
    """The history, by when each began; what overlaps says so."""
    start = min(call.began for call in calls)
    return "\n".join(
        f"  {(call.began - start) / 1e6:7.3f} to {(call.ended - start) / 1e6:7.3f} ms  {call}"
        for call in sorted(calls, key=lambda call: call.began)
    )


def _short(answer: Any) -> str:
    if isinstance(answer, Fetched):
        return _short(answer.jobs)
    if isinstance(answer, list):
        return "[" + ", ".join(map(_short, answer)) + "]"
    if isinstance(answer, Job):
        return f"{answer.id} {answer.state.value} {answer.attempt} {answer.token or ''}".strip()
    return str(getattr(answer, "status", answer))
