"""`penstock periodic`: list, create, change, pause, trigger and remove periodic entries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.commands.enqueue import find_task, read_arguments, refuse_memory, split_words
from penstock.cli.completing import complete_entry, complete_queue
from penstock.cli.faults import Exit, not_found
from penstock.cli.formats import age, exact, span
from penstock.cli.session import AuditedAct, Command, Session
from penstock.cli.show import emit, facts, say, table
from penstock.cli.watching import Listing
from penstock.core.errors import did_you_mean
from penstock.core.formats import instant, json_or_base64

if TYPE_CHECKING:
    from penstock.core.schedule import NewEntry, Schedule
    from penstock.inspector import Change, EntryView, Inspector

_POLICIES = ("misfire", "catch_up", "overlap", "jitter")
_ENTRY = click.argument("address", metavar="ENTRY", shell_complete=complete_entry)
_ENTRIES = click.argument(
    "addresses", metavar="ENTRY...", nargs=-1, required=True, shell_complete=complete_entry
)


@click.group("periodic")
def command() -> None:
    """List, change, pause, trigger and remove periodic entries.

    A periodic entry is a schedule for jobs of one task. ENTRY is its queue/name, or the name alone.
    """


@command.command("list", cls=Listing)
@click.option("--queue", "-q", metavar="QUEUE", shell_complete=complete_queue, help="Filter by queue.")
def list_(queue: str | None) -> None:
    """List all entries with their schedules and next due times."""
    session = Session.current()
    entries = session.run(lambda i: i.entries(queue))
    if session.json:
        emit({"entries": entries})
        return
    table(
        ("QUEUE", "NAME", "TASK", "SCHEDULE", "NEXT", "ENQUEUED", "SKIPPED", "BY", "STATUS"),
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
                "paused" if entry.paused else entry.unserved or ("skipping" if entry.skipping else ""),
            )
            for entry in entries
        ],
        empty="no periodic entries",
        spare=("BY", "SKIPPED", "ENQUEUED", "TASK"),
    )


@command.command("show", cls=Command)
@_ENTRY
def show(address: str) -> None:
    """Show all details of an entry."""
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
                ("arguments", _arguments(entry)),
                ("schedule", _schedule(entry)),
                ("next", exact(entry.next_at)),
                ("paused", "yes" if entry.paused else None),
                ("no jobs", entry.unserved or None),
                ("skipping", entry.skipping or None),
                ("misfire", _misfire(entry)),
                ("overlap", entry.spec.overlap),
                ("jitter", span(entry.spec.jitter / 1000) if entry.spec.jitter else None),
                ("registered by", entry.by),
                ("last job", entry.last),
                ("enqueued", f"{entry.enqueued}"),
                ("skipped", f"{entry.skipped}"),
            ]
        )


@command.command("next", cls=Command)
@_ENTRY
@click.option(
    "--count",
    "-n",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=5,
    show_default=True,
    help="Number of times to show.",
)
def next_(address: str, count: int) -> None:
    """List the next scheduled times of an entry, in its time zone."""
    from penstock.core.schedule import zone

    session = Session.current()

    async def acting(inspector: Inspector) -> tuple[EntryView, list[int]]:
        (entry, *_) = await _some(inspector, inspector.entry, address)
        return entry, await inspector.upcoming(f"{entry.queue}/{entry.name}", count=count)

    entry, instants = session.run(acting)
    if session.json:
        emit({"queue": entry.queue, "name": entry.name, "next": [*map(instant, instants)]})
        return
    for at in instants:
        local = datetime.fromtimestamp(at / 1000, zone(entry.tz))
        say(f"{local.isoformat(' ', 'seconds')}  {age(at)}")


@command.command("add", cls=Command)
@click.argument("name")
@click.argument("schedule")
@click.argument("words", metavar="[MODULE:ATTRIBUTE] TASK [ARGUMENTS]", nargs=-1, required=True)
@click.option(
    "--tz", metavar="ZONE", help="Time zone of a cron expression, e.g. Europe/Berlin.  [default: UTC]"
)
@click.option(
    "--raw", is_flag=True, help="Store ARGUMENTS as they are, unchecked, under any task name; needs --queue."
)
@click.option(
    "--queue",
    "-q",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Queue of the jobs.  [default: the task's queue]",
)
@click.option(
    "--misfire",
    metavar="POLICY",
    help="What to do with missed runs: skip, once (run the latest), or all.  [default: once]",
)
@click.option(
    "--catch-up",
    type=int,
    metavar="N",
    help="Maximum number of missed runs to enqueue with --misfire all.  [default: 100]",
)
@click.option(
    "--overlap",
    metavar="POLICY",
    help="What to do if the previous job has not ended: allow (enqueue "
    "anyway), skip, or replace (cancel the previous job).  [default: allow]",
)
@click.option(
    "--jitter",
    metavar="DURATION",
    help="Maximum random delay after each scheduled time, e.g. 30s.  [default: 0]",
)
@click.option(
    "--priority",
    type=int,
    metavar="N",
    help="Priority, -100 to 100; higher starts first.  [default: the task's]",
)
@click.option(
    "--expires",
    metavar="DURATION",
    help="Cancel a job that has not started this long after its scheduled time.",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    help="Time limit of one attempt, e.g. 30s, or none.  [default: the task's]",
)
@click.option(
    "--max-attempts", type=int, metavar="N", help="Maximum number of attempts per job.  [default: the task's]"
)
def add(name: str, schedule: str, words: tuple[str, ...], tz: str | None, raw: bool, **given: Any) -> None:
    """Create an entry, or change the entry of this name.

    SCHEDULE is a cron expression, an alias such as @daily, or "every 30s". TASK and ARGUMENTS are the same as
    for `penstock enqueue`.

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
        audited = AuditedAct("periodic.add", [name], {"schedule": schedule})
        done = session.run(lambda i: i.put_entry(entry), create=True, audited=audited)
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
        raise click.UsageError("--raw needs --queue: raw jobs have no default queue")
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

    async def put() -> EntryView:
        view = await Inspector(app.store).put_entry(entry)
        await AuditedAct("periodic.add", [name], {"schedule": when}).write(app.store)
        return view

    try:
        return asyncio.run(put())
    finally:
        app.close()


