"""record_steps, steps, await_signals, send_signals: what jobs remember, and the signals they wait for.

Steps are in the slot of their job's queue, signals in the slot of the namespace. A signal goes from one to
the other by a delivery, which is kept until the job has the signal. `prune` repeats those of a killed
process.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.errors import NotReplicated
from penstock.core.job import Lease, Ref
from penstock.stores.contract import (
    LARGEST_MEMORY,
    MOST_STEPS,
    SIGNAL_GRACE,
    RecordedStep,
    RecordStatus,
    Signal,
    SignalStatus,
    SignalWait,
    StepRecord,
    StoredStep,
)
from penstock.stores.redis.batching import HEAVY, MOST_BYTES, chunks, in_bytes
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.isolation import AWAY, each
from penstock.stores.redis.keys import packed
from penstock.stores.redis.outages import SHARED
from penstock.stores.redis.script_arguments import lease_prefix
from penstock.stores.redis.wire.calls import Call

__all__ = ["await_signals", "prune_signals", "record_steps", "send_signals", "steps"]

_STEP = struct.Struct("<ddHHH")
_OUT = struct.Struct("<Id")
_STORED, _LOST, _FULL = (
    RecordedStep(status) for status in (RecordStatus.STORED, RecordStatus.LOST, RecordStatus.FULL)
)
_SENT = {b"s": SignalStatus.STORED, b"x": SignalStatus.EXISTS, b"f": SignalStatus.FULL}
#: The most signals and waits that one prune removes, and the age (ms) from which it repeats a delivery.
_PRUNED, _UNCONFIRMED = 1_000, 1_000
#: The length of the digest that begins a wait in the slot of the signals (`scripts/lib/signals.lua`).
_DIGEST = 40


class _Step(NamedTuple):
    """A stored step, as `scripts/lib/steps.lua` has it."""

    number: int
    at: int
    signal: tuple[str, str] | None
    value: bytes | None  # None: the job waits


class _Delivery(NamedTuple):
    """A signal on its way to a job that waits for it."""

    number: bytes
    ref: Ref
    generation: bytes
    step: bytes
    name: bytes
    key: bytes
    flow: bytes
    data: bytes


# ── steps ────────────────────────────────────────────────────────────────────────────────────────


def record_steps(context: Context, records: Sequence[StepRecord]) -> CallPlan[list[RecordedStep]]:
    """Append steps to the memory of jobs; end the waits with their names."""
    items = [(one.lease, one.by, one.name, b"=" + one.value) for one in records]
    answers = yield from _record(context, items)
    ended = [
        (one.lease, one.name, text)
        for one, (code, text) in zip(records, answers, strict=True)
        if code == b"e"
    ]
    yield from _end_waits(context, ended)
    return [_recorded(code, text) for code, text in answers]


def _end_waits(context: Context, ended: Sequence[tuple[Lease, str, bytes]]) -> CallPlan[None]:
    """Note that jobs wait no more for the signals of these steps (lease, name, the stored step)."""
    args: list[bytes | str | int] = []
    for lease, name, text in ended:
        if (signal := _step(text).signal) is not None:
            args += (_bytes(signal[0]), _bytes(signal[1]), _bytes(lease.id), _wait(lease, name))
    if args:
        raise_errors((yield [_shared(context, "end_waits", args)]))


def _record(
    context: Context, items: Sequence[tuple[Lease, int, str, bytes]]
) -> CallPlan[list[tuple[bytes, bytes]]]:
    """Run record_steps.lua for items (lease, by, name of the step, value or wait)."""
    answers: list[tuple[bytes, bytes]] = [(b"l", b"")] * len(items)
    calls: list[tuple[str, Call]] = []
    places: list[Sequence[int]] = []
    sizes = [len(value) for *_, value in items]
    for queue in dict.fromkeys(lease.queue for lease, *_ in items):
        of_these = [n for n, item in enumerate(items) if item[0].queue == queue]
        for part in [lighter for some in chunks(of_these, HEAVY) for lighter in in_bytes(some, sizes)]:
            args: list[bytes | str | int] = [LARGEST_MEMORY, MOST_STEPS]
            for n in part:
                lease, by, name, value = items[n]
                args += (packed(lease.id), lease_prefix(lease), by, _bytes(name), value)
            calls.append((queue, context.call("record_steps", [queue], args)))
            places.append(part)
    found = raise_errors((yield [call for _, call in calls])) if calls else []
    for part, answer in zip(places, found, strict=True):
        for n, code, text in zip(part, answer[0::2], answer[1::2], strict=True):
            answers[n] = (code, text)
    return answers


def _recorded(code: bytes, text: bytes) -> RecordedStep:
    if code == b"x":
        step = _step(text)
        return RecordedStep(RecordStatus.EXISTS, step.value, step.signal)
    return _LOST if code == b"l" else _FULL if code == b"f" else _STORED


def _step(text: bytes) -> _Step:
    number, at, name, key, delivery = _STEP.unpack_from(text)
    begins = _STEP.size
    signal = None
    if name:
        middle = begins + name
        signal = (_text(text[begins:middle]), _text(text[middle : middle + key]))
    value = text[begins + name + key + delivery :]
    return _Step(int(number), int(at), signal, value[1:] if value[:1] == b"=" else None)


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
    found = sorted((_step(text), name) for name, text in stored if name[:1] == b"=")
    return [StoredStep(_text(name[1:]), step.at, step.value, step.signal) for step, name in found]


def _part_of_steps(
    context: Context, queue: str, generation: int, names: Sequence[str] | None, largest: int | None
) -> CallPlan[list[StoredStep]]:
    """Read steps by steps.lua: those with these names, or all in some calls, which may find a step twice."""
    most = "" if largest is None else largest
    found: dict[bytes, tuple[_Step, int]] = {}
    parts: list[list[bytes]] = [[]]
    if names is not None:
        parts = [list(part) for part in chunks([b"=" + _bytes(name) for name in names], HEAVY)]
    for part in parts:
        cursor = b"" if names is not None else b"0"
        while True:
            call = context.call("steps", [queue], [generation, most, cursor, *part])
            ((cursor, *answer),) = raise_errors((yield [call]))
            for field, text, size in zip(answer[0::3], answer[1::3], answer[2::3], strict=True):
                found[field] = (_step(text), int(size))
            if cursor == b"0":
                break
    steps = sorted((step, field, size) for field, (step, size) in found.items())
    return [
        StoredStep(_text(field[1:]), step.at, step.value, step.signal, size) for step, field, size in steps
    ]


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


def await_signals(context: Context, waits: Sequence[SignalWait]) -> CallPlan[list[RecordedStep]]:
    """Note the waits in the jobs, then in the slot of the signals, which may have the signal already."""
    items = [(one.lease, one.by, one.step, _awaited(one)) for one in waits]
    answers = yield from _record(context, items)
    open_ = [n for n, (code, _) in enumerate(answers) if code == b"s"]
    recorded = [_recorded(code, text) for code, text in answers]
    enqueued = {n: answers[n][1].partition(b":") for n in open_}
    others = [(waits[n].lease, waits[n].step, before) for n, (_, _, before) in enqueued.items() if before]
    yield from _end_waits(context, others)
    for part in chunks(open_, HEAVY):
        args: list[bytes | str | int] = []
        for n in part:
            wait, since = waits[n], int(enqueued[n][0]) - SIGNAL_GRACE
            signal = (_bytes(wait.name), _bytes(wait.key), _bytes(wait.lease.id))
            args += (*signal, since, wait.keep, _wait(wait.lease, wait.step))
        call = _shared(context, "await_signals", args)._replace(replicas=context.replicas_of_noted)
        (answer,) = raise_errors((yield [call]))
        found, _ = context.confirmed(answer)  # a wait that is lost in a failover is noted again in a day
        came = [
            (n, _delivery(number, text))
            for n, number, text in zip(part, found[0::2], found[1::2], strict=True)
            if number
        ]
        given = yield from _deliver(context, [delivery for _, delivery in came])
        for n, delivery in came:
            if delivery.number in given:
                signal_of = (waits[n].name, waits[n].key)
                recorded[n] = RecordedStep(RecordStatus.EXISTS, delivery.data, signal_of)
            else:
                recorded[n] = _LOST
    return recorded


def send_signals(context: Context, signals: Sequence[Signal]) -> CallPlan[list[SignalStatus]]:
    """Send signals, and deliver those that a job waits for."""
    statuses = [SignalStatus.RECEIVED] * len(signals)
    few: dict[str, str] = {}
    sizes = [len(signal.data) for signal in signals]
    parts = [
        lighter for some in chunks(range(len(signals)), HEAVY) for lighter in in_bytes(list(some), sizes)
    ]
    for part in parts:
        args: list[bytes | str | int] = []
        for n in part:
            one = signals[n]
            args += (
                b"",
                _bytes(one.name),
                _bytes(one.key),
                _bytes(one.flow or ""),
                one.keep,
                one.most,
                one.data,
            )
        cause = yield from _send(context, list(part), args, statuses)
        few |= {signals[n].name: cause for n in part if cause}
    if few:
        raise NotReplicated(list(few), next(iter(few.values())), "signal")
    return statuses


def _send(
    context: Context, places: list[int], args: list[bytes | str | int], statuses: list[SignalStatus]
) -> CallPlan[str]:
    """Run send_signals.lua, until each signal has been received by a job or stored.

    Returns why too few replicas have one, or nothing.
    """
    few = ""
    while places:
        call = _shared(context, "send_signals", args)._replace(repeatable=False, replicas=context.replicas)
        (answer,) = raise_errors((yield [call]))
        answer, unconfirmed = context.confirmed(answer)
        few = few or unconfirmed
        going: list[tuple[int, _Delivery]] = []
        for n, code, number, text in zip(places, answer[0::3], answer[1::3], answer[2::3], strict=True):
            statuses[n] = _SENT.get(code, SignalStatus.RECEIVED)
            if code == b"r":
                going.append((n, _delivery(number, text)))
        refused = yield from _refused(context, [delivery for _, delivery in going])
        if refused:
            of_these = {(one.name, one.key, one.flow) for _, one in going if one.number in refused}
            yield from _drop_ended_waits(context, sorted(of_these))
        places = [n for n, delivery in going if delivery.number in refused]
        args = []
        for _, delivery in going:
            if delivery.number in refused:
                args += (delivery.number, b"", b"", b"", 0, 0, b"")
    return few


def prune_signals(context: Context) -> CallPlan[None]:
    """Remove old signals and waits, and repeat the deliveries that nobody has confirmed."""
    cursor = b"0"
    while True:
        call = _shared(context, "prune_signals", [_PRUNED, _UNCONFIRMED, cursor, MOST_BYTES])
        (found,) = yield from each(context, [(SHARED, call)])
        if found is AWAY:
            return
        cursor, *texts = found
        lying = [_delivery(number, text) for number, text in zip(texts[0::2], texts[1::2], strict=True)]
        yield from _deliver(context, lying)
        if cursor == b"0":
            break
    while (yield from _drop_ended_waits(context, [])) * 4 > HEAVY:
        pass  # more than a quarter of a random sample had ended: there are others


def _drop_ended_waits(context: Context, signals: Sequence[tuple[bytes, bytes, bytes]]) -> CallPlan[int]:
    """Remove waits of jobs that wait no more; returns their number.

    It looks at waits for these signals (name, key, flow), or without any at a random sample.
    """
    args = [part for signal in signals for part in signal]
    most = max(8, HEAVY // max(1, len(signals)))
    (found,) = yield from each(context, [(SHARED, _shared(context, "find_waits", [most, *args]))])
    if found is AWAY:
        return 0
    waits = [
        (_texts(member, _DIGEST, 4), member, end) for member, end in zip(found[::2], found[1::2], strict=True)
    ]
    calls: list[tuple[str, Call]] = []
    parts: list[Sequence[tuple[list[bytes], bytes, bytes]]] = []
    for queue in dict.fromkeys(texts[0] for texts, _, _ in waits):
        for part in chunks([wait for wait in waits if wait[0][0] == queue], 2 * HEAVY):
            ofs: list[bytes | str | int] = []
            for (_, id, generation, step), member, _ in part:
                ofs += (packed(_text(id)), id, generation, step, member[:_DIGEST])
            calls.append((_text(queue), context.call("check_waits", [_text(queue)], ofs)))
            parts.append(part)
    answers = (yield from each(context, calls)) if calls else []
    over: list[bytes | str | int] = []
    for part, answer in zip(parts, answers, strict=True):
        for (_, member, end), code in zip(part, answer if answer is not AWAY else (), strict=False):
            if code == ord("g"):
                over += (member, end)
    if not over:
        return 0
    (gone,) = yield from each(context, [(SHARED, _shared(context, "drop_waits", over))])
    return 0 if gone is AWAY else int(gone)


def _deliver(context: Context, deliveries: Sequence[_Delivery]) -> CallPlan[set[bytes]]:
    """Deliver signals; send those again that their job does not take. Returns the numbers of the others."""
    refused = yield from _refused(context, deliveries)
    args: list[bytes | str | int] = []
    for number in refused:
        args += (number, b"", b"", b"", 0, 0, b"")
    yield from _send(context, [0] * len(refused), args, [SignalStatus.RECEIVED])
    return {one.number for one in deliveries} - refused


def _refused(context: Context, deliveries: Sequence[_Delivery]) -> CallPlan[set[bytes]]:
    """Deliver signals and confirm the deliveries; returns the numbers of those that no job has taken."""
    refused: set[bytes] = set()
    taken: list[bytes] = []
    calls: list[tuple[str, Call]] = []
    parts: list[list[_Delivery]] = []
    for queue in dict.fromkeys(one.ref.queue for one in deliveries):
        here = [one for one in deliveries if one.ref.queue == queue]
        args: list[bytes | str | int] = []
        for one in here:
            args += (packed(one.ref.id), one.generation, one.step, one.number, one.name, one.key, one.data)
        replicas = context.replicas_of_noted
        calls.append((queue, context.call("deliver_signals", [queue], args, replicas=replicas)))
        parts.append(here)
    answers = (yield from each(context, calls)) if calls else []
    for here, answer in zip(parts, answers, strict=True):
        codes, unconfirmed = context.confirmed(answer)
        for one, code in zip(here, codes if codes is not AWAY else (), strict=False):
            if code == ord("a"):
                taken += [] if unconfirmed else [one.number]  # prune repeats an unconfirmed delivery
            else:
                refused.add(one.number)
    if taken:
        key = context.redis_keys.signals
        raise_errors((yield [command(key, "HDEL", key + b":out", *taken)]))
    return refused


def _delivery(number: bytes, text: bytes) -> _Delivery:
    size, _ = _OUT.unpack_from(text)
    queue, id, generation, step = _texts(text, _OUT.size, 4)
    begins = _OUT.size + size
    name, key, flow = _texts(text, begins, 3)
    data = text[begins + 6 + len(name) + len(key) + len(flow) + 24 :]
    return _Delivery(number, Ref(_text(queue), _text(id)), generation, step, name, key, flow, data)


def _texts(text: bytes, at: int, n: int) -> list[bytes]:
    found = []
    for _ in range(n):
        size = int.from_bytes(text[at : at + 2], "little")
        found.append(text[at + 2 : at + 2 + size])
        at += 2 + size
    return found


def _wait(lease: Lease, step: str) -> bytes:
    """The wait of a job's step: queue, id, generation and step, each with its size."""
    texts = (_bytes(lease.queue), _bytes(lease.id), b"%d" % lease.generation, _bytes(step))
    return b"".join(len(text).to_bytes(2, "little") + text for text in texts)


def _awaited(wait: SignalWait) -> bytes:
    name = _bytes(wait.name)
    return b"?" + len(name).to_bytes(2, "little") + name + _bytes(wait.key)


def _shared(context: Context, script: str, args: Sequence[bytes | str | int]) -> Call:
    key = context.redis_keys.signals
    # on a Cluster, a node that migrates the slot decides by the named keys: one of them must exist
    call = context.shared_call(script, key, args)
    return call._replace(redis_keys=(key, key + b":number")) if context.clustered else call


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")
