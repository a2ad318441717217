"""Migration: a pool whose requests go to another store, which gets the jobs of the old one first.

A job is moved under its own id: leased in the old pool, stored in the new one, removed from the old one. If
the server dies in between, the next one repeats this, and the new store knows the id. An acknowledgement
removes the job from both, so that a job that was consumed meanwhile does not come again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import Job, Ref, State
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.old_pools import OldPool, TakenJob
from penstock.dialects.lmstfy.polls import Poll
from penstock.inspector.audit import AuditLog
from penstock.maintenance.service import Service
from penstock.stores.contract import Enqueued, EnqueueStatus, Replacement, Settled, Settlement, Store
from penstock.web.access import AccessTokens
from penstock.web.group_commit import GroupCommit

_log = logging.getLogger("penstock.lmstfy")

#: For this long (s) an old queue that was found empty is not asked again by a request.
_EMPTY = 0.05
#: Jobs that one step moves, and the pauses (s) between looks for more: if requests wait for them, and if not.
_STEP = 500
_WHILE_WAITING, _ELSE = 0.1, 0.5
#: After an error of the old pool requests do not ask it for this long (s); doubled by each further one.
_AFTER_ERROR, _MOST_AFTER = 1.0, 30.0
#: The answers that show that the new store has the job, from this call or an earlier one, or another one for
#: the same idempotency key.
_THERE = (
    EnqueueStatus.NEW,
    EnqueueStatus.EXISTS,
    EnqueueStatus.DUPLICATE,
    EnqueueStatus.UNREPLICATED,
)
#: Jobs that the first step takes of a pool that takes none back; doubled by each step that stores them all.
_FIRST_STEP = 16
#: A queue that the new store refuses is not tried again for this long (s).
_AFTER_REFUSAL = 1.0
#: The most queues that one look of the drain service names; the next look continues after them.
_MOST_ASKED = 500
#: The most queues whose emptiness is remembered.
_MANY = 10_000


class MigratingBackend(Backend):
    """The new store of a pool, with what the `old` one still has. `moved` counts the moved jobs.

    - `tokens`: the store that has the access tokens and the audit log, if it is not the new one.
    - `services`: run as long as this one.
    """

    def __init__(
        self,
        store: Store,
        pool: str,
        old: OldPool,
        *,
        target: str,
        tokens: Store | None = None,
        services: Sequence[Service] = (),
    ) -> None:
        super().__init__(store, pool)
        if tokens is not None:
            self.access_tokens, self.audit_log = AccessTokens(tokens), AuditLog(tokens)
        self._services += services
        self._old = old
        self.target = target
        self.moved = 0
        self.problem = ""
        self._empty: dict[str, float] = {}  # by queue: until when
        self._away_until, self._failures = 0.0, 0
        self._draws: GroupCommit[tuple[Sequence[str], int], None] = GroupCommit(self._draw_all)
        self._moving = asyncio.Lock()
        # taken jobs that are not stored yet and cannot be given back, each with the instant when that ends
        self._held: dict[Ref, tuple[TakenJob, float]] = {}
        self._step = _FIRST_STEP if old.kept_for else _STEP
        # by refused queue: when it is tried again, and with how many jobs
        self._refused: dict[str, tuple[float, int]] = {}
        self.more = False  # whether the last step took all that it might
        self._drain = DrainService(self)

    def start(self) -> None:
        self._old.start()
        self._services.append(self._drain)
        super().start()

    async def stop(self) -> None:
        await self._draws.drained()
        await super().stop()
        await self.retry_held()
        await self._old.stop()

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    def consume(self, poll: Poll) -> None:
        """Serve a consume request: what the old pool has of its queues is moved first."""
        queues = self._maybe_full(poll.queues)
        if not queues:
            super().consume(poll)
            return

        def then(_: object) -> None:
            if not poll.exchange.gone:
                super(MigratingBackend, self).consume(poll)

        self._draws.put((queues, poll.wanted), then)

    async def _replace_all(self, replacements: list[Replacement]) -> Sequence[Enqueued | BaseException]:
        async with self._moving:  # a job that is being moved would be stored after its removal
            answers = list(await super()._replace_all(replacements))
            gone = [
                one.old
                for one, answer in zip(replacements, answers, strict=True)
                if isinstance(answer, Enqueued) and answer.status is EnqueueStatus.NEW
            ]
            self._forget(gone)
            failed = await self._remove_old(gone)
            return [
                failed.get(one.old.queue, answer) for one, answer in zip(replacements, answers, strict=True)
            ]

    async def _settle_all(self, settlements: list[Settlement]) -> Sequence[Settled]:
        """Settle jobs. The old pool has one that ends here, too, if its move broke off."""
        async with self._moving:
            answers = await super()._settle_all(settlements)
            gone = [
                Ref(one.lease.queue, one.lease.id)
                for one, answer in zip(settlements, answers, strict=True)
                if answer is Settled.APPLIED and one.transition.state is State.COMPLETED
            ]
            self._forget(gone)
            for error in (await self._remove_old(gone)).values():
                # the job may come again: the acknowledgement itself was applied
                self.problem_log.report(f"pool {self.metrics.pool}: removing acknowledged jobs", error)
            return answers

    async def _remove_all(self, refs: list[Ref]) -> Sequence[BaseException | None]:
        """Remove jobs from both. If the old pool is away, those that the new store had are removed."""
        async with self._moving:  # a job that is being moved would be stored after its removal
            here = set(await self._known(refs))
            answers = list(await super()._remove_all(refs))
            failed = await self._remove_old(refs)
            self._forget([ref for ref in refs if ref.queue not in failed])
            for n, ref in enumerate(refs):
                if ref not in here:
                    answers[n] = answers[n] or failed.get(ref.queue)
            return answers

    async def _remove_old(self, refs: Sequence[Ref]) -> dict[str, StoreError]:
        """Remove jobs from the old pool; returns the errors by queue. One that is refused harms no other."""
        queues = {ref.queue for ref in refs}
        try:
            if refs:
                await self._old.remove(refs)
            return {}
        except StoreUnavailable as error:
            return dict.fromkeys(queues, error)
        except StoreError as error:
            if len(queues) == 1:
                return dict.fromkeys(queues, error)
        failed: dict[str, StoreError] = {}
        for queue in queues:
            failed |= await self._remove_old([ref for ref in refs if ref.queue == queue])
        return failed

    async def _known(self, refs: Sequence[Ref]) -> list[Ref]:
        try:
            found = await self.store.get(refs)
        except StoreError:  # the removal gets the same error
            return []
        return [ref for ref, job in zip(refs, found, strict=True) if job is not None]

    async def _get_all(self, refs: list[Ref]) -> Sequence[Job | BaseException | None]:
        found = list(await super()._get_all(refs))
        for n, ref in enumerate(refs):
            if found[n] is None:
                try:
                    found[n] = await self._old.get(ref)
                except StoreError as error:
                    found[n] = error
        return found

    async def counted(self, queue: str, only: State | None = None) -> dict[State, int]:
        async with self._moving:  # no job is between the two, unless another process moves it
            counts = await super().counted(queue)
            for state, number in (await self._old.counted(queue, only)).items():
                counts[state] = counts.get(state, 0) + number
            if held := sum(ref.queue == queue for ref in self._held):
                counts[State.AVAILABLE] = counts.get(State.AVAILABLE, 0) + held
            return counts

    async def purge(self, queue: str, state: State, limit: int | None = None) -> None:
        async with self._moving:  # no job is between the two
            if state is State.AVAILABLE and (held := [ref for ref in self._held if ref.queue == queue]):
                await self._old.remove(held)
                self._forget(held)
            self._refused.pop(queue, None)
            removed = await self._old.purge(queue, state, limit)
            if limit is None or removed < limit:
                await super().purge(queue, state, None if limit is None else limit - removed)

    async def each_page(self, queue: str, state: State, size: int) -> AsyncGenerator[list[Job], None]:
        if state is State.AVAILABLE and (queues := self._maybe_full([queue])):
            await self.draw(queues, 1)
        async for page in super().each_page(queue, state, size):
            yield page

    async def old_dead_head(self, queue: str) -> str:
        return await self._old.dead_head(queue)

    async def old_respawned(self, queue: str, limit: int, ttl: int) -> int:
        count = await self._old.respawn(queue, limit, ttl)
        self._empty.pop(queue, None)
        return count

    async def answers(self, within: float = 2.0) -> str:
        return await super().answers(within) or await self._old.answers()

    # ── moving ───────────────────────────────────────────────────────────────────────────────────

    async def old_queues(self) -> list[str]:
        """The queues that may have jobs to move."""
        return list(dict.fromkeys([*await self._old.queues(), *self.dispatcher.waited_for]))

    async def draw(self, queues: Sequence[str], limit: int) -> int:
        """Move available jobs of these queues, at most `limit`; returns their number, 0 after an error."""
        try:
            async with self._moving:
                return await self._move(queues, limit)
        except StoreError as error:
            self.note_problem(error)
            self.problem_log.report(f"pool {self.metrics.pool}: moving jobs", error)
            return 0

    async def progress(self) -> dict[str, Any]:
        """Where jobs go, how many this process has moved, what is left by state, and what is wrong."""
        left: dict[str, int] = {}
        problem = self.problem
        try:
            for state, number in (await self._old.left()).items():
                left[state.value] = number
        except StoreError as error:
            problem = str(error)
        problem = "; ".join(one for one in (problem, self._old.problem) if one)
        return {"to": self.target, "moved": self.moved, "left": left, "problem": problem}

    def note_problem(self, error: StoreError) -> None:
        """Note that the old pool does not answer, or that jobs cannot be moved."""
        self.problem = str(error)
        self._away_until = time.monotonic() + min(_MOST_AFTER, _AFTER_ERROR * 2**self._failures)
        self._failures = min(self._failures + 1, 10)

    async def retry_held(self) -> None:
        """Store the held jobs, before their time is over."""
        if self._held:
            await self.draw([], 0)

    async def _move(self, queues: Sequence[str], limit: int) -> int:
        """Store the held jobs, then take others: none while the store is away, few after it was."""
        self.more = False
        moved = await self._store_held()
        now, held = time.monotonic(), {ref.queue for ref in self._held}
        queues = [one for one in queues if one not in held and self._refused.get(one, (0.0, 0))[0] <= now]
        tried = [one for one in queues if one in self._refused]
        taken: list[TakenJob] = []
        if normal := [one for one in queues if one not in self._refused]:
            limit = min(limit, self._step)
            taken = await self._take(normal, limit)
            self.more = len(taken) >= limit
            moved += await self._store_taken(taken)
        for queue in tried:
            taken = await self._take([queue], self._refused[queue][1])
            moved += await self._store_taken(taken)
            if not taken:
                self._refused.pop(queue, None)
        if not self._held and all(step > 1 for _, step in self._refused.values()):
            self.problem = ""
        return moved

    async def _take(self, queues: Sequence[str], limit: int) -> list[TakenJob]:
        taken = await self._old.take(queues, limit)
        self._failures, self._away_until = 0, 0.0
        if len(taken) < limit:
            self._note_empty(queues)
        return taken

    async def _store_held(self) -> int:
        now = time.monotonic()
        for ref in [ref for ref, (_, until) in self._held.items() if until <= now]:
            del self._held[ref]  # the old pool has it again
        return await self._store_taken([one for one, _ in self._held.values()])

    async def _store_taken(self, taken: Sequence[TakenJob]) -> int:
        if not taken:
            return 0
        try:
            answers = await self.store.enqueue([one.job for one in taken])
        except StoreError:
            self._step = 1
            await self._give_back(taken)
            raise
        stored: list[TakenJob] = []
        refused: list[TakenJob] = []
        for one, answer in zip(taken, answers, strict=True):
            (stored if answer.status in _THERE else refused).append(one)
        for one in stored:
            self._held.pop(one.job.ref, None)
        self._note_refused({one.job.queue for one in stored}, {one.job.queue for one in refused})
        if refused:
            self.problem = f"{len(refused)} jobs could not be stored in pool {self.target}"
            await self._give_back(refused)
        if stored:
            await self._old.confirm(stored)
            self.moved += len(stored)
            self.dispatcher.work({one.job.queue for one in stored})
        return len(stored)

    async def _give_back(self, taken: Sequence[TakenJob]) -> None:
        if self._old.kept_for:
            until = time.monotonic() + self._old.kept_for
            for one in taken:
                self._held.setdefault(one.job.ref, (one, until))
        else:
            await self._old.give_back(taken)

    def _note_refused(self, stored: set[str], refused: set[str]) -> None:
        """Try refused queues again after a moment with one job, then with twice as many."""
        for queue in stored - refused:
            if queue in self._refused:
                step = self._refused[queue][1] * 2
                self._refused[queue] = (0.0, step)
                if step >= _STEP:
                    del self._refused[queue]
        for queue in refused:
            self._refused[queue] = (time.monotonic() + _AFTER_REFUSAL, 1)
        self._step = max(1, self._step // 2) if refused else min(_STEP, self._step * 2)

    def _forget(self, refs: Sequence[Ref]) -> None:
        """Do not store these held jobs: they were removed."""
        for ref in refs:
            self._held.pop(ref, None)

    async def _draw_all(self, requests: list[tuple[Sequence[str], int]]) -> list[None]:
        """Move what these requests ask for. An old pool that is away keeps no request waiting."""
        queues = list(dict.fromkeys(queue for some, _ in requests for queue in some))
        await self.draw(queues, min(_STEP, sum(wanted for _, wanted in requests)))
        return [None] * len(requests)

    def _maybe_full(self, queues: Sequence[str]) -> list[str]:
        now = time.monotonic()
        if now < self._away_until:
            return []
        return [queue for queue in queues if self._empty.get(queue, 0.0) <= now]

    def _note_empty(self, queues: Sequence[str]) -> None:
        if len(self._empty) > _MANY:
            self._empty.clear()
        self._empty.update(dict.fromkeys(queues, time.monotonic() + _EMPTY))


class DrainService(Service):
    """Moves what the old pool has, also if nobody asks for it."""

    name = "drain"

    def __init__(self, backend: MigratingBackend) -> None:
        super().__init__()
        self._backend = backend
        self._start = 0  # of the next look, among the queues

    async def tick(self) -> float:
        backend = self._backend
        try:
            queues = await backend.old_queues()
        except StoreError as error:
            backend.note_problem(error)
            await backend.retry_held()
            raise
        if await backend.draw(self._next_part(queues), _STEP) and backend.more:
            return 0.0
        return _WHILE_WAITING if backend.dispatcher.waited_for else _ELSE

    def _next_part(self, queues: list[str]) -> list[str]:
        """All queues in turn: an old server is asked about 50 in a request, most of them empty."""
        if len(queues) <= _MOST_ASKED:
            return queues
        start = self._start if self._start < len(queues) else 0
        self._start = start + _MOST_ASKED
        return queues[start : start + _MOST_ASKED]
