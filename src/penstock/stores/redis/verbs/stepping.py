"""record_steps, forget_steps, steps, edit_steps: what jobs remember.

Steps are in the slot of their job's queue. A step that waits for a signal has a twin in the slot of the
signals (`signalling.py`), which is removed when the wait ends.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.job import Lease, Ref
from penstock.stores.contract import (
    LARGEST_MEMORY,
    MOST_STEPS,
    EditStatus,
    RecordedStep,
    RecordStatus,
    StepEdit,
    StepRecord,
    StepRemoval,
    StoredStep,
)
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.layout import decoded, encoded, packed
from penstock.stores.redis.script_arguments import HEAVY, chunks, in_bytes, lease_prefix
from penstock.stores.redis.wire.calls import Call

_STEP = struct.Struct("<ddHHH")
_STORED, _LOST, _FULL = (
    RecordedStep(status) for status in (RecordStatus.STORED, RecordStatus.LOST, RecordStatus.FULL)
)
_EDITED = {b"h": EditStatus.RUNNING, b"f": EditStatus.FULL, b"g": EditStatus.MISSING}

#: A step to record or remove: the lease, by how much (ms) it is extended, the step's name, and its value or
#: wait, or "1" to remove only a wait.
Item = tuple[Lease, int, str, bytes]
#: The code of `record_steps.lua` or `forget_steps.lua` for a step, and the text behind it.
Answer = tuple[bytes, bytes]


class UnpackedStep(NamedTuple):
    """A stored step, as `scripts/lib/steps.lua` has it."""

    number: int
    at: int
    signal: tuple[str, str] | None
    value: bytes | None  # None: the job waits


# ── record, forget ───────────────────────────────────────────────────────────────────────────────


def record_steps(context: Context, records: Sequence[StepRecord]) -> CallPlan[list[RecordedStep]]:
    """Append steps to the memory of jobs; end the waits with their names."""
    items = [(one.lease, one.by, one.name, b"=" + one.value) for one in records]
    answers = yield from append(context, items)
    return (yield from _with_waits_ended(context, items, answers))


def append(context: Context, items: Sequence[Item]) -> CallPlan[list[Answer]]:
    """Append steps, or waits, to the memory of jobs."""
    return _each(context, "record_steps", [LARGEST_MEMORY, MOST_STEPS], items)


def forget_steps(context: Context, removals: Sequence[StepRemoval]) -> CallPlan[list[RecordedStep]]:
    """Remove steps from the memory of jobs; end the waits with their names."""
    items = [(one.lease, one.by, one.name, b"1" if one.waiting else b"") for one in removals]
    answers = yield from _each(context, "forget_steps", [], items)
    return (yield from _with_waits_ended(context, items, answers))


def _each(
    context: Context, script: str, head: list[bytes | str | int], items: Sequence[Item]
) -> CallPlan[list[Answer]]:
    """Run a script for items, in calls of one queue each."""
    answers: list[Answer] = [(b"l", b"")] * len(items)
    calls: list[tuple[str, Call]] = []
    places: list[Sequence[int]] = []
    sizes = [len(value) for *_, value in items]
    for queue in dict.fromkeys(lease.queue for lease, *_ in items):
        of_these = [n for n, item in enumerate(items) if item[0].queue == queue]
        for part in [lighter for some in chunks(of_these, HEAVY) for lighter in in_bytes(some, sizes)]:
            args = [*head]
            for n in part:
                lease, by, name, value = items[n]
                args += (packed(lease.id), lease_prefix(lease), by, encoded(name), value)
            calls.append((queue, context.call(script, [queue], args)))
            places.append(part)
    found = raise_errors((yield [call for _, call in calls])) if calls else []
    for part, answer in zip(places, found, strict=True):
        for n, code, text in zip(part, answer[0::2], answer[1::2], strict=True):
            answers[n] = (code, text)
    return answers


def _with_waits_ended(
    context: Context, items: Sequence[Item], answers: Sequence[Answer]
) -> CallPlan[list[RecordedStep]]:
    """End the waits among these steps; returns what the answers say."""
    ended = [
        (lease, name, text)
        for (lease, _, name, _), (code, text) in zip(items, answers, strict=True)
        if code == b"e"
    ]
    yield from end_waits(context, ended)
    return [recorded(code, text) for code, text in answers]


def recorded(code: bytes, text: bytes) -> RecordedStep:
    """What an answer of `record_steps.lua` says."""
    if code == b"x":
        step = unpacked(text)
        return RecordedStep(RecordStatus.EXISTS, step.value, step.signal)
    return _LOST if code == b"l" else _FULL if code == b"f" else _STORED


def unpacked(text: bytes) -> UnpackedStep:
    """The step with this stored form."""
    number, at, name, key, delivery = _STEP.unpack_from(text)
    begins = _STEP.size
    signal = None
    if name:
        middle = begins + name
        signal = (decoded(text[begins:middle]), decoded(text[middle : middle + key]))
    value = text[begins + name + key + delivery :]
    return UnpackedStep(int(number), int(at), signal, value[1:] if value[:1] == b"=" else None)


# ── read, edit ───────────────────────────────────────────────────────────────────────────────────


def steps(
    context: Context, ref: Ref, names: Sequence[str] | None, largest: int | None
) -> CallPlan[list[StoredStep]]:
    """Read the steps of a job: all, or a part in steps of its own."""
    queue = context.redis_keys.queue(ref.queue)
    (record,) = raise_errors((yield [command(queue, "HGET", queue + b":jobs", packed(ref.id))]))
    if record is None or len(record) < 8:
        return []
    generation = int.from_bytes(record[1:8], "big")
    if names is not None or largest is not None:
        return (yield from _part_of_steps(context, ref.queue, generation, names, largest))
    key = queue + b":steps/%d" % generation
    (fields,) = raise_errors((yield [command(queue, "HGETALL", key)]))
    stored = zip(fields[0::2], fields[1::2], strict=True)
    found = sorted(
        ((unpacked(text), name) for name, text in stored if name[:1] == b"="),
        key=lambda one: (one[0].number, one[0].at, one[1]),
    )
    return [StoredStep(decoded(name[1:]), step.at, step.value, step.signal) for step, name in found]


def _part_of_steps(
    context: Context, queue: str, generation: int, names: Sequence[str] | None, largest: int | None
) -> CallPlan[list[StoredStep]]:
    """Read steps by steps.lua: those with these names, or all in some calls, which may find a step twice."""
    most = "" if largest is None else largest
    found: dict[bytes, tuple[UnpackedStep, int]] = {}
    parts: list[list[bytes]] = [[]]
    if names is not None:
        parts = [list(part) for part in chunks([b"=" + encoded(name) for name in names], HEAVY)]
    for part in parts:
        cursor = b"" if names is not None else b"0"
        while True:
            call = context.call("steps", [queue], [generation, most, cursor, *part])
            ((cursor, *answer),) = raise_errors((yield [call]))
            for field, text, size in zip(answer[0::3], answer[1::3], answer[2::3], strict=True):
                found[field] = (unpacked(text), int(size))
            if cursor == b"0":
                break
    steps = sorted((step, field, size) for field, (step, size) in found.items())
    return [
        StoredStep(decoded(field[1:]), step.at, step.value, step.signal, size) for step, field, size in steps
    ]


def edit_steps(context: Context, ref: Ref, edits: Sequence[StepEdit]) -> CallPlan[EditStatus]:
    """Change the steps of a job in one script, then end the waits among them."""
    args: list[bytes | str | int] = [LARGEST_MEMORY, MOST_STEPS, packed(ref.id)]
    for name, value in {edit.name: edit.value for edit in edits}.items():
        args += (encoded(name), b"" if value is None else b"=" + value)
    (answer,) = raise_errors((yield [context.call("edit_steps", [ref.queue], args)]))
    code, generation, *ended = answer
    if code in _EDITED:
        return _EDITED[code]
    lease = Lease(ref.queue, ref.id, "", int(generation))
    names = [decoded(name) for name in ended[0::2]]
    yield from end_waits(
        context, [(lease, name, text) for name, text in zip(names, ended[1::2], strict=True)]
    )
    return EditStatus.APPLIED


# ── waits in the slot of the signals ─────────────────────────────────────────────────────────────


def end_waits(context: Context, ended: Sequence[tuple[Lease, str, bytes]]) -> CallPlan[None]:
    """Note that jobs wait no more for the signals of these steps (lease, name, the stored step)."""
    args: list[bytes | str | int] = []
    for lease, name, text in ended:
        if (signal := unpacked(text).signal) is not None:
            args += (encoded(signal[0]), encoded(signal[1]), encoded(lease.id), wait_of(lease, name))
    if args:
        raise_errors((yield [signals_call(context, "end_waits", args)]))


def wait_of(lease: Lease, step: str) -> bytes:
    """The wait of a job's step: queue, id, generation and step, each with its size."""
    texts = (encoded(lease.queue), encoded(lease.id), b"%d" % lease.generation, encoded(step))
    return b"".join(len(text).to_bytes(2, "little") + text for text in texts)


def signals_call(context: Context, script: str, args: Sequence[bytes | str | int]) -> Call:
    key = context.redis_keys.signals
    # on a Cluster, a node that migrates the slot decides by the named keys: one of them must exist
    call = context.shared_call(script, key, args)
    return call._replace(redis_keys=(key, key + b":number")) if context.clustered else call
