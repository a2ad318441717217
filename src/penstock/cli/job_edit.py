"""`penstock jobs edit`: new arguments for a queued job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from penstock.cli.audited_acts import AuditedAct
from penstock.cli.faults import Exit
from penstock.cli.job_addresses import ambiguous, no_job
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, note, say

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.core.job import Job, NewJob
    from penstock.inspector import Change, Inspector

__all__ = ["add_edit"]


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
