"""Records the verbs that change queued jobs: discard, edit and move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from msgspec.structs import replace

from penstock.core.job import NewJob, Ref, State
from penstock.stores.contract import Enqueued, EnqueueStatus, JobEdit, JobMove, Store
from penstock.verify.ledger import facts
from penstock.verify.ledger.recording import store_calls
from penstock.verify.ledger.recording.fact_writer import FactWriter
from penstock.verify.ledger.recording.store_calls import timestamp

__all__ = ["ChangeVerbs", "value_of"]

#: Arguments are recorded up to this length.
_MOST = 200


class _Recorder(Protocol):
    """Records operations, each before its call and after its answer."""

    def operate(
        self, verb: str, refs: Sequence[Ref], due: int = 0, values: Sequence[str] = ()
    ) -> AbstractContextManager[Any]: ...


class ChangeVerbs:
    """The verbs of a recorded store that change queued jobs."""

    _store: Store
    _writer: FactWriter
    _operations: _Recorder

    async def discard(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        with self._operations.operate("discard", refs) as answer:
            told: list[State | None] = answer(await self._store.discard(refs, **options))
            return told

    async def edit_jobs(self, edits: Sequence[JobEdit]) -> list[bool]:
        values = [value_of(one.new.payload) for one in edits]
        with self._operations.operate("edit", [one.seen.ref for one in edits], values=values) as answer:
            done = await self._store.edit_jobs(edits)
            answer([one.seen.state if edited else None for one, edited in zip(edits, done, strict=True)])
            return done

    async def move_jobs(self, moves: Sequence[JobMove]) -> list[Enqueued | None]:
        with _moving(self._operations, self._writer, moves) as answers:
            answers += await self._store.move_jobs(moves)
            return answers


@contextmanager
def _moving(
    recorder: _Recorder, writer: FactWriter, moves: Sequence[JobMove]
) -> Iterator[list[Enqueued | None]]:
    """Record a move as an operation on the old job, and the enqueue of a new one."""
    new = [_as_enqueued(one.new) for one in moves]
    answers: list[Enqueued | None] = []
    with recorder.operate("move", [one.seen.ref for one in moves]) as left:
        writer.write_all([store_calls.offered(job, writer.self_recorded) for job in new])
        try:
            yield answers
        finally:
            now = timestamp()
            if answers:
                pairs = list(zip(moves, new, answers, strict=True))
                told = [_answered(now, job, one) for _, job, one in pairs]
                left([_left(one, answer) for one, _, answer in pairs])
            else:
                told = [facts.Answered(*now, job.queue, job.id, "unknown") for job in new]
            writer.write_all(told)


def _left(move: JobMove, answer: Enqueued | None) -> str | None:
    """The state of the job that has left its queue; None: it stays. Without replicas that is not certain."""
    if answer is not None and answer.status is EnqueueStatus.UNREPLICATED:
        return "unknown"
    moved = answer is not None and answer.status is EnqueueStatus.NEW
    return move.seen.state.value if moved else None


def _answered(now: store_calls.Now, job: NewJob, answer: Enqueued | None) -> facts.Answered:
    if answer is None:  # the old job has changed and stays
        return facts.Answered(*now, job.queue, job.id, "skipped")
    return store_calls.answered(now, job, answer)


def _as_enqueued(job: NewJob) -> NewJob:
    """The job without what is uncertain of it: whether it gets its unique key, and its place in an order."""
    partition = job.partition
    return replace(
        job, unique=None, partition=None if partition is None else replace(partition, ordered=False)
    )


def value_of(payload: bytes) -> str:
    """Arguments as they are recorded."""
    return payload[:_MOST].decode(errors="replace")
