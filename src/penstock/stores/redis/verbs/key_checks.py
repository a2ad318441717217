"""Checks of stored keys: wrong types, and settings that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.stores.contract import Finding, Level, SetAside, unreadable_settings_of
from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import MISSING, call_any, skips_corrupt_queues
from penstock.stores.redis.stored_limits import readable_limits
from penstock.stores.redis.verbs.known_queues import known

_UNREAD = "another program has overwritten them"


@skips_corrupt_queues
def unread_settings(context: Context) -> CallPlan[list[Finding]]:
    """Return findings about queues whose settings cannot be read."""
    names = yield from known(context)
    return [unreadable_settings_of(name, _UNREAD) for name in (yield from _unread_settings(context, names))]


def report_unread_settings(context: Context, names: Sequence[str]) -> CallPlan[None]:
    """Report each of these queues with unreadable settings once, until they are set again."""
    found = set((yield from _unread_settings(context, names)))
    for name in sorted(found - context.unread):
        context.set_asides.add(SetAside("settings", name, "", _UNREAD))
    context.unread = context.unread - set(names) | found


def _unread_settings(context: Context, names: Sequence[str]) -> CallPlan[list[str]]:
    """Return those of these queues whose stored limits cannot be read."""
    calls = [context.on_key(name, b":meta", "HGET", "limits") for name in names]
    answers = yield from call_any(context, calls)
    return [
        name
        for name, text in zip(names, answers, strict=True)
        if text is not MISSING and text and not readable_limits(text)
    ]


#: The types of the keys of a queue.
_TYPES = {
    b"hash": ("jobs", "meta", "days", "profiles", "held", "tokens", "parked", "unique", "periodic", "out"),
    b"zset": ("ready", "due", "leases", "expiring", "over", "waiters", "unique/until"),
}


def wrong_types(context: Context) -> CallPlan[list[Finding]]:
    """Return findings about keys of a wrong type."""
    names = yield from known(context)
    wanted = [(name, what, type) for name in names for type, all in _TYPES.items() for what in all]
    calls = []
    for name, what, _ in wanted:
        key = context.redis_keys.queue(name) + b":" + what.encode()
        calls.append(command(key, "TYPE", key)._replace(brief=context.clustered))
    answers = (yield calls) if calls else []
    return [
        Finding(
            Level.ERROR,
            f"queue {name}",
            f"its key {context.redis_keys.queue(name).decode()}:{what} is a {answer.decode()}: "
            "none of its jobs run",
            "another program writes under this prefix: delete or rename that key, or use another prefix",
        )
        for (name, what, type), answer in zip(wanted, answers, strict=True)
        if isinstance(answer, bytes) and answer not in (type, b"none")
    ]