def _switch(name: str, says: str, tells: str) -> None:
    """Add a command that calls `name`_entry of the inspector: pause, resume or remove."""

    @command.command(name, cls=Command, help=says)
    @_ENTRIES
    def act(addresses: tuple[str, ...]) -> None:
        session = Session.current()

        async def acting(inspector: Inspector) -> list[EntryView]:
            for address in addresses:
                await _some(inspector, inspector.entry, address)
            verb: Callable[[str], Awaitable[list[EntryView]]] = getattr(inspector, f"{name}_entry")
            return [entry for address in addresses for entry in await verb(address)]

        entries = session.run(acting, audited=AuditedAct(f"periodic.{name}", addresses))
        if session.json:
            emit({"entries": entries})
            return
        for entry in entries:
            say(f"{entry.queue}/{entry.name}: {tells}")


_switch("pause", "Pause entries. Jobs that are already enqueued still run.", "paused")
_switch("resume", "Resume paused entries. Runs missed during the pause are skipped.", "resumed")
_switch(
    "remove",
    "Remove entries. An entry declared in code returns when a worker with that code starts: "
    "pause it instead.",
    "removed",
)


@command.command("trigger", cls=Command)
@_ENTRIES
def trigger(addresses: tuple[str, ...]) -> Exit:
    """Enqueue a job of each entry now.

    The schedule does not change. The overlap rule of the entry applies, except while it is paused.
    """
    session = Session.current()

    async def acting(inspector: Inspector) -> list[Change]:
        for address in addresses:
            await _some(inspector, inspector.entry, address)
        return [change for address in addresses for change in await inspector.trigger_entry(address)]

    changes = session.run(acting, audited=AuditedAct("periodic.trigger", addresses))
    if session.json:
        emit({"entries": changes})
    else:
        for change in changes:
            say(f"{change.queue}/{change.id}: {change.says}", err=change.outcome != "done")
    return Exit.OK if all(change.outcome == "done" for change in changes) else Exit.FAILED


async def _some(
    inspector: Inspector, find: Callable[[str], Awaitable[list[EntryView]]], address: str
) -> list[EntryView]:
    """The entries at this address; raises CommandError if there is none."""
    found = await find(address)
    if not found:
        known = [entry.name for entry in await inspector.entries()]
        near = did_you_mean(address, known) or "; `penstock periodic list` lists all"
        raise not_found(f"there is no periodic entry {address!r}{near}")
    return found


def _arguments(entry: EntryView) -> str:
    raw, base64 = json_or_base64(entry.spec.job.payload)
    return base64 or bytes(raw or b"").decode()


def _misfire(entry: EntryView) -> str:
    spec = entry.spec
    return f"all, at most {spec.catch_up}" if spec.misfire == "all" else spec.misfire


def _schedule(entry: EntryView) -> str:
    return entry.schedule if entry.tz == "UTC" else f"{entry.schedule} {entry.tz}"
