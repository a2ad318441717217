"""`penstock workers`: list the workers and the jobs they run; quiet, drain, stop and restart them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from penstock.cli.completing import complete_worker
from penstock.cli.faults import CommandError, Exit, not_found
from penstock.cli.formats import age, progress_text, span
from penstock.cli.session import AuditedAct, Command, Session, acting_user, shared_options
from penstock.cli.show import ask, emit, note, say, say_lines, table
from penstock.cli.watching import Listing, watch_option, watched
from penstock.core.formats import milliseconds, seconds
from penstock.core.text import counted

if TYPE_CHECKING:
    from penstock.core.job import Job
    from penstock.inspector import Inspector, SentCommand, WorkerView

#: Number of jobs shown per worker.
_JOBS = 20


@click.group(
    "workers",
    invoke_without_command=True,
    short_help="List workers and their jobs; quiet, drain, stop or restart workers.",
)
@click.option(
    "--jobs",
    "-n",
    type=click.IntRange(1, 1_000),
    default=_JOBS,
    show_default=True,
    metavar="N",
    help="Maximum number of jobs to show per worker.",
)
@click.pass_context
def command(context: click.Context, jobs: int) -> None:
    """List worker processes with their queues and running jobs, or tell them what to do.

    A worker is named by its id, or by the first characters of its id.
    """
    if context.invoked_subcommand is None:
        watched(lambda: _list(jobs))


command.params.extend([*shared_options(), watch_option()])


@command.command("list", cls=Listing)
def list_() -> None:
    """List worker processes with their queues and running jobs."""
    _list(_JOBS)


def _act(act: str, says: str) -> None:
    """Add a command that tells workers to do something."""

    @command.command(
        act,
        cls=Command,
        help=f"{says}\n\nThe command goes through the store: no access to the workers' machines is needed.",
    )
    @click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=complete_worker)
    @click.option("--all", "all_", is_flag=True, help="Select all workers.")
    @click.option("--host", metavar="HOST", help="Select all workers of a host.")
    @click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation of --all or --host.")
    @click.option(
        "--wait",
        metavar="DURATION",
        default="10s",
        show_default=True,
        help="Maximum time to wait for the workers' answers.",
    )
    def tell(ids: tuple[str, ...], all_: bool, host: str | None, yes: bool, wait: str) -> Exit:
        if bool(ids) + all_ + (host is not None) != 1:
            raise click.UsageError("name workers by id, or select them with --all or --host")
        return _tell(act, ids, host, yes=yes or bool(ids), wait=milliseconds(wait, what="--wait") / 1000)


_act("quiet", "Let workers fetch no more jobs. Running jobs continue.")
_act("drain", "Let workers fetch no more jobs, wait for running ones up to their drain timeout, and end.")
_act("stop", "Let workers end at once. Running jobs are returned to their queues.")
_act("restart", "Replace worker processes: each drains when its replacement is ready.")
_act("stacks", "Show what workers do: the stacks of running jobs, threads and asyncio tasks.")


# ── telling ──────────────────────────────────────────────────────────────────────────────────────


def _tell(act: str, ids: Sequence[str], host: str | None, *, yes: bool, wait: float) -> Exit:
    session = Session.current()
    workers = session.run(lambda i: i.workers(jobs=1))
    chosen = _named(workers, ids) if ids else [w.id for w in workers if host in (None, w.host)]
    if not chosen:
        raise not_found(
            "there are no workers" if host is None else f"there is no worker on the host {host!r}"
        )
    if not yes and act != "stacks":
        ask(f"{act} {counted(len(chosen), 'worker')}?")

    async def acting(inspector: Inspector) -> list[SentCommand]:
        return await inspector.tell_workers(chosen, act, by=acting_user(), timeout=wait)

    told = session.run(acting, audited=AuditedAct(f"workers.{act}", chosen))
    if session.json:
        emit({"workers": told})
    else:
        for one in told:
            _print_reply(one, act)
    if any(one.reply is None for one in told):
        return Exit.UNAVAILABLE
    return Exit.OK if all(one.reply and one.reply.done for one in told) else Exit.FAILED


def _named(workers: Sequence[WorkerView], ids: Sequence[str]) -> list[str]:
    """The ids of the workers whose ids begin with these texts. Raises CommandError."""
    chosen = []
    for text in dict.fromkeys(ids):
        found = [w.id for w in workers if w.id.startswith(text)]
        if not found:
            raise not_found(f"there is no worker {text!r}; `penstock workers` lists the workers")
        if len(found) > 1 and text not in found:
            raise CommandError(
                f"{text!r} begins the ids of {len(found)} workers: name one of {', '.join(found)}"
            )
        chosen.append(text if text in found else found[0])
    return chosen


def _print_reply(one: SentCommand, act: str) -> None:
    if one.reply is None:
        say(f"{one.worker}: no answer; it may still obey", err=True)
    elif act == "stacks" and one.reply.done:
        say(f"worker {one.worker}")
        say_lines(one.reply.text)
    else:
        say(f"{one.worker}: {one.reply.text}", err=not one.reply.done)


# ── listing ──────────────────────────────────────────────────────────────────────────────────────


def _list(jobs: int) -> None:
    session = Session.current()
    workers = session.run(lambda i: i.workers(jobs=jobs))
    if session.json:
        emit({"workers": workers})
        return
    _print_workers(workers)
    held = [(worker, job) for worker in workers for job in worker.jobs]
    if held:
        say()
        _print_jobs(held)
    for worker in workers:
        if worker.more:
            note(f"{worker.id} holds more than the {counted(len(worker.jobs), 'job')} shown: raise -n")


def _print_workers(workers: Iterable[WorkerView]) -> None:
    head = ("WORKER", "HOST", "PID", "STATE", "RUNNING", "SLOTS", "QUEUES", "MEMORY", "CPU", "STARTED")
    rows = []
    for w in workers:
        at_work = (w.state, str(w.running), str(w.concurrency), ",".join(w.queues))
        memory = f"{w.memory / 1e6:.0f} MB" if w.memory else "-"
        seen = f"{span(w.silent)} ago"
        rows.append(
            (w.id, w.host, str(w.pid), *at_work, memory, span(w.cpu), age(w.started_at), seen, w.version)
        )
    spare = ("CPU", "VERSION", "STARTED", "PID", "MEMORY", "HOST", "SLOTS", "SEEN")
    table((*head, "SEEN", "VERSION"), rows, empty="no workers", spare=spare)


def _print_jobs(held: Iterable[tuple[WorkerView, Job]]) -> None:
    head = ("JOB", "QUEUE", "TASK", "ATTEMPT", "AGE", "FUNCTION", "PROGRESS", "WORKER")
    rows = []
    for worker, job in held:
        age_ = seconds(job.fetched_at, worker.now)
        function = "started" if job.started else "-"
        progress = "-" if job.progress is None else progress_text(job.progress)
        rows.append(
            (job.id, job.queue, job.task, str(job.attempt), span(age_), function, progress, worker.id)
        )
    table(head, rows, empty="", spare=("WORKER", "FUNCTION", "ATTEMPT", "PROGRESS", "QUEUE"))
