"""The commands that change jobs: named by id, or all that match a filter."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli.completing import complete_queue
from penstock.cli.faults import CommandError, Exit
from penstock.cli.job_search import filter_options, read_search
from penstock.cli.one_job import ambiguous
from penstock.cli.session import AuditedAct, Command, Session, acting_user
from penstock.cli.show import ask, emit, note, say, status
from penstock.core.formats import milliseconds
from penstock.core.text import counted

if TYPE_CHECKING:
    from penstock.core.job import Ref
    from penstock.inspector import BulkAct, Change, Inspector
    from penstock.stores.contract import JobFilter

_AT_ONCE = 500


class _Act(NamedTuple):
    """A command: the jobs that it is for if no --state is given, and what it has done, in words."""

    name: str
    says: str
    which: str
    done: str


_ACTS = (
    _Act("retry", "Make jobs available again, with all attempts restored.", "dead", "retried"),
    _Act("run-now", "Make scheduled and retryable jobs available now.", "delayed", "made available"),
    _Act("reschedule", "Give queued jobs another due time.", "queued", "rescheduled"),
    _Act("cancel", "Cancel queued jobs, and ask running ones to stop.", "unfinished", "cancelled"),
    _Act("delete", "Delete jobs that are not running.", "queued and ended", "deleted"),
    _Act("duplicate", "Enqueue a copy of each job under a new id. A copy has no unique key and no flow.",
         "", "duplicated"),
    _Act("discard", "Make queued or suspended jobs dead. Running ones are refused: cancel them.",
         "queued or suspended", "discarded"),
    _Act("complete", "Complete jobs that are not running, as if their function had returned.",
         "queued, suspended and failed", "completed"),
    _Act("move", "Move queued jobs to another queue. Their due times and attempts do not change.",
         "queued", "moved"),
)  # fmt: skip


#: Acts that cannot be undone by another act on the same jobs.
_NEED_A_FILTER = ("cancel", "complete", "delete", "discard", "duplicate", "move")
#: Acts after which at-most-once jobs start again, and the option that leaves them out.
_START_AGAIN = ("retry", "duplicate")
_SPARE = "--spare-at-most-once"
_REASON = click.Option(["--reason"], metavar="TEXT", default="", help="Reason that is kept with the jobs.")
_OPTIONS: dict[str, list[click.Parameter]] = {
    **{
        name: [click.Option([_SPARE], is_flag=True, help="Leave out at-most-once jobs that have started.")]
        for name in _START_AGAIN
    },
    "reschedule": [
        click.Option(
            ["--delay"], metavar="DURATION", default="0s", help="Time until the jobs are due, e.g. 5m."
        )
    ],
    "discard": [_REASON],
    "complete": [
        click.Option(
            ["--result"], metavar="JSON", default="", help="Result of the jobs, as JSON.  [default: none]"
        ),
        _REASON,
    ],
    "move": [
        click.Option(
            ["--to"],
            metavar="QUEUE",
            required=True,
            shell_complete=complete_queue,
            help="New queue of the jobs.",
        )
    ],
}


def add_acts(group: click.Group) -> None:
    """Add the command of each act."""
    for act in _ACTS:
        _add(group, act)


def _add(group: click.Group, act: _Act) -> None:
    states = f"without --state: {act.which} jobs" if act.which else "--state or another filter is needed"

    @group.command(
        act.name,
        cls=Command,
        help=f"{act.says}\n\nName jobs by id, or select them by --all and filters ({states}).",
    )
    @click.argument("addresses", metavar="[ID]...", nargs=-1)
    @click.option("--all", "all_", is_flag=True, help="Select all jobs that match the filters.")
    @filter_options
    @click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(min=1),
        help="Maximum number of jobs with --all.  [default: no limit]",
    )
    @click.option(
        "--pace",
        metavar="N",
        type=click.IntRange(min=1),
        help="Maximum number of jobs per second with --all.  [default: 500]",
    )
    @click.option(
        "--dry-run", is_flag=True, help="With --all: count the jobs that match, and change nothing."
    )
    @click.option("--detach", is_flag=True, help="With --all: leave the act to workers, and do not wait.")
    @click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation of --all.")
    def command(
        addresses: tuple[str, ...],
        all_: bool,
        limit: int | None,
        pace: int | None,
        dry_run: bool,
        detach: bool,
        yes: bool,
        delay: str = "0s",
        to: str = "",
        reason: str = "",
        result: str = "",
        spare_at_most_once: bool = False,
        **filters: Any,
    ) -> Exit:
        of_all = any(filters.values()) or limit or pace or dry_run or detach
        if not all_ and of_all:
            raise click.UsageError("filters, --limit, --pace, --dry-run and --detach need --all")
        if bool(addresses) == all_:
            problem = "ids and --all exclude each other" if all_ else "no jobs given"
            raise click.UsageError(f"{problem}: name jobs by id, or select them with --all and filters")
        arguments = {"delay": milliseconds(delay, what="--delay"), "to": to, "reason": reason}
        arguments |= {"result": result, "spare_at_most_once": spare_at_most_once}
        if result:
            from penstock.inspector.job_acts import result_of

            result_of(result)  # before jobs are counted, and before anybody is asked
        if not all_:
            return _some(act, addresses, arguments)
        if act.name in _NEED_A_FILTER and not any(filters.values()):
            raise click.UsageError(f"{act.name} --all needs a filter, e.g. --queue or --state")
        return _all(act, filters, arguments, limit=limit, pace=pace, dry_run=dry_run, detach=detach, yes=yes)

    command.params += _OPTIONS.get(act.name, [])


# ── by id ────────────────────────────────────────────────────────────────────────────────────────


def _some(act: _Act, addresses: Sequence[str], arguments: dict[str, Any]) -> Exit:
    session = Session.current()

    async def acting(inspector: Inspector) -> list[Change]:
        from penstock.inspector import Change, JobAct

        refs: list[Ref] = []
        changes: list[Change] = []
        for address in dict.fromkeys(addresses):
            found = await inspector.refs(address)
            if len(found) > 1:
                raise ambiguous(address, found)
            if not found:
                changes.append(Change("", address, "missing", "no such job"))
            refs += found
        for n in range(0, len(refs), _AT_ONCE):
            changes += await inspector.act(JobAct(act.name), refs[n : n + _AT_ONCE], **arguments)
        return changes

    facts = {name: value for name, value in arguments.items() if value}
    changes = session.run(acting, audited=AuditedAct(f"jobs.{act.name}", addresses, facts))
    if session.json:
        emit({"jobs": changes})
    else:
        for change in changes:
            where = f"{change.queue}/{change.id}" if change.queue else change.id
            say(f"{where}: {change.says}", err=change.outcome in ("refused", "missing"))
    outcomes = {change.outcome for change in changes}
    return Exit.FAILED if "refused" in outcomes else Exit.NOT_FOUND if "missing" in outcomes else Exit.OK


# ── by filter ────────────────────────────────────────────────────────────────────────────────────


def _all(
    act: _Act,
    filters: dict[str, Any],
    arguments: dict[str, Any],
    *,
    limit: int | None,
    pace: int | None,
    dry_run: bool,
    detach: bool,
    yes: bool,
) -> Exit:
    session = Session.current()
    filter = _filter(act, filters)
    if dry_run or not yes:
        count, again = session.run(lambda inspector: _count(inspector, filter, limit))
        again = again if act.name in _START_AGAIN else 0
        if dry_run or not count:
            says = f"{counted(count, 'job')} {'matches' if count == 1 else 'match'}"
            more = {"at_most_once": again} if act.name in _START_AGAIN else {}
            emit({"jobs": count, **more}) if session.json else say(says)
        if again and not session.json:
            spared = arguments["spare_at_most_once"]
            note(
                f"{again:,} of them at-most-once and started: "
                + ("left out" if spared else f"each starts again; {_SPARE} leaves them out")
            )
        if dry_run or not count:
            return Exit.OK
        to = f" to {arguments['to']}" if arguments["to"] else ""
        ask(f"{act.name} {count:,} {_in_words(act, filters, count)}{to}?")

    async def acting(inspector: Inspector) -> BulkAct:
        from penstock.inspector import JobAct
        from penstock.inspector.bulk_acts import PACE

        started = await inspector.bulk.start(
            JobAct(act.name), filter, by=acting_user(), limit=limit, pace=pace or PACE, **arguments
        )
        return started if detach else await _run(inspector, started)

    bulk = session.run(acting)
    if session.json:
        emit(bulk_row(bulk))
    elif detach:
        say(f"started {bulk.id}")
        note(f"workers do it; see `penstock bulk show {bulk.id}`")
    else:
        asked = f", {bulk.asked:,} asked to stop" if bulk.asked else ""
        refused = f", {bulk.refused:,} refused" if bulk.refused else ""
        say(f"{bulk.done:,} {act.done}{asked}{refused}")
        if bulk.again:
            note(f"{bulk.again:,} of them are at-most-once and start again")
        if bulk.error or bulk.state.value == "aborted":
            note(bulk.error or "aborted: not all jobs were reached")
        elif bulk_row(bulk)["limited"]:
            note("limit reached: more jobs may match")
    return Exit.FAILED if bulk.refused or bulk.error or bulk.state.value == "aborted" else Exit.OK


def _filter(act: _Act, filters: dict[str, Any]) -> JobFilter:
    from msgspec.structs import replace

    from penstock.inspector.job_acts import JobAct, usual_states

    filter = read_search(**filters, by="enqueued", reverse=False).filter
    if filter.states or not act.which:
        return filter
    return replace(filter, states=usual_states(JobAct(act.name)))


async def _count(inspector: Inspector, filter: JobFilter, limit: int | None) -> tuple[int, int]:
    """The number of jobs, and of those that are at-most-once and have started."""
    selected = 0, 0
    async for selected in inspector.bulk.selected(filter, limit=limit):
        if sys.stderr is not None and sys.stderr.isatty():
            status(f"counting: {counted(selected[0], 'job')} so far")
    if selected[0] and sys.stderr is not None and sys.stderr.isatty():
        status("")
    return selected


async def bulk_steps(inspector: Inspector, started: BulkAct) -> AsyncGenerator[BulkAct, None]:
    """Run a bulk act here until it has ended; yields its progress. Workers may take part in it."""
    from penstock.inspector.bulk_acts import PacedSteps

    steps, bulk = PacedSteps(inspector.bulk, started.id, f"{acting_user()} {started.id}"), started
    while bulk.state.value == "running":
        stepped, pause = await steps.next()
        await asyncio.sleep(pause)
        if stepped is None:  # a worker was quicker, or it has ended
            stepped = await inspector.bulk.get(started.id)
        if stepped is None:
            raise CommandError(f"the bulk act {started.id} is gone")
        bulk = stepped
        yield bulk


async def _run(inspector: Inspector, started: BulkAct) -> BulkAct:
    """Run a bulk act here, with its progress at a terminal, until it has ended. Ctrl-C aborts it."""
    bulk, shows = started, sys.stderr is not None and sys.stderr.isatty()
    try:
        async with aclosing(bulk_steps(inspector, started)) as steps:
            async for bulk in steps:
                if shows:
                    status(f"{bulk_line(bulk)}; Ctrl-C aborts")
    except asyncio.CancelledError:  # Ctrl-C: the event loop cancels this task
        return await inspector.bulk.abort(started.id, by=acting_user()) or started
    finally:
        if shows:
            status("")
    return bulk


def _in_words(act: _Act, filters: dict[str, Any], count: int) -> str:
    which = " or ".join(filters["state"]) or act.which or "selected"
    of = f" of the task {filters['task']}" if filters["task"] else ""
    queues = filters["queue"]
    where = (
        f" in the {'queue' if len(queues) == 1 else 'queues'} {', '.join(queues)}"
        if queues
        else " in all queues"
    )
    more = [name for name in ("text", "header", "flow", "worker", "since", "until") if filters[name]]
    matching = f" that match --{', --'.join(more)}" if more else ""
    return f"{which} {'job' if count == 1 else 'jobs'}{of}{where}{matching}"


def bulk_line(bulk: BulkAct) -> str:
    """A bulk act's progress in a line."""
    share = f"{min(1.0, bulk.seen / bulk.total):.0%}" if bulk.total else "-"
    return f"{bulk.act.value}: {share} of {counted(bulk.total, 'job')} searched, {bulk.changed:,} reached"


def bulk_row(bulk: BulkAct) -> dict[str, Any]:
    """A bulk act as JSON."""
    import msgspec

    from penstock.core.formats import iso

    shown: dict[str, Any] = msgspec.to_builtins(bulk)
    for name in ("after", "holder", "lease_until", "reserved"):
        del shown[name]
    shown |= {"created_at": iso(bulk.created_at), "ended_at": iso(bulk.ended_at)}
    shown["limited"] = bulk.limit is not None and bulk.changed >= bulk.limit and bulk.after is not None
    return shown
