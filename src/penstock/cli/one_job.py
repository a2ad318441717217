"""Commands about one job, found by its address: `penstock jobs log`, `jobs steps` and `jobs edit`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from penstock.cli.faults import CommandError, Exit, not_found
from penstock.cli.formats import age
from penstock.cli.session import AuditedAct, Command, DefaultGroup, Session
from penstock.cli.show import emit, note, say, table
from penstock.cli.watching import follow as follow_store
from penstock.core.formats import instant

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.core.job import Job, NewJob, Ref
    from penstock.inspector import Change, DurableStepView, Inspector, JobView, StepsView
    from penstock.stores.contract import Store
    from penstock.stores.job_log import LogLine


def no_job(address: str) -> CommandError:
    """The error for an address without a job."""
    return not_found(f"there is no job {address!r}: it was never enqueued here, or is no longer kept")


def ambiguous(address: str, found: Sequence[Ref]) -> CommandError:
    """The error for a bare id that several queues have."""
    places = ", ".join(f"{ref.queue}/{ref.id}" for ref in found)
    return CommandError(f"the id {address!r} is in {len(found)} queues: name one of {places}")


def add_log(group: click.Group) -> None:
    """Add the command to the group of commands on jobs."""
    group.add_command(_log)


def log_line(line: LogLine) -> str:
    """A line of a log with its instant."""
    return f"{instant(line.at)}  {line.text}"


@click.command("log", cls=Command)
@click.argument("address", metavar="ID")
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Print new lines until the job ends, or Ctrl-C. With --json: one JSON document per line.",
)
def _log(address: str, follow: bool) -> None:
    """Print the lines that a job has logged by current_job().log()."""
    session = Session.current()
    if follow:
        follow_store(lambda store: _Followed(store, address, json=session.json).look)
        return
    job = session.run(lambda inspector: _the_job(inspector, address))
    if session.json:
        emit({"log": job.log})
    elif job.log:
        _print(job.log, json=False)
    else:
        note("this job has logged no lines")


# ── private ──────────────────────────────────────────────────────────────────────────────────────


async def _the_job(inspector: Inspector, address: str) -> JobView:
    found = await inspector.job(address)
    if not found:
        raise no_job(address)
    if len(found) > 1:
        raise ambiguous(address, [job.ref for job in found])
    return found[0]


class _Followed:
    """Prints the lines of a job since the last look, until it has ended."""

    def __init__(self, store: Store, address: str, *, json: bool) -> None:
        from penstock.inspector import Inspector

        self._inspector = Inspector(store)
        self._address = address
        self._json = json
        self._shown: int | None = None

    async def look(self) -> bool:
        """Print them; returns whether more may come."""
        if self._shown is None:
            job = await _the_job(self._inspector, self._address)
            self._address, self._shown = f"{job.queue}/{job.id}", 0
        else:
            found = await self._inspector.job(self._address)
            if not found:  # the job has ended, and is not kept
                return False
            (job,) = found
        _print(job.log[self._shown :], json=self._json)
        self._shown = len(job.log)
        return job.ended_at is None


def _print(lines: Sequence[LogLine], *, json: bool) -> None:
    for line in lines:
        if json:
            emit(line, on_one_line=True)
        else:
            say(log_line(line))


_ID = click.argument("address", metavar="ID")
_STEP = click.argument("step", metavar="STEP")


def add_steps(group: click.Group) -> None:
    """Add the commands to the group of commands on jobs."""
    group.add_command(_steps)


@click.group("steps", cls=DefaultGroup, default="list")
def _steps() -> None:
    """List, drop and replace the durable steps of a job.

    `penstock jobs steps ID` lists them. STEP is a name as the list shows it.
    """


@_steps.command("list", cls=Command)
@_ID
def _list(address: str) -> None:
    """List the latest steps of a job, oldest first."""
    session = Session.current()

    async def acting(inspector: Inspector) -> StepsView | None:
        return await inspector.flows.steps(await _address(inspector, address))

    found = session.run(acting)
    if found is None:
        raise no_job(address)
    if session.json:
        emit(found)
        return
    rows = [(_name(step), _what(step), f"{step.size:,}", age(step.at)) for step in found.steps]
    table(("STEP", "WHAT", "BYTES", "STORED"), rows, empty="this job has stored no steps", spare=("STORED",))
    if found.failed is not None:
        note(f"the flow failed, and its steps are undone: {found.failed}")
    if found.total > len(found.steps):
        note(f"the last {len(found.steps):,} of {found.total:,} steps; all names: `penstock jobs show`")


@_steps.command("drop", cls=Command)
@_ID
@_STEP
def _drop(address: str, step: str) -> Exit:
    """Forget a step: the job's next run does it again.

    Its failed tries are forgotten, too, and a wait ends: its signal goes to others. A suspended job runs at
    once; retry one that is parked or has ended.
    """
    return _edit_step(address, step, "jobs.drop-step", lambda i, at: i.flows.drop_step(at, step))


@_steps.command("set", cls=Command)
@_ID
@_STEP
@click.argument("value", metavar="JSON")
def _set(address: str, step: str, value: str) -> Exit:
    """Replace the value of a step by JSON: the job's next run gets it.

    A step that has failed has the value then, and a wait ends with it. A suspended job runs at once; retry
    one that is parked or has ended.

    \b
    penstock jobs steps set 019a4c2e-7d01-7aaa-8bbb-0123456789ab step/charge '{"id": "p-7"}'
    """
    given = value.encode(errors="surrogateescape")
    return _edit_step(address, step, "jobs.set-step", lambda i, at: i.flows.set_step(at, step, given), value)


def _edit_step(
    address: str,
    step: str,
    act: str,
    edit: Callable[[Inspector, str], Awaitable[Change]],
    data: str | None = None,
) -> Exit:
    async def acting(inspector: Inspector) -> Change:
        return await edit(inspector, await _address(inspector, address))

    session = Session.current()
    facts = {"step": step} if data is None else {"step": step, "data": data}
    change = session.run(acting, audited=AuditedAct(act, [address], facts))
    if session.json:
        emit({"jobs": [change]})
    else:
        say(f"{change.queue}/{change.id}: {change.says}", err=change.outcome != "done")
    return {"done": Exit.OK, "missing": Exit.NOT_FOUND}.get(change.outcome, Exit.FAILED)


async def _address(inspector: Inspector, given: str) -> str:
    found = await inspector.refs(given)
    if not found:
        raise no_job(given)
    if len(found) > 1:
        raise ambiguous(given, found)
    return f"{found[0].queue}/{found[0].id}"


def _name(step: DurableStepView) -> str:
    from penstock.inspector import short_name

    return short_name(step.stored)


def _what(step: DurableStepView) -> str:
    facts = []
    if step.waits:
        facts.append(f"waits, until {instant(step.due_at)}" if step.due_at is not None else "waits")
    if step.failed is not None:
        facts.append(f"failed: {step.failed}")
    if step.cut:
        facts.append("cut off")
    if step.tries:
        facts.append(f"{step.tries} failed {'try' if step.tries == 1 else 'tries'}")
    if step.undone:
        facts.append("undone")
    if step.jobs:
        facts.append(f"{step.jobs:,} {'job' if step.jobs == 1 else 'jobs'}")
    facts += [f"a signal set aside: {one.why}" for one in step.aside]
    return "; ".join(facts) or ("undone" if step.kind == "undo" else "done")


def add_edit(group: click.Group) -> None:
    """Add the command to the group of commands on jobs."""
    group.add_command(_edit)


@click.command("edit", cls=Command)
@click.argument("address", metavar="ID")
@click.option("--args", "args", metavar="JSON", help="Positional arguments, as a JSON array.")
@click.option("--kwargs", "kwargs", metavar="JSON", help="Arguments by name, as a JSON object.")
@click.option(
    "--if-version",
    "version",
    metavar="VERSION",
    help="Refuse a job whose arguments have changed since `jobs show --json` gave this version.",
)
@click.option(
    "--retry",
    is_flag=True,
    help="Make the job available now, with all attempts. An ended job is replaced by a copy with a new id; "
    "a completed one stays.",
)
def _edit(address: str, args: str | None, kwargs: str | None, version: str | None, retry: bool) -> Exit:
    """Replace all arguments of a queued job. With --retry, also those of an ended one.

    With an app that knows the task, the arguments are checked against its signature. The job keeps its id,
    due time, attempts and unique key.

    \b
    penstock jobs edit 019a4c2e-7d01-7aaa-8bbb-0123456789ab --kwargs '{"user_id": 43}'
    """
    if args is None and kwargs is None:
        raise click.UsageError("no arguments: give --args or --kwargs; --args '[]' for a call without any")
    positional = None if args is None else _json(args, "--args", list[msgspec.Raw])
    named = None if kwargs is None else _json(kwargs, "--kwargs", dict[str, msgspec.Raw])
    session = Session.current()
    app, unchecked = _app(session), set[str]()

    def rewrite(job: Job) -> NewJob:
        from penstock.app.job_edits import edited_call, task_of

        if app is None or task_of(app, job) is None:
            unchecked.add(job.task)
        return edited_call(job, positional, named, app)

    async def acting(inspector: Inspector) -> Change:
        found = await inspector.refs(address)
        if not found:
            raise no_job(address)
        if len(found) > 1:
            raise ambiguous(address, found)
        edit = inspector.edit_and_retry if retry else inspector.edit
        return await edit(found[0], rewrite, version=version)

    given = {"args": args, "kwargs": kwargs, "retry": "yes" if retry else None}
    facts = {name: text for name, text in given.items() if text is not None}
    change = session.run(acting, audited=AuditedAct("jobs.edit", [address], facts))
    if session.json:
        emit({"jobs": [change]})
    else:
        say(f"{change.queue}/{change.id}: {change.says}", err=change.outcome != "done")
    if unchecked and change.outcome == "done":
        note(f"no app here knows the task {min(unchecked)!r}: the arguments are not checked")
    return {"done": Exit.OK, "missing": Exit.NOT_FOUND}.get(change.outcome, Exit.FAILED)


def _app(session: Session) -> App | None:
    """The app that the options or settings name, with all its tasks; None if they name none."""
    if "url" in session.options or not session.load().config.app:
        return None
    return session.open_app()


def _json(text: str, option: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise click.UsageError(f"{option} is not valid: {error}") from None
