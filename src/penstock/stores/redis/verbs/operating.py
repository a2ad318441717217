"""What operators and upkeep ask: lists, counts, settings, retry, delete, prune, workers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from heapq import merge
from typing import Any

import msgspec
from msgspec import UNSET

from penstock.errors import ConfigError
from penstock.job import Job, Ref, State
from penstock.limits import LimitChange
from penstock.store import (
    LANE_SHOWN,
    DayCount,
    LaneInfo,
    Page,
    Parked,
    Pruned,
    QueueInfo,
    QueueStats,
    WorkerInfo,
)
from penstock.stores.redis.ground import BATCH, HEAVY, Ground, Talk, ask, chunks, jobs_from, sure
from penstock.stores.redis.keys import packed
from penstock.stores.redis.records import NUMBER, STATES, limit_values, limits_of
from penstock.stores.redis.verbs.consuming import deliver, news_call
from penstock.stores.redis.verbs.producing import get, highest, known, register, states_of, tell_news

__all__ = [
    "announce",
    "begin",
    "delete",
    "drop",
    "find",
    "lane",
    "list_jobs",
    "parked",
    "prune",
    "purge",
    "queues",
    "reschedule",
    "retire",
    "retry",
    "settings",
    "stats",
    "workers",
]

_SILENT = 60_000
_NEWEST = 1 << 53
#: A page at most, in one script.
_PAGE = 500
_worker_decode = msgspec.msgpack.Decoder(WorkerInfo).decode


def begin(ground: Ground) -> Talk[Any]:
    """What a store object asks first of all: the news that there have been, which it will not tell."""
    (news,) = sure((yield [news_call(ground)]))
    if ground.steered:
        yield from highest(ground)
    return news


# ── listing ──────────────────────────────────────────────────────────────────────────────────────


class _Lister:
    """The jobs of one queue, newest first, read page by page."""

    def __init__(self, ground: Ground, queue: str, states: str, before: int, page: int) -> None:
        self._ground = ground
        self._queue = queue
        self._states = states
        self._before = before
        self._page = page
        self.jobs: list[Job] = []
        self.done = False

    def more(self) -> Talk[None]:
        args: list[bytes | str | int] = [self._before, self._page, self._states]
        (answer,) = sure((yield [self._ground.call("list_jobs", [self._queue], args)]))
        rows = jobs_from(answer)
        jobs = yield from self._ground.jobs(self._queue, rows)
        self.jobs += jobs
        self.done = len(rows) < self._page
        if jobs:
            self._before = jobs[-1].generation


def list_jobs(
    ground: Ground,
    queue: str | None,
    state: State | None,
    task: str | None,
    worker: str | None,
    after: str | None,
    limit: int,
) -> Talk[Page]:
    limit = max(1, limit)
    before, last = _cursor(after)
    names = (yield from known(ground)) if queue is None else [queue]
    if worker is not None and state not in (None, State.RUNNING):
        return Page([], None)
    wanted = [State.RUNNING] if worker is not None else [*State] if state is None else [state]
    states = ",".join(str(NUMBER[one]) for one in wanted)
    page = min(_PAGE, limit + 1) if task is None and worker is None else _PAGE
    parts: list[list[tuple[int, str, Job]]] = []
    for name in names:
        # of equal generations, which several queues may have given, the queue that sorts first goes first
        lister = _Lister(ground, name, states, before + (name > last), page)
        found: list[Job] = []
        while len(found) <= limit and not lister.done:
            yield from lister.more()
            found = [
                job
                for job in lister.jobs
                if (task is None or job.task == task) and (worker is None or job.worker == worker)
            ]
        parts.append([(-job.generation, name, job) for job in found[: limit + 1]])
    jobs = [job for _, _, job in merge(*parts, key=lambda one: one[:2])]
    more = len(jobs) > limit
    return Page(jobs[:limit], f"{jobs[limit - 1].generation}:{jobs[limit - 1].queue}" if more else None)


def _cursor(after: str | None) -> tuple[int, str]:
    if after is None:
        return _NEWEST, "~~"
    number, colon, queue = after.partition(":")
    if not colon or not number.isascii() or not number.isdigit():
        raise ConfigError(f"after={after!r} is not a cursor: pass on the `next` of the page before")
    return int(number), queue


def find(ground: Ground, id: str) -> Talk[list[Job]]:
    names = yield from known(ground)
    found = yield from get(ground, [Ref(name, id) for name in names])
    return [job for job in found if job is not None]


def queues(ground: Ground) -> Talk[list[QueueInfo]]:
    names = yield from known(ground)
    infos = yield from _infos(ground, names)
    return [info for info in infos if info is not None]


def _infos(ground: Ground, names: Sequence[str]) -> Talk[list[QueueInfo | None]]:
    answers = sure((yield [ground.call("info", [name], []) for name in names])) if names else []
    return [_info(name, answer) for name, answer in zip(names, answers, strict=True)]


def _info(name: str, answer: list[Any]) -> QueueInfo | None:
    there, paused, closed, oldest, limits, held, *numbers = answer
    if not there:
        return None
    counts = {state: n for state, n in zip(STATES, numbers, strict=True) if n}
    return QueueInfo(
        name,
        counts,
        bool(paused),
        bool(closed),
        int(oldest) if oldest else None,
        limits_of(limits),
        int(held) if held else None,
    )


def parked(ground: Ground) -> Talk[list[Parked]]:
    names = yield from known(ground)
    keys = [ground.keys.queue(name) for name in names]
    answers = sure((yield [ask(key, "HGETALL", key + b":parked") for key in keys])) if names else []
    return [
        Parked(name, task.decode(), int(n))
        for name, of_tasks in zip(names, answers, strict=True)
        for task, n in sorted(zip(of_tasks[0::2], of_tasks[1::2], strict=True))
    ]


def stats(ground: Ground, days: int) -> Talk[list[QueueStats]]:
    names = yield from known(ground)
    calls = [ground.shared_call("now", ground.keys.news, ())]
    for name in names:
        key = ground.keys.queue(name)
        calls.append(ask(key, "HMGET", key + b":meta", "enqueued", "processed", "failed", "generation"))
        calls.append(ask(key, "HGETALL", key + b":days"))
    now, *answers = sure((yield calls))
    oldest = int(now) // 86_400_000 - min(days, 90)
    return [
        QueueStats(name, int(totals[0] or 0), int(totals[1] or 0), int(totals[2] or 0), _days(daily, oldest))
        for name, totals, daily in zip(names, answers[0::2], answers[1::2], strict=True)
        if totals[3] is not None
    ]


def _days(daily: list[bytes], oldest: int) -> list[DayCount]:
    counts: dict[int, dict[str, int]] = {}
    for field, n in zip(daily[0::2], daily[1::2], strict=True):
        day, _, what = field.decode().partition("/")
        counts.setdefault(int(day), {})[what] = int(n)
    return [
        DayCount(_day_name(day), counts[day].get("processed", 0), counts[day].get("failed", 0))
        for day in sorted(counts, reverse=True)
        if day > oldest
    ]


def _day_name(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


# ── settings, and jobs by hand ───────────────────────────────────────────────────────────────────


def settings(
    ground: Ground, queue: str, paused: bool | None, closed: bool | None, limits: LimitChange | None
) -> Talk[QueueInfo]:
    wanted: list[Any] = ["" if value is None else int(value) for value in (paused, closed)]
    change = limits or LimitChange()
    wanted.append("" if change.hold is UNSET else change.hold or 0)
    wanted += [value if value == "" else repr(value) for value in limit_values(change)]
    answers = sure((yield [register(ground, {queue}), ground.call("settings", [queue], wanted)]))
    ground.listed.add(queue)
    if answers[1][0]:
        sure((yield tell_news(ground, "changes")))
    (info,) = yield from _infos(ground, [queue])
    return info or QueueInfo(queue, {})


def retry(ground: Ground, refs: Sequence[Ref]) -> Talk[list[State | None]]:
    found, _ = yield from states_of(ground, "retry", refs, [ground.floor])
    return found


def reschedule(
    ground: Ground, refs: Sequence[Ref], delay: int, run_at: int | None
) -> Talk[list[State | None]]:
    args = [ground.floor, delay, "" if run_at is None else run_at]
    found, _ = yield from states_of(ground, "reschedule", refs, args)
    return found


def delete(ground: Ground, refs: Sequence[Ref]) -> Talk[list[State | None]]:
    found, _ = yield from states_of(ground, "delete", refs, [])
    return found


def purge(ground: Ground, queue: str, states: Sequence[State], limit: int) -> Talk[int]:
    wanted = ",".join(str(NUMBER[state]) for state in sorted(set(states) - {State.RUNNING}))
    gone = 0
    while gone < limit and wanted:
        step = min(HEAVY, limit - gone)
        (n,) = sure((yield [ground.call("purge", [queue], [step, wanted])]))
        gone += abs(n)
        if 0 <= n < step:
            break
    return gone


def drop(ground: Ground, queue: str) -> Talk[bool]:
    (answer,) = sure((yield [ground.call("drop", [queue], [])]))
    if answer < 0:
        return False
    key = ground.keys.queues
    sure((yield [ask(key, "SREM", key, queue)]))
    ground.listed.discard(queue)
    meta = ground.keys.queue(queue) + b":meta"
    (again,) = sure((yield [ask(meta, "EXISTS", meta)]))
    if (
        again
    ):  # it has come to be once more, and who did that may have put it on the list before we took it off
        sure((yield [register(ground, {queue})]))
    if answer:
        sure((yield tell_news(ground, "changes")))
    return True


# ── upkeep ───────────────────────────────────────────────────────────────────────────────────────


def prune(ground: Ground, limit: int, keep_finished: int, keep_dead: int) -> Talk[Pruned]:
    """Every queue is looked at first; then each step goes over the queues, in the order of the seam."""
    names = yield from known(ground)
    args = [max(0, limit), keep_finished, keep_dead]
    groups = [[name] for name in names] if ground.clustered else chunks(names, HEAVY)
    answers = sure((yield [ground.call("survey", some, args) for some in groups])) if names else []
    seen = dict(zip(names, [one for answer in answers for one in answer], strict=True))
    lying = [(name, field) for name, answer in seen.items() for field in answer[4]]
    if lying:
        yield from deliver(ground, lying)
    sweep = _Sweep(ground, limit, keep_finished, keep_dead)
    yield from sweep.turns({name: answer[0] for name, answer in seen.items()}, over=True)
    for name in names:
        if seen[name][1] or seen[name][3]:
            yield from sweep.run(name, crowd=sweep.left, days=bool(seen[name][3]))
    yield from sweep.turns({name: answer[2] for name, answer in seen.items()}, over=False)
    key = ground.keys.workers
    (answer,) = sure((yield [ground.shared_call("workers", key, [_SILENT, max(0, sweep.left)])]))
    keys = yield from _prune_keys(ground, {name: answer[5] for name, answer in seen.items()}, limit)
    return Pruned(sweep.finished, sweep.expired, answer[0], keys)


def _prune_keys(ground: Ground, over: dict[str, int], limit: int) -> Talk[int]:
    """Unique keys whose period is over."""
    gone = 0
    for name, many in over.items():
        while many > 0 and gone < limit:
            step = min(BATCH, many, limit - gone)
            (n,) = sure((yield [ground.call("prune_keys", [name], [step])]))
            gone += n
            many -= step
    return gone


class _Sweep:
    """What is left of the limit of a prune, and what it has taken."""

    def __init__(self, ground: Ground, limit: int, keep_finished: int, keep_dead: int) -> None:
        self._ground = ground
        self._keep = (keep_finished, keep_dead)
        self.left = limit
        self.finished = 0
        self.expired = 0

    def turns(self, due: dict[str, list[Any]], *, over: bool) -> Talk[None]:
        """What is due longest goes first, whatever its queue."""
        entries = sorted(
            (float(found[i + 1]), found[i], name)
            for name, found in due.items()
            for i in range(0, len(found), 2)
        )
        turn = [name for _, _, name in entries[: max(0, self.left)]]
        for name in dict.fromkeys(turn):
            n = turn.count(name)
            yield from self.run(name, over=n if over else 0, expired=0 if over else n)

    def run(
        self, name: str, *, over: int = 0, crowd: int = 0, expired: int = 0, days: bool = False
    ) -> Talk[None]:
        while True:
            step = [min(HEAVY, n) for n in (over, crowd, expired)]
            args = [step[0], step[1], *self._keep, step[2], int(days)]
            (answer,) = sure((yield [self._ground.call("prune", [name], args)]))
            self.finished += answer[0]
            self.expired += answer[1]
            self.left -= answer[0] + answer[1]
            over, crowd, expired = over - step[0], crowd - step[1], expired - step[2]
            if sum(answer) < sum(step) or not (over or crowd or expired):
                return


def announce(ground: Ground, worker: WorkerInfo) -> Talk[None]:
    key = ground.keys.workers
    text = msgspec.msgpack.encode(worker)
    sure((yield [ground.shared_call("announce", key, [worker.id, text])]))


def retire(ground: Ground, worker: str) -> Talk[None]:
    key = ground.keys.workers
    sure((yield [ask(key, "HDEL", key, worker)]))


def workers(ground: Ground) -> Talk[list[WorkerInfo]]:
    (answer,) = sure((yield [ground.shared_call("workers", ground.keys.workers, [_SILENT, 0])]))
    found = [msgspec.structs.replace(_worker_decode(text[8:]), seen_at=_seen(text)) for text in answer[1:]]
    return sorted(found, key=lambda worker: (worker.started_at, worker.id))


def _seen(text: bytes) -> int:
    return int(struct.unpack_from("<d", text)[0])


# ── lanes ────────────────────────────────────────────────────────────────────────────────────────


def lane(ground: Ground, ref: Ref) -> Talk[LaneInfo | None]:
    (answer,) = sure((yield [ground.call("lane", [ref.queue], [packed(ref.id), LANE_SHOWN])]))
    if answer is None:
        return None
    key, waiting, before, due = answer[:4]
    rows = list(zip(answer[4::3], answer[5::3], answer[6::3], strict=True))
    admitted = yield from ground.jobs(ref.queue, rows)
    return LaneInfo(
        key.decode(),
        admitted,
        int(waiting),
        None if before == b"" else int(before),
        int(due) if due else None,
    )
