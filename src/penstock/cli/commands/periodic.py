"""`penstock periodic`: what recurs; make, pause and remove entries, see their next instants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.commands.enqueue import find_task, read_arguments, refuse_memory, split_words
from penstock.cli.completing import complete_entry, complete_queue
from penstock.cli.faults import not_found
from penstock.cli.session import Command, Session
from penstock.cli.show import age, emit, facts, say, span, table
from penstock.core.errors import did_you_mean

if TYPE_CHECKING:
    from penstock.core.schedule import NewEntry, Schedule
    from penstock.inspector import EntryView, Inspector

__all__ = ["command"]

_POLICIES = ("misfire", "catch_up", "overlap", "jitter")
_ENTRY = click.argument("address", metavar="ENTRY", shell_complete=complete_entry)
_ENTRIES = click.argument(
    "addresses", metavar="ENTRY...", nargs=-1, required=True, shell_complete=complete_entry
)


@click.group("periodic", short_help="See what recurs; make, change, pause and remove it.")
def command() -> None:
    """See what recurs; make, change, pause and remove it.

    ENTRY is queue/name, or the name alone.
    """


@command.command("list", cls=Command)
@click.option("--queue", "-q", shell_complete=complete_queue, help="Of this queue only.")
def list_(queue: str | None) -> None:
    """Every entry, its schedule, and when its next job is due."""
    session = Session.current()
    entries = session.run(lambda i: i.entries(queue))
    if session.json:
        emit({"entries": entries})
        return
    table(
        ("QUEUE", "NAME", "TASK", "SCHEDULE", "NEXT", "ENQUEUED", "SKIPPED", "BY", "SWITCHES"),
        [
            (
                entry.queue,
                entry.name,
                entry.task,
                _schedule(entry),
                age(entry.next_at),
                f"{entry.enqueued}",
                f"{entry.skipped or '-'}",
                entry.by,
                "paused" if entry.paused else "",
            )
            for entry in entries
        ],
        empty="nothing recurs",
    )


@command.command("show", cls=Command)
@_ENTRY
def show(address: str) -> None:
    """All that is known of an entry."""
    session = Session.current()
    entries = session.run(lambda i: _some(i, i.entry, address))
    if session.json:
        emit({"entries": entries})
        return
    for entry in entries:
        facts(
            [
                ("entry", f"{entry.queue}/{entry.name}"),
                ("task", entry.task),
                ("arguments", entry.payload_base64 or bytes(entry.payload or b"").decode()),
                ("schedule", _schedule(entry)),
                ("next", f"{entry.next_at} ({age(entry.next_at)})" if entry.next_at else None),
                ("paused", "yes" if entry.paused else None),
                ("misfire", f"all, {entry.catch_up} at most" if entry.misfire == "all" else entry.misfire),
                ("overlap", entry.overlap),
                ("jitter", span(entry.jitter) if entry.jitter else None),
                ("registered by", entry.by),
                ("last job", entry.last),
                ("enqueued", f"{entry.enqueued}"),
                ("skipped", f"{entry.skipped}"),
            ]
        )


@command.command("next", cls=Command)
@_ENTRY
@click.option("--count", "-n", type=click.IntRange(1, 1_000), default=5, show_default=True)
def next_(address: str, count: int) -> None:
    """The next instants of an entry, in its time zone."""
    from penstock.core.schedule import zone

    session = Session.current()

    async def acting(inspector: Inspector) -> tuple[EntryView, list[str]]:
        (entry, *_) = await _some(inspector, inspector.entry, address)
        return entry, await inspector.upcoming(f"{entry.queue}/{entry.name}", count=count)

    entry, instants = session.run(acting)
    if session.json:
        emit({"queue": entry.queue, "name": entry.name, "next": instants})
        return
    for instant in instants:
        local = datetime.fromisoformat(instant).astimezone(zone(entry.tz))
        say(f"{local.isoformat(' ', 'seconds')}  {age(instant)}")


@command.command("add", cls=Command)
@click.argument("name")
@click.argument("schedule")
@click.argument("words", metavar="[MODULE:ATTRIBUTE] TASK [ARGUMENTS]", nargs=-1, required=True)
@click.option("--tz", help="The time zone of a cron expression, as in Europe/Berlin; else UTC.")
@click.option("--raw", is_flag=True, help="Store ARGUMENTS as they are, for a task that need not exist here.")
@click.option("--queue", "-q", shell_complete=complete_queue, help="Instead of the task's own.")
@click.option("--misfire", help="What was missed: skip it, once (the last is made up for), or all.")
@click.option("--catch-up", type=int, help="With --misfire all: so many at most.")
@click.option("--overlap", help="If the job before has not ended: allow, skip, or replace it.")
@click.option("--jitter", metavar="DURATION", help="Up to so long after the instant, each time anew.")
@click.option("--priority", type=int, help="-100 to 100; higher goes first.")
@click.option("--expires", metavar="DURATION", help="Cancel a job that has not started by then.")
@click.option("--timeout", metavar="DURATION", help="Limit on one attempt; none for no limit.")
@click.option("--max-attempts", type=int, help="How often a job may be tried.")
def add(name: str, schedule: str, words: tuple[str, ...], tz: str | None, raw: bool, **given: Any) -> None:
    """Make an entry, or change the one of this name.

    SCHEDULE is a cron expression, @daily and its like, or "every 30s". TASK and ARGUMENTS are as with
    `penstock enqueue`.

    \b
    penstock periodic add nightly "0 3 * * *" --tz Europe/Berlin tasks:app tasks.report '{"full": true}'
    penstock periodic add tick "every 30s" --raw --queue legacy poll
    """
    from penstock.core.schedule import Schedule

    session = Session.current()
    when = Schedule.of(schedule, tz=tz)
    options = {key: value for key, value in given.items() if value is not None}
    if options.get("timeout") == "none":
        options["timeout"] = None
    policies: dict[str, Any] = {key: options.pop(key) for key in _POLICIES if key in options}
    spec, task, payload = split_words(words, raw)
    if raw:
        entry = _raw(name, when, task, payload, options, policies)
        done = session.run(lambda i: i.put_entry(entry), create=True)
    else:
        done = _of_app(spec, name, when, task, payload, options, policies)
    if session.json:
        emit(done)
    else:
        say(f"{done.queue}/{done.name}: {_schedule(done)}, next {age(done.next_at) or 'never'}")


def _raw(
    name: str, when: Schedule, task: str, payload: bytes, options: dict[str, Any], policies: dict[str, Any]
) -> NewEntry:
    from penstock.app.app import App
    from penstock.app.periodic import new_entry

    if "queue" not in options:
        raise click.UsageError("--raw needs --queue: nobody here knows where jobs of this task go")
    job = App("memory://").raw_job(options.pop("queue"), payload, task, **options).new()
    return new_entry(name, job, when, **policies)


def _of_app(
    spec: str | None,
    name: str,
    when: Schedule,
    task: str,
    payload: bytes,
    options: dict[str, Any],
    policies: dict[str, Any],
) -> EntryView:
    from penstock.app.periodic import of_task
    from penstock.inspector import Inspector

    app = Session.current().open_app(spec)
    refuse_memory(app)
    known = find_task(app, task)
    args, kwargs = read_arguments(known, payload)
    entry = of_task(known.using(**options), when, name=name, args=args, kwargs=kwargs, **policies)
    try:
        return asyncio.run(Inspector(app.store).put_entry(entry))
    finally:
        app.close()


def _switch(name: str, says: str, tells: str) -> None:
    """The commands pause, resume and remove, which differ in the verb only."""

    @command.command(name, cls=Command, help=says)
    @_ENTRIES
    def act(addresses: tuple[str, ...]) -> None:
        session = Session.current()

        async def acting(inspector: Inspector) -> list[EntryView]:
            for address in addresses:
                await _some(inspector, inspector.entry, address)
            verb: Callable[[str], Awaitable[list[EntryView]]] = getattr(inspector, f"{name}_entry")
            return [entry for address in addresses for entry in await verb(address)]

        entries = session.run(acting)
        if session.json:
            emit({"entries": entries})
            return
        for entry in entries:
            say(f"{entry.queue}/{entry.name}: {tells}")


_switch("pause", "Enqueue nothing more of these entries. What is enqueued stays.", "paused")
_switch("resume", "Undo a pause. What was slept through is not made up for.", "goes on")
_switch(
    "remove",
    "Forget these entries. One that code registers comes back with the next worker that starts: pause it.",
    "removed",
)


async def _some(
    inspector: Inspector, find: Callable[[str], Awaitable[list[EntryView]]], address: str
) -> list[EntryView]:
    """The entries at this address, of which there must be one."""
    found = await find(address)
    if not found:
        known = [entry.name for entry in await inspector.entries()]
        raise not_found(f"there is no periodic entry {address!r}{did_you_mean(address, known)}")
    return found


def _schedule(entry: EntryView) -> str:
    return entry.schedule if entry.tz == "UTC" else f"{entry.schedule} {entry.tz}"
