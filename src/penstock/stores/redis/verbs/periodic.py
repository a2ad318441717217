"""Periodic entries: list, put, pause and delete them; tick enqueues their jobs."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.core.job import Ref
from penstock.core.lifecycle import REPLACED
from penstock.core.schedule import Entry, NewEntry, Overlap, unreadable_entry
from penstock.stores.contract import Tick, TickResult, TickStatus, Timetable
from penstock.stores.redis.context import CallPlan, Context, raise_errors
from penstock.stores.redis.isolation import MISSING, call_any, call_each, skips_corrupt_queues
from penstock.stores.redis.layout import UNDECODABLE, id_of, packed
from penstock.stores.redis.script_arguments import HEAVY, by_queue, form_of, in_bytes, parts_of, tail_of
from penstock.stores.redis.verbs.known_queues import highest, known, now_of, register
from penstock.stores.redis.verbs.waiting import notify_all_waiters
from penstock.stores.redis.wire.calls import Call

_HEAD = struct.Struct("<ddddB")
_STATUSES = {b"a": TickStatus.APPLIED, b"s": TickStatus.STALE, b"e": TickStatus.EARLY, b"g": TickStatus.GONE}
_OVERLAPS = {Overlap.ALLOW: 0, Overlap.SKIP: 1, Overlap.REPLACE: 2}
_blob = msgspec.msgpack.Encoder().encode
_spec_of = msgspec.msgpack.Decoder(NewEntry).decode


@skips_corrupt_queues
def entries(context: Context, queues: Sequence[str] | None) -> CallPlan[Timetable]:
    names = (yield from known(context)) if queues is None else sorted(set(queues))
    if not names:
        return Timetable([], (yield from now_of(context)))
    servers = context.servers(names)
    asked = [(few[0], context.call("entries", few, [])) for few in servers]
    answered = zip(servers, (yield from call_any(context, asked)), strict=True)
    there = [(few, answer) for few, answer in answered if answer is not MISSING]
    found = [
        (name, _shown_of(queue, name, text))
        for queue, answer in _queues_of(there)
        for name, text in zip(answer[0::2], answer[1::2], strict=True)
    ]
    found.sort(key=lambda one: (one[1].spec.job.queue, one[0]))
    # the clocks of several servers may differ: by the earliest one, no tick comes too early on any server
    return Timetable([entry for _, entry in found], min(int(answer[0]) for _, answer in there))


def _queues_of(there: list[tuple[list[str], list[Any]]]) -> Iterator[tuple[str, list[bytes]]]:
    for names, answer in there:
        yield from zip(names, answer[1:], strict=True)


def _shown_of(queue: str, name: bytes, text: bytes) -> Entry:
    try:
        return _entry_of(text)
    except UNDECODABLE as error:
        cause = f"the stored bytes are not a periodic entry ({error})"
        return unreadable_entry(Ref(queue, name.decode(errors="backslashreplace")), text, cause)


def _entry_of(text: bytes) -> Entry:
    revision, watermark, enqueued, skipped, paused = _HEAD.unpack_from(text)
    _, at = _sized(text, _HEAD.size)
    last, at = _sized(text, at)
    return Entry(
        _spec_of(text[at:]),
        int(revision),
        int(watermark),
        paused == 1,
        id_of(last) if last else None,
        int(enqueued),
        int(skipped),
    )


def _sized(text: bytes, at: int) -> tuple[bytes, int]:
    ends = at + 2 + int.from_bytes(text[at : at + 2], "little")
    return text[at + 2 : ends], ends


# ── changing entries ─────────────────────────────────────────────────────────────────────────────


def put_entries(context: Context, specs: Sequence[NewEntry]) -> CallPlan[list[Entry]]:
    if not specs:
        return []
    sizes = [len(spec.job.payload) for spec in specs]
    parts = [
        (queue, lighter)
        for queue, part in parts_of([spec.ref for spec in specs], HEAVY)
        for lighter in in_bytes(part, sizes)
    ]
    yield from register(context, {queue for queue, _ in parts})
    calls = []
    for queue, places in parts:
        args: list[bytes | str | int] = []
        for place in places:
            spec = specs[place]
            args += (spec.name, spec.schedule.key, _blob(spec))
        calls.append((queue, context.call("put_entries", [queue], args)))
    answers = yield from call_each(context, calls)
    found: dict[int, Entry] = {}
    for (_, places), answer in zip(parts, answers, strict=True):
        if answer is MISSING:
            continue
        found.update(zip(places, map(_entry_of, answer[1:]), strict=True))
    if any(answer is not MISSING and answer[0] for answer in answers):
        yield from notify_all_waiters(context, "changes")
    if MISSING in answers:  # the entries of the other queues are stored
        raise context.unavailable([queue for queue, _ in parts])
    return [found[place] for place in range(len(specs))]


def pause_entries(context: Context, refs: Sequence[Ref], paused: bool) -> CallPlan[list[Entry | None]]:
    groups = by_queue(refs)
    answers = raise_errors(
        (
            yield [
                context.call("pause_entries", [queue], [int(paused), *(refs[n].id for n in places)])
                for queue, places in groups.items()
            ]
        )
    )
    found: list[Entry | None] = [None] * len(refs)
    for places, answer in zip(groups.values(), answers, strict=True):
        for place, text in zip(places, answer[1:], strict=True):
            found[place] = _shown_of(refs[place].queue, refs[place].id.encode(), text) if text else None
    if any(answer[0] for answer in answers):
        yield from notify_all_waiters(context, "changes")
    return found


def delete_entries(context: Context, refs: Sequence[Ref]) -> CallPlan[list[bool]]:
    groups = by_queue(refs)
    calls = [
        context.call("delete_entries", [q], [refs[n].id for n in places]) for q, places in groups.items()
    ]
    answers = raise_errors((yield calls))
    gone = [False] * len(refs)
    for places, answer in zip(groups.values(), answers, strict=True):
        for place, was_there in zip(places, answer, strict=True):
            gone[place] = was_there == 1
    if any(gone):
        yield from notify_all_waiters(context, "changes")
    return gone


# ── tick ─────────────────────────────────────────────────────────────────────────────────────────


@skips_corrupt_queues
def tick(context: Context, ticks: Sequence[Tick]) -> CallPlan[list[TickResult]]:
    """Run one script per tick. A script may be sent again, because it does nothing the second time."""
    if not ticks:
        return []
    if context.clustered and context.steered:
        yield from highest(context)
    answers = yield from call_each(context, [(one.ref.queue, _tick_call(context, one)) for one in ticks])
    given = [answer for answer in answers if answer is not MISSING]
    context.floor = max(context.floor, *(int(answer[1]) for answer in given), 0)
    if any(answer[2] for answer in given):
        yield from notify_all_waiters(context, "cancels")
    return [_ticked(one, answer) for one, answer in zip(ticks, answers, strict=True)]


def _ticked(one: Tick, answer: Any) -> TickResult:
    if answer is MISSING:
        return TickResult(TickStatus.UNKNOWN, ())
    status, _, _, codes = answer
    new = [job.id for job, code in zip(one.jobs, codes, strict=False) if code == ord("n")]
    return TickResult(_STATUSES[status], tuple(new))


def _tick_call(context: Context, one: Tick) -> Call:
    profiles: dict[bytes, bytes] = {}
    jobs: list[bytes | str | int] = []
    for job in one.jobs:
        digest, text = context.profiles.write(job)
        profiles[digest] = text
        jobs += (packed(job.id), form_of(job, 1), tail_of(job, digest))
    args: list[bytes | str | int] = [context.floor, len(profiles)]
    for pair in profiles.items():
        args += pair
    args += (
        one.ref.id,
        one.revision,
        one.watermark,
        one.to,
        one.not_before,
        _OVERLAPS[one.overlap],
        REPLACED,
    )
    return context.call("tick", [one.ref.queue], [*args, *jobs])
