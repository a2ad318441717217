"""await_signals, send_signals: the signals that jobs wait for.

Signals are in the slot of the namespace, steps in that of their job's queue (`stepping.py`). A signal goes
from one to the other by a delivery, which is kept until the job has the signal. `prune` repeats those of a
killed process.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.errors import NotReplicated
from penstock.core.job import Ref
from penstock.stores.contract import (
    SIGNAL_GRACE,
    KeptSignal,
    RecordedStep,
    RecordStatus,
    Signal,
    SignalStatus,
    SignalWait,
    SignalWaiter,
)
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.isolation import MISSING, call_each
from penstock.stores.redis.layout import decoded, encoded, packed
from penstock.stores.redis.script_arguments import HEAVY, MOST_BYTES, chunks, in_bytes
from penstock.stores.redis.unusable_queues import SHARED
from penstock.stores.redis.verbs import stepping
from penstock.stores.redis.wire.calls import Call

_OUT = struct.Struct("<Id")
_SENT = {
    b"s": SignalStatus.STORED,
    b"x": SignalStatus.EXISTS,
    b"f": SignalStatus.FULL,
    b"p": SignalStatus.REPLACED,
}
#: The most signals and waits that one prune removes, and the age (ms) from which it repeats a delivery.
_PRUNED, _UNCONFIRMED = 1_000, 1_000
#: The most names of stored signals that are read per step.
_LISTED = 1_000
_TIMES = struct.Struct("<dd")
#: The length of the digest that begins a wait in the slot of the signals (`scripts/lib/signals.lua`).
_DIGEST = 40


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


# ── wait and send ────────────────────────────────────────────────────────────────────────────────


def await_signals(context: Context, waits: Sequence[SignalWait]) -> CallPlan[list[RecordedStep]]:
    """Note the waits in the jobs, then in the slot of the signals, which may have the signal already."""
    items = [(one.lease, one.by, one.step, _awaited(one)) for one in waits]
    answers = yield from stepping.append(context, items)
    open_ = [n for n, (code, _) in enumerate(answers) if code == b"s"]
    recorded = [stepping.recorded(code, text) for code, text in answers]
    enqueued = {n: answers[n][1].partition(b":") for n in open_}
    others = [(waits[n].lease, waits[n].step, before) for n, (_, _, before) in enqueued.items() if before]
    yield from stepping.end_waits(context, others)
    for part in chunks(open_, HEAVY):
        args: list[bytes | str | int] = []
        for n in part:
            wait, since = waits[n], int(enqueued[n][0]) - SIGNAL_GRACE
            signal = (encoded(wait.name), encoded(wait.key), encoded(wait.lease.id))
            args += (*signal, since, wait.keep, stepping.wait_of(wait.lease, wait.step))
        call = stepping.signals_call(context, "await_signals", args)
        (answer,) = raise_errors((yield [call._replace(replicas=context.replicas_of_noted)]))
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
                recorded[n] = RecordedStep(RecordStatus.LOST)
    return recorded


def _awaited(wait: SignalWait) -> bytes:
    name = encoded(wait.name)
    return b"?" + len(name).to_bytes(2, "little") + name + encoded(wait.key)


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
                encoded(one.name),
                encoded(one.key),
                encoded(one.flow or ""),
                one.keep,
                one.most,
                one.data,
                "1" if one.replace else "",
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
        call = stepping.signals_call(context, "send_signals", args)
        (answer,) = raise_errors((yield [call._replace(repeatable=False, replicas=context.replicas)]))
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
                args += (delivery.number, b"", b"", b"", 0, 0, b"", b"")
    return few


# ── deliver ──────────────────────────────────────────────────────────────────────────────────────


def _deliver(context: Context, deliveries: Sequence[_Delivery]) -> CallPlan[set[bytes]]:
    """Deliver signals; send those again that their job does not take. Returns the numbers of the others."""
    refused = yield from _refused(context, deliveries)
    args: list[bytes | str | int] = []
    for number in refused:
        args += (number, b"", b"", b"", 0, 0, b"", b"")
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
    answers = yield from call_each(context, calls)
    for here, answer in zip(parts, answers, strict=True):
        codes, unconfirmed = context.confirmed(answer)
        for one, code in zip(here, codes if codes is not MISSING else (), strict=False):
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
    return _Delivery(number, Ref(decoded(queue), decoded(id)), generation, step, name, key, flow, data)


def _texts(text: bytes, at: int, n: int) -> list[bytes]:
    found = []
    for _ in range(n):
        size = int.from_bytes(text[at : at + 2], "little")
        found.append(text[at + 2 : at + 2 + size])
        at += 2 + size
    return found


# ── prune ────────────────────────────────────────────────────────────────────────────────────────


def prune_signals(context: Context) -> CallPlan[None]:
    """Remove old signals and waits, and repeat the deliveries that nobody has confirmed."""
    cursor = b"0"
    while True:
        call = stepping.signals_call(context, "prune_signals", [_PRUNED, _UNCONFIRMED, cursor, MOST_BYTES])
        (found,) = yield from call_each(context, [(SHARED, call)])
        if found is MISSING:
            return
        cursor, *texts = found
        deliveries = [_delivery(number, text) for number, text in zip(texts[0::2], texts[1::2], strict=True)]
        yield from _deliver(context, deliveries)
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
    call = stepping.signals_call(context, "find_waits", [most, *args])
    (found,) = yield from call_each(context, [(SHARED, call)])
    if found is MISSING:
        return 0
    waits = [
        (_texts(member, _DIGEST, 4), member, end) for member, end in zip(found[::2], found[1::2], strict=True)
    ]
    still = yield from _still_waiting(context, waits)
    over: list[bytes | str | int] = []
    for (_, member, end), waits_on in zip(waits, still, strict=True):
        if waits_on is False:
            over += (member, end)
    if not over:
        return 0
    (gone,) = yield from call_each(context, [(SHARED, stepping.signals_call(context, "drop_waits", over))])
    return 0 if gone is MISSING else int(gone)


def _still_waiting(
    context: Context, waits: Sequence[tuple[list[bytes], bytes, bytes]]
) -> CallPlan[list[bool | None]]:
    """Whether each job still waits (texts of the wait, its member, its end); None: its queue is away."""
    found: list[bool | None] = [None] * len(waits)
    calls: list[tuple[str, Call]] = []
    parts: list[Sequence[int]] = []
    for queue in dict.fromkeys(texts[0] for texts, _, _ in waits):
        for part in chunks([n for n, wait in enumerate(waits) if wait[0][0] == queue], 2 * HEAVY):
            ofs: list[bytes | str | int] = []
            for n in part:
                (_, id, generation, step), member, _ = waits[n]
                ofs += (packed(decoded(id)), id, generation, step, member[:_DIGEST])
            calls.append((decoded(queue), context.call("check_waits", [decoded(queue)], ofs)))
            parts.append(part)
    answers = yield from call_each(context, calls)
    for part, answer in zip(parts, answers, strict=True):
        for n, code in zip(part, answer if answer is not MISSING else (), strict=False):
            found[n] = code != ord("g")
    return found


# ── for operators ────────────────────────────────────────────────────────────────────────────────


def signals(
    context: Context,
    name: str | None,
    key: str | None,
    after: tuple[str, str, str] | None,
    limit: int,
) -> CallPlan[list[KeptSignal]]:
    """List stored signals: their names first, then the data of some."""
    base, at = context.redis_keys.signals, 0
    found: dict[tuple[str, str, str], bytes] = {}
    while True:
        call = command(base, "ZRANGE", base + b":over", at, at + _LISTED - 1)
        (boxes,) = raise_errors((yield [call]))
        for box in boxes:
            names = _names_of(box)
            if name in (None, names[0]) and key in (None, names[1]) and (after is None or names > after):
                found[names] = box
        if len(boxes) < _LISTED:
            break
        at += _LISTED
    kept: list[KeptSignal] = []
    (now,) = raise_errors((yield [stepping.signals_call(context, "now", [])]))
    for names in sorted(found):
        if len(kept) >= limit:
            break
        (text,) = raise_errors((yield [command(base, "HGET", base, found[names])]))
        if text is not None and (times := _TIMES.unpack_from(text))[1] > int(now):
            sent_at, keep_until = map(int, times)
            data = text[_TIMES.size :]
            kept.append(KeptSignal(names[0], names[1], names[2] or None, data, sent_at, keep_until))
    return kept


def _names_of(box: bytes) -> tuple[str, str, str]:
    """The name, key and flow of a stored signal, by `box_of` of scripts/lib/signals.lua."""
    name, key = int.from_bytes(box[:2], "little"), int.from_bytes(box[2:4], "little")
    middle = 4 + name
    return decoded(box[4:middle]), decoded(box[middle : middle + key]), decoded(box[middle + key :])


def forget_signals(context: Context, names: Sequence[tuple[str, str, str | None]]) -> CallPlan[list[bool]]:
    """Remove stored signals."""
    gone: list[bool] = []
    for part in chunks(list(names), HEAVY):
        args: list[bytes | str | int] = [encoded(text or "") for one in part for text in one]
        (answer,) = raise_errors((yield [stepping.signals_call(context, "forget_signals", args)]))
        gone += [bool(one) for one in answer]
    return gone


def signal_waiters(context: Context, name: str, key: str, limit: int) -> CallPlan[list[SignalWaiter]]:
    """Tell which jobs wait for a signal, by the waits in its slot that the jobs have, too."""
    args: list[bytes | str | int] = [_LISTED, encoded(name), encoded(key), b""]
    (found,) = raise_errors((yield [stepping.signals_call(context, "find_waits", args)]))
    members = list(dict.fromkeys(found[::4]))
    waits = [(_texts(member, _DIGEST, 4), member) for member in members]
    still = yield from _still_waiting(context, [(texts, member, b"") for texts, member in waits])
    texts = [texts for (texts, _), waits_on in zip(waits, still, strict=True) if waits_on][:limit]
    reads = [
        command(key, "HGET", key + b":steps/" + generation, b"=" + step + b"!of")
        for queue, _, generation, step in texts
        for key in [context.redis_keys.queue(decoded(queue))]
    ]
    ofs = raise_errors((yield reads)) if reads else []
    schemas = [None if of is None else stepping.unpacked(of).value for of in ofs]
    return [
        SignalWaiter(Ref(decoded(queue), decoded(id)), decoded(step), schema)
        for (queue, id, _, step), schema in zip(texts, schemas, strict=True)
    ]
