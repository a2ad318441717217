"""`penstock queues`: list, show, limit, pause, close, purge and delete queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.completing import complete_queue
from penstock.cli.faults import Exit, not_found
from penstock.cli.formats import age
from penstock.cli.session import AuditedAct, Command, Session
from penstock.cli.show import ask, emit, note, say, table
from penstock.cli.watching import Listing
from penstock.core.errors import did_you_mean
from penstock.core.formats import format_ms, instant
from penstock.core.job import TERMINAL, State
from penstock.core.limits import LimitChange
from penstock.core.text import counted

if TYPE_CHECKING:
    from penstock.core.limits import QueueLimits
    from penstock.inspector import Inspector, QueueView

#: States in the order of the columns: queued and running, then ended.
_STATES = sorted(State, key=lambda state: state in TERMINAL)
_PURGED = [state for state in _STATES if state is not State.RUNNING]
_ALWAYS_SHOWN = (State.AVAILABLE, State.RUNNING, State.DEAD)
_NAMES = click.argument("names", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queue)


@click.group("queues")
def command() -> None:
    """List, show, limit, pause, close, purge and delete queues."""


@command.command("list", cls=Listing)
def list_() -> None:
    """List all queues with their job counts by state, the age of the oldest ready job, and live workers."""
    session = Session.current()
    queues = session.run(lambda i: i.queues())
    if session.json:
        emit({"queues": queues})
        return
    # states without jobs have no column
    states = [s for s in _STATES if s in _ALWAYS_SHOWN or any(queue.counts.get(s) for queue in queues)]
    table(
        ("QUEUE", *(state.upper() for state in states), "OLDEST READY", "WORKERS", "STATUS"),
        [_line(queue, states) for queue in queues],
        empty="no queues yet",
        spare=[s.upper() for s in reversed(states) if s not in _ALWAYS_SHOWN],
    )


def _line(queue: QueueView, states: Sequence[State]) -> tuple[str, ...]:
    counts = [f"{queue.counts.get(state, 0) or '-'}" for state in states]
    return (
        queue.name,
        *counts,
        age(queue.oldest_available),
        "-" if queue.workers is None else f"{queue.workers}",
        _status(queue),
    )


@command.command("show", cls=Command)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queue)
def show(name: str) -> None:
    """Show all settings of a queue and their sources: operator, code, or default."""
    session = Session.current()

    async def acting(inspector: Inspector) -> QueueView:
        found = await inspector.queue(name)
        return (await _known(inspector, [name]))[0] if found is None else found

    queue = session.run(acting)
    if session.json:
        emit({"queue": queue})
        return
    table(("SETTING", "VALUE", "SET BY", "IN CODE"), list(_settings(queue)), empty="")


def _settings(queue: QueueView) -> Iterator[tuple[str, ...]]:
    from penstock.inspector.queue_views import limit_values

    by = "operator" if queue.stopped_by is None else str(queue.stopped_by)
    for name, on in (("paused", queue.paused), ("closed", queue.closed)):
        source = by if name == "paused" else "operator"
        yield name, "yes" if on else "no", source if on else "default", "-"
    if queue.throttled_until is not None:
        yield "throttled until", instant(queue.throttled_until), "-" if queue.paused else by, "-"
    if queue.held_by:
        yield "max-running held by", ", ".join(queue.held_by), "-", "-"
    set_by, by_code = queue.set_by, queue.by_code
    for name, given in limit_values(queue.limits).items():
        in_code = _shown(name, by_code[name]) if name in by_code else "-"
        yield name.replace("_", "-"), _shown(name, given), set_by.get(name, "default"), in_code


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "none"
    return format_ms(value).replace(" ", "") if name.endswith("_for") else str(value)


@command.command("parked", cls=Listing)
def parked() -> None:
    """Count parked jobs by queue and task, and name the workers that know the task, or the reason."""
    session = Session.current()
    found = session.run(lambda i: i.parked())
    if session.json:
        emit({"parked": found})
        return
    table(
        ("QUEUE", "TASK", "JOBS", "KNOWN TO", "REASON"),
        [(one.queue, one.task, f"{one.jobs}", " ".join(one.known_to) or "none", one.reason) for one in found],
        empty="no parked jobs",
    )


def _status(queue: QueueView) -> str:
    words = [word for word, on in (("paused", queue.paused), ("closed", queue.closed)) if on]
    if queue.away:
        words.append(f"away: {queue.away}")
    if queue.throttled_until is not None:
        words.append(f"throttled until {instant(queue.throttled_until)}")
    limits = " ".join(_limits(queue.limits))
    return ", ".join([*words, *([limits] if limits else [])])


def _limits(limits: QueueLimits) -> list[str]:
    """The limits that are set, named like the options of `queues set`."""
    from penstock.inspector.queue_views import limit_values

    given = limit_values(limits)
    given["on_full"] = given["on_full"] if limits.max_size is not None else None
    given["burst"] = given["burst"] if given["burst"] != 1 else None
    return [
        f"{name.replace('_', '-')}={_shown(name, value)}"
        for name, value in given.items()
        if value is not None
    ]


def _switch(name: str, says: str) -> None:
    """Add a command that calls `name` of the inspector: pause, resume, close or open."""

    @command.command(name, cls=Command, help=says)
    @_NAMES
    @click.option("--create", is_flag=True, help="Create missing queues.")
    def act(names: tuple[str, ...], create: bool) -> None:
        session = Session.current()

        async def acting(inspector: Inspector) -> list[QueueView]:
            if not create:
                await _known(inspector, names, "; --create creates it")
            verb: Callable[[str], Awaitable[QueueView]] = getattr(inspector, name)
            return [await verb(queue) for queue in names]

        queues = session.run(acting, create=create, audited=AuditedAct(f"queue.{name}", names))
        if session.json:
            emit({"queues": queues})
            return
        for queue in queues:
            say(f"{queue.name}: {_status(queue) or 'open and running'}")


_switch("pause", "Pause queues: no more jobs start. Running jobs continue, and new jobs are accepted.")
_switch("resume", "Resume paused queues.")
_switch("close", "Close queues: new jobs are refused. Workers continue with the jobs in the queue.")
_switch("open", "Open closed queues.")


class _OrNone(click.ParamType):  # type: ignore[type-arg]
    """A value, or "none", which removes the limit. Either is converted to a tuple of one."""

    def __init__(self, name: str, read: Callable[[str], Any] = str) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).lower() == "none":
            return (None,)
        try:
            return (self._read(value),)
        except ValueError:
            self.fail(f"{value!r} is neither a whole number nor 'none'.", param, ctx)


_NUMBER, _AGE = _OrNone("n|none", int), _OrNone("duration|none")


@command.command("set", cls=Command)
@_NAMES
@click.option(
    "--max-size",
    type=_NUMBER,
    help="Maximum number of queued jobs. Further enqueues are refused, or wait (--on-full).",
)
@click.option(
    "--on-full",
    metavar="RULE",
    help="What an enqueue into a full queue does: reject (raise an error), "
    "or wait (block until there is room, up to the app's full_timeout).  [default: reject]",
)
@click.option(
    "--max-running", type=_NUMBER, help="Maximum number of jobs running at the same time, across all workers."
)
@click.option(
    "--rate", type=_OrNone("rate|none"), help="Maximum rate of starts, e.g. 200/s, 100/min or 5/2s."
)
@click.option(
    "--burst",
    type=int,
    metavar="N",
    help="Burst size of --rate: how many jobs may start at once.  [default: the burst already set, else 1]",
)
@click.option(
    "--keep-finished", type=_NUMBER, help="Maximum number of completed jobs to keep, and of cancelled jobs."
)
@click.option("--keep-dead", type=_NUMBER, help="Maximum number of dead jobs to keep.")
@click.option(
    "--keep-finished-for",
    type=_AGE,
    help="Maximum age of completed and cancelled jobs; can only shorten retention.",
)
@click.option("--keep-dead-for", type=_AGE, help="Maximum age of dead jobs; can only shorten retention.")
@click.option("--throttle", type=_AGE, help="Start no jobs for this long, at most 1d; none ends a throttle.")
@click.option("--create", is_flag=True, help="Create missing queues.")
def set_(names: tuple[str, ...], create: bool, **given: Any) -> None:
    """Set limits of queues, which apply to all workers at once.

    Limits that are not given stay as they are; the value none removes a limit. A new queue has no limits.
    """
    session = Session.current()
    # a limit comes in a tuple of one, which distinguishes (None,) from an option that is not given
    given = {
        name: value[0] if isinstance(value, tuple) else value
        for name, value in given.items()
        if value is not None
    }
    if not given:
        raise click.UsageError("nothing to set: give a limit, e.g. --max-running 7")
    change = LimitChange.of(**given)

    async def acting(inspector: Inspector) -> list[QueueView]:
        if not create:
            await _known(inspector, names, "; --create creates it")
        return [await inspector.set_limits(queue, change) for queue in names]

    queues = session.run(acting, create=create, audited=AuditedAct("queue.set", names, given))
    if session.json:
        emit({"queues": queues})
        return
    for queue in queues:
        say(f"{queue.name}: {_status(queue) or 'no limits'}")


@command.command("reset", cls=Command)
@_NAMES
@click.option("--max-size", is_flag=True, help="Reset the maximum number of queued jobs.")
@click.option("--on-full", is_flag=True, help="Reset what an enqueue into a full queue does.")
@click.option("--max-running", is_flag=True, help="Reset the maximum number of running jobs.")
@click.option("--rate", is_flag=True, help="Reset the rate and its burst.")
@click.option("--keep-finished", is_flag=True, help="Reset the maximum number of completed jobs.")
@click.option("--keep-dead", is_flag=True, help="Reset the maximum number of dead jobs.")
@click.option("--keep-finished-for", is_flag=True, help="Reset the maximum age of completed jobs.")
@click.option("--keep-dead-for", is_flag=True, help="Reset the maximum age of dead jobs.")
def reset(names: tuple[str, ...], **chosen: bool) -> None:
    """Reset limits to those of the app's code, or to their defaults.

    Forgets what `penstock queues set` has set: the limits that are named, or all of them. A throttle stays.
    """
    session = Session.current()
    limits = [name for name, on in chosen.items() if on] or list(chosen)

    async def acting(inspector: Inspector) -> list[QueueView]:
        await _known(inspector, names)
        return [await inspector.reset_limits(queue, limits) for queue in names]

    facts = {"limits": ", ".join(limits)}
    queues = session.run(acting, audited=AuditedAct("queue.reset", names, facts))
    if session.json:
        emit({"queues": queues})
        return
    for queue in queues:
        say(f"{queue.name}: {_status(queue) or 'no limits'}")


@command.command("purge", cls=Command)
@_NAMES
@click.option(
    "--state",
    "-s",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in _PURGED], case_sensitive=False),
    metavar="STATE",
    help="State of the jobs to remove; may be repeated.  [default: all but running]",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def purge(names: tuple[str, ...], states: tuple[str, ...], yes: bool) -> None:
    """Remove all jobs of queues, except running ones."""
    from penstock.inspector import parse_state

    session = Session.current()
    chosen = [parse_state(state) for state in states] or _PURGED

    async def acting(inspector: Inspector) -> dict[str, int]:
        return {name: await inspector.purge(name, *([chosen] if states else [])) for name in names}

    names = tuple(dict.fromkeys(names))
    number = session.run(lambda inspector: _count(inspector, names, chosen))
    if not yes:
        ask(f"remove {counted(number, 'job')} from {', '.join(names)}?")
    facts = {"states": ", ".join(chosen)}
    _print_purged(session, session.run(acting, audited=AuditedAct("queue.purge", names, facts)))


async def _count(inspector: Inspector, names: Sequence[str], states: Sequence[State]) -> int:
    """The number of jobs of queues in these states. Raises CommandError if a queue does not exist."""
    queues = await _known(inspector, names)
    return sum(queue.counts.get(state, 0) for queue in queues for state in states)


def _print_purged(session: Session, purged: dict[str, int]) -> None:
    if session.json:
        emit({"queues": [{"name": name, "purged": n} for name, n in purged.items()]})
        return
    for name, n in purged.items():
        say(f"{name}: {counted(n, 'job')} removed")


@command.command("delete", cls=Command)
@_NAMES
@click.option(
    "--force", is_flag=True, help="Remove the jobs first. A queue with running jobs is not deleted."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation of --force.")
def delete(names: tuple[str, ...], force: bool, yes: bool) -> Exit:
    """Delete empty queues. Their settings, statistics and periodic entries are deleted, too."""
    session, names = Session.current(), tuple(dict.fromkeys(names))
    if force and not yes:
        number = session.run(lambda inspector: _count(inspector, names, _PURGED))
        ask(f"delete {', '.join(names)} and remove {counted(number, 'job')}?")

    async def acting(inspector: Inspector) -> dict[str, bool]:
        await _known(inspector, names)
        if force:
            for name in names:
                await inspector.purge(name)
        return {name: await inspector.delete_queue(name) for name in names}

    facts = {"force": "yes"} if force else {}
    deleted = session.run(acting, audited=AuditedAct("queue.delete", names, facts))
    if session.json:
        emit({"queues": [{"name": name, "deleted": gone} for name, gone in deleted.items()]})
    else:
        for name, gone in deleted.items():
            if gone:
                say(f"{name}: deleted")
            elif force:
                note(f"{name}: not deleted: jobs are running")
            else:
                note(f"{name}: not deleted: the queue is not empty; --force removes its jobs first")
    return Exit.OK if all(deleted.values()) else Exit.FAILED


async def _known(inspector: Inspector, names: Sequence[str], way_out: str = "") -> list[QueueView]:
    """The queues of these names; raises CommandError if one does not exist."""
    queues = {queue.name: queue for queue in await inspector.queues()}
    for name in names:
        if name not in queues:
            raise not_found(f"there is no queue {name!r}{did_you_mean(name, queues)}{way_out}")
    return [queues[name] for name in names]
