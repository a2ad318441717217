"""What operators and upkeep ask: lists, counts, settings, retry, delete, prune, workers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from heapq import merge
from typing import Any

import msgspec
from msgspec import UNSET

from penstock.core.errors import ConfigError
from penstock.core.job import Job, Ref, State
from penstock.core.limits import LimitChange
from penstock.stores.contract import (
    LANE_SHOWN,
    DayCount,
    Finding,
    LaneInfo,
    Level,
    Page,
    Parked,
    Pruned,
    QueueInfo,
    QueueStats,
    SetAside,
    WorkerInfo,
    unreadable_settings_of,
)
from penstock.stores.redis.context import (
    AWAY,
    BATCH,
    HEAVY,
    SHARED,
    Ground,
    Talk,
    alone,
    any_of,
    ask,
    chunks,
    each,
    isolated,
    jobs_from,
    sure,
    whole,
)
from penstock.stores.redis.keys import id_of, packed
from penstock.stores.redis.reading import shown
from penstock.stores.redis.records import (
    NUMBER,
    STATES,
    UNDECODABLE,
    limit_values,
    limits_of,
    readable_limits,
)
from penstock.stores.redis.verbs.consuming import deliver, news_call, now_of
from penstock.stores.redis.verbs.producing import get, highest, known, listing, register, states_of, tell_news
from penstock.stores.redis.wire.calls import Call

__all__ = [
    "announce",
    "begin",
    "delete",
    "drop",
    "find",
    "lane",
    "list_jobs",
    "parked",
    "probes",
    "prune",
    "purge",
    "queues",
    "reschedule",
    "retire",
    "retry",
    "settings",
    "stats",
    "unread_settings",
    "workers",
    "wrong_types",
]

_SILENT = 60_000
_UNREAD = "somebody has written over them"
_NEWEST = 1 << 53
#: A page at most, in one script.
_PAGE = 500
_worker_decode = msgspec.msgpack.Decoder(WorkerInfo).decode


def begin(ground: Ground) -> Talk[Any]:
    """What a store object asks first of all: the news that there have been, which it will not tell."""
    (news,) = yield from each(ground, [(SHARED, news_call(ground))])
    if ground.steered:
        yield from highest(ground)
    return (None, None) if news is AWAY else news


def probes(ground: Ground, names: Sequence[str]) -> list[Call]:
    """Whether these queues are served; where the list of all was away, it learns what we know."""
    calls = []
    for name in names:
        if name == SHARED and (met := (ground.met | ground.listed) - {SHARED}):
            calls.append(listing(ground, met))
        else:
            key = ground.keys.news if name == SHARED else ground.keys.queue(name) + b":meta"
            calls.append(ask(key, "EXISTS", key))
    return [call._replace(brief=True) for call in calls]


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
        jobs = yield from shown(self._ground, self._queue, rows)
        self.jobs += jobs
        self.done = len(rows) < self._page
        if jobs:
            self._before = jobs[-1].generation

    def at_least(self, wanted: int, task: str | None, worker: str | None) -> Talk[list[Job]]:
        """So many of those that are of this task and worker, or all there are."""
        found: list[Job] = []
        while len(found) < wanted and not self.done:
            yield from self.more()
            found = [
                job
                for job in self.jobs
                if (task is None or job.task == task) and (worker is None or job.worker == worker)
            ]
        return found


@isolated
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
        listed = lister.at_least(limit + 1, task, worker)
        found = yield from listed if queue is not None else alone(ground, name, listed)
        if found is not AWAY:
            parts.append([(-job.generation, name, job) for job in found[: limit + 1]])
    jobs = [job for _, _, job in merge(*parts, key=lambda one: one[:2])]
    more = len(jobs) > limit
    return Page(jobs[:limit], f"{jobs[limit - 1].generation}:{jobs[limit - 1].queue}" if more else None)


def _cursor(after: str | None) -> tuple[int, str]:
    if after is None:
        return _NEWEST, "~~"
    number, colon, queue = after.partition(":")
    if not colon or not number.isascii() or not number.isdigit() or len(number) > 30:
        raise ConfigError(f"after={after!r} is not a cursor: pass on the `next` of the page before")
    return int(number), queue


@isolated
def find(ground: Ground, id: str) -> Talk[list[Job]]:
    names = yield from known(ground)
    if not ground.apart:
        jobs = yield from get(ground, [Ref(name, id) for name in names])
        return [job for job in jobs if job is not None]
    found: list[Job] = []
    away = False
    for name in names:
        answer = yield from alone(ground, name, get(ground, [Ref(name, id)]))
        if answer is AWAY:
            away = True
        else:
            found += [job for job in answer if job is not None]
    if away and not found:  # it may be there
        raise ground.unavailable(names)
    return found


@isolated
def queues(ground: Ground) -> Talk[list[QueueInfo]]:
    names = yield from known(ground)
    infos = yield from _infos(ground, names)
    return [info for info in infos if info is not None]


def _infos(ground: Ground, names: Sequence[str]) -> Talk[list[QueueInfo | None]]:
    calls = [(name, ground.call("info", [name], [])) for name in names]
    answers = (yield from any_of(ground, calls)) if names else []
    return [
        QueueInfo(name, {}, away=str(ground.unavailable([name]))) if answer is AWAY else _info(name, answer)
        for name, answer in zip(names, answers, strict=True)
    ]


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


@isolated
def parked(ground: Ground) -> Talk[list[Parked]]:
    names = yield from known(ground)
    calls = []
    for name in names:
        key = ground.keys.queue(name)
        calls.append((name, ask(key, "HGETALL", key + b":parked")))
    answers = (yield from any_of(ground, calls)) if names else []
    return [
        Parked(name, task.decode(errors="backslashreplace"), whole(n))
        for name, of_tasks in zip(names, answers, strict=True)
        if of_tasks is not AWAY
        for task, n in sorted(zip(of_tasks[0::2], of_tasks[1::2], strict=True))
    ]


@isolated
def stats(ground: Ground, days: int) -> Talk[list[QueueStats]]:
    names = yield from known(ground)
    now = yield from now_of(ground)
    calls = []
    for name in names:
        key = ground.keys.queue(name)
        calls.append(
            (name, ask(key, "HMGET", key + b":meta", "enqueued", "processed", "failed", "generation"))
        )
        calls.append((name, ask(key, "HGETALL", key + b":days")))
    answers = (yield from any_of(ground, calls)) if names else []
    oldest = int(now) // 86_400_000 - min(days, 90)
    return [
        QueueStats(name, whole(totals[0]), whole(totals[1]), whole(totals[2]), _days(daily, oldest))
        for name, totals, daily in zip(names, answers[0::2], answers[1::2], strict=True)
        if totals is not AWAY and daily is not AWAY and totals[3] is not None
    ]


def _days(daily: list[bytes], oldest: int) -> list[DayCount]:
    counts: dict[int, dict[bytes, int]] = {}
    for field, n in zip(daily[0::2], daily[1::2], strict=True):
        day, _, what = field.partition(b"/")
        counts.setdefault(whole(day), {})[what] = whole(n)
    return [
        DayCount(_day_name(day), counts[day].get(b"processed", 0), counts[day].get(b"failed", 0))
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
    yield from register(ground, {queue})
    (answer,) = sure((yield [ground.call("settings", [queue], wanted)]))
    if answer[0]:
        yield from tell_news(ground, "changes")
    (info,) = yield from _infos(ground, [queue])
    return info or QueueInfo(queue, {})


@isolated
def unread_settings(ground: Ground) -> Talk[list[Finding]]:
    """What a checkup says of them."""
    return [unreadable_settings_of(name, _UNREAD) for name in (yield from _unread_settings(ground))]


def _say_unread_settings(ground: Ground) -> Talk[None]:
    """Once for each queue, until they are set anew."""
    found = set((yield from _unread_settings(ground)))
    for name in sorted(found - ground.unread):
        ground.asides.add(SetAside("settings", name, "", _UNREAD))
    ground.unread = found


def _unread_settings(ground: Ground) -> Talk[list[str]]:
    """Queues whose limits somebody has written over."""
    names = yield from known(ground)
    calls = []
    for name in names:
        key = ground.keys.queue(name) + b":meta"
        calls.append((name, ask(key, "HGET", key, "limits")))
    answers = (yield from any_of(ground, calls)) if names else []
    return [
        name
        for name, text in zip(names, answers, strict=True)
        if text is not AWAY and text and not readable_limits(text)
    ]


#: What each key of a queue that every verb needs is.
_TYPES = {
    b"hash": ("jobs", "meta", "days", "profiles", "held", "tokens", "parked", "unique", "periodic", "out"),
    b"zset": ("ready", "due", "leases", "expiring", "over", "waiters", "unique/until"),
}


def wrong_types(ground: Ground) -> Talk[list[Finding]]:
    """Queues one of whose keys is of a type that no verb can use."""
    names = yield from known(ground)
    wanted = [(name, what, type) for name in names for type, all in _TYPES.items() for what in all]
    calls = []
    for name, what, _ in wanted:
        key = ground.keys.queue(name) + b":" + what.encode()
        calls.append(ask(key, "TYPE", key)._replace(brief=ground.clustered))
    answers = (yield calls) if calls else []
    return [
        Finding(
            Level.ERROR,
            f"queue {name}",
            f"its key {ground.keys.queue(name).decode()}:{what} is a {answer.decode()}: none of its jobs run",
            "somebody else writes under this prefix: delete or rename that key, or use another prefix",
        )
        for (name, what, type), answer in zip(wanted, answers, strict=True)
        if isinstance(answer, bytes) and answer not in (type, b"none")
    ]


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
    yield from each(ground, [(SHARED, ask(key, "SREM", key, queue))])
    ground.listed.discard(queue)
    ground.met.discard(queue)
    meta = ground.keys.queue(queue) + b":meta"
    (again,) = sure((yield [ask(meta, "EXISTS", meta)]))
    if (
        again
    ):  # it has come to be once more, and who did that may have put it on the list before we took it off
        yield from register(ground, {queue})
    if answer:
        yield from tell_news(ground, "changes")
    return True


# ── upkeep ───────────────────────────────────────────────────────────────────────────────────────


@isolated
def prune(ground: Ground, limit: int, keep_finished: int, keep_dead: int) -> Talk[Pruned]:
    """Every queue is looked at first; then each step goes over the queues, in the order of the seam."""
    yield from _say_unread_settings(ground)
    names = yield from known(ground)
    args = [max(0, limit), keep_finished, keep_dead]
    groups = [[name] for name in names] if ground.apart else chunks(names, HEAVY)
    calls = [(few[0], ground.call("survey", few, args)) for few in groups]
    answers = (yield from any_of(ground, calls)) if names else []
    seen = {
        name: one
        for few, answer in zip(groups, answers, strict=True)
        if answer is not AWAY
        for name, one in zip(few, answer, strict=True)
    }
    for name, answer in seen.items():
        _tell(ground, name, answer[6])
    lying = [(name, field) for name, answer in seen.items() for field in answer[4]]
    if lying:
        yield from deliver(ground, lying)
    sweep = _Sweep(ground, limit, keep_finished, keep_dead)
    yield from sweep.turns({name: answer[0] for name, answer in seen.items()}, over=True)
    for name in seen:
        if seen[name][1] or seen[name][3]:
            yield from sweep.run(name, crowd=sweep.left, days=bool(seen[name][3]))
    yield from sweep.turns({name: answer[2] for name, answer in seen.items()}, over=False)
    key = ground.keys.workers
    silent = ground.shared_call("workers", key, [_SILENT, max(0, sweep.left)])
    (answer,) = yield from each(ground, [(SHARED, silent)])
    keys = yield from _prune_keys(ground, {name: answer[5] for name, answer in seen.items()}, limit)
    gone = 0 if answer is AWAY else answer[0]
    return Pruned(sweep.finished, sweep.expired, gone, keys, ground.asides.take())


def _tell(ground: Ground, queue: str, kept: Sequence[bytes]) -> None:
    """What scripts that answer something else have set aside."""
    for text in kept:
        at = 2 + int.from_bytes(text[:2], "little")
        cause = text[at:].decode(errors="backslashreplace")
        ground.asides.add(SetAside("job", queue, id_of(text[2:at]), cause))


def _prune_keys(ground: Ground, over: dict[str, int], limit: int) -> Talk[int]:
    """Unique keys whose period is over."""
    gone = 0
    for name, many in over.items():
        while many > 0 and gone < limit:
            step = min(BATCH, many, limit - gone)
            (n,) = yield from each(ground, [(name, ground.call("prune_keys", [name], [step]))])
            if n is AWAY:
                break
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
            (answer,) = yield from each(self._ground, [(name, self._ground.call("prune", [name], args))])
            if answer is AWAY:
                return
            self._ground.told(answer[3:])
            answer = answer[:3]
            self.finished += answer[0]
            self.expired += answer[1]
            self.left -= answer[0] + answer[1]
            over, crowd, expired = over - step[0], crowd - step[1], expired - step[2]
            if sum(answer) < sum(step) or not (over or crowd or expired):
                return


def announce(ground: Ground, worker: WorkerInfo) -> Talk[None]:
    text = msgspec.msgpack.encode(worker)
    ground.met.update(worker.queues)
    yield from _of_workers(ground, ground.shared_call("announce", ground.keys.workers, [worker.id, text]))


def _of_workers(ground: Ground, call: Call) -> Talk[Any]:
    """A call about the list of workers. AWAY: it is on a Cluster, and the queues of another part are not."""
    (answer,) = yield from each(ground, [(SHARED, call)])
    if answer is AWAY:
        others = sorted(ground.met - {SHARED})
        if not others:
            raise ground.unavailable([SHARED])
        keys = [(queue, ground.keys.queue(queue) + b":meta") for queue in others]
        yield from any_of(ground, [(queue, ask(key, "EXISTS", key)) for queue, key in keys])
    return answer


def retire(ground: Ground, worker: str) -> Talk[None]:
    key = ground.keys.workers
    yield from each(ground, [(SHARED, ask(key, "HDEL", key, worker))])


def workers(ground: Ground) -> Talk[list[WorkerInfo]]:
    answer = yield from _of_workers(ground, ground.shared_call("workers", ground.keys.workers, [_SILENT, 0]))
    if answer is AWAY:
        return []
    found = [_worker_of(id, text) for id, text in zip(answer[1::2], answer[2::2], strict=True)]
    return sorted(found, key=lambda worker: (worker.started_at, worker.id))


def _worker_of(id: bytes, text: bytes) -> WorkerInfo:
    seen = int(struct.unpack_from("<d", text)[0])
    try:
        return msgspec.structs.replace(_worker_decode(text[8:]), seen_at=seen)
    except UNDECODABLE:
        return WorkerInfo.unreadable(id.decode(errors="backslashreplace"), seen)


# ── lanes ────────────────────────────────────────────────────────────────────────────────────────


def lane(ground: Ground, ref: Ref) -> Talk[LaneInfo | None]:
    (answer,) = sure((yield [ground.call("lane", [ref.queue], [packed(ref.id), LANE_SHOWN])]))
    if answer is None:
        return None
    key, waiting, before, due = answer[:4]
    rows = list(zip(answer[4::3], answer[5::3], answer[6::3], strict=True))
    admitted = yield from shown(ground, ref.queue, rows)
    return LaneInfo(
        key.decode(),
        admitted,
        int(waiting),
        None if before == b"" else int(before),
        int(due) if due else None,
    )
