"""`penstock demo`: run real work on the embedded store, kill a worker midway, check that nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.faults import Exit
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, facts, note, say
from penstock.config import mask_url
from penstock.core.errors import ConfigError
from penstock.core.text import counted

if TYPE_CHECKING:  # not imported for `penstock --help`
    from penstock.demo.conductor import Results
    from penstock.demo.demo_folder import DemoFolder
    from penstock.verify.ledger import Verdict


@click.command("demo", cls=Command)
@click.option(
    "--path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the .py files to process.  [default: this Python's standard library]",
)
@click.option("--no-kill", is_flag=True, help="Do not kill a worker.")
@click.option("--no-ledger", is_flag=True, help="Record nothing besides the store; only compare the results.")
@click.option(
    "--workdir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the store, the ledger and the log.  [default: a new temporary directory]",
)
@click.option(
    "--keep/--no-keep",
    default=True,
    help="Keep files and jobs after a success; after a failure they are always kept.  [default: keep]",
)
@click.option("--serve", is_flag=True, help="Open the dashboard with sample data instead, until Ctrl-C.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=None,
    help="With --serve: port of the dashboard.  [default: 8080, or the next free port]",
)
@click.option("--open", "opens", is_flag=True, help="With --serve: open a browser.")
def command(
    path: Path | None,
    no_kill: bool,
    no_ledger: bool,
    workdir: Path | None,
    keep: bool,
    serve: bool,
    port: int | None,
    opens: bool,
) -> int:
    """Run real work with two workers and kill one midway.

    Each .py file of the standard library is parsed by a job. Two checks follow: the results are compared
    with a computation without Penstock, and the jobs with a ledger that producers and workers kept outside
    the store. The exit code is 1 if anything was lost or differs.

    With --serve: the dashboard of a shop with a day of jobs in all states, and running workers. The store is
    removed at the end, unless --workdir names a directory for it.
    """
    if serve:
        from penstock.cli.demo_serving import serve_sample

        return serve_sample(workdir, port=port, opens=opens)
    from penstock.cli.demo_serving import display
    from penstock.cli.serving import interruptible
    from penstock.demo.conductor import conduct
    from penstock.demo.survey import standard_library

    session = Session.current()
    root = (path or standard_library()).resolve()
    folder = _demo_folder(workdir, session.options.get("url"), session.options.get("namespace"))
    folder = replace(folder, with_ledger=not no_ledger)
    began = time.monotonic()
    try:
        with interruptible(), display(quiet=session.json) as show:
            results = conduct(root, folder, kill=not no_kill, tell=show)
    except BaseException:  # boundary: after any error the files of the run are kept
        note(f"penstock: the demo did not end; its files are in {folder.workdir}")
        raise
    if session.json:
        emit(_document(results, folder, time.monotonic() - began))
    else:
        _summarise(results, folder, kept=keep or not results.good)
    if not keep and results.good:
        if folder.fresh:
            _clear(folder)
        if workdir is None:
            shutil.rmtree(folder.workdir, ignore_errors=True)
    return Exit.OK if results.good else Exit.FAILED


# ── where ────────────────────────────────────────────────────────────────────────────────────────


def _demo_folder(workdir: Path | None, url: str | None, namespace: str | None) -> DemoFolder:
    from penstock.demo.demo_folder import DemoFolder

    if url is not None and url.startswith("memory:"):
        raise ConfigError(
            f"{url} cannot be shared by processes, and the demo starts worker processes: "
            "leave --url out for a SQLite file, or name another store"
        )
    directory = workdir or Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        directory = Path(tempfile.mkdtemp(prefix="run-", dir=directory))
    directory = directory.resolve()
    if url is None:
        return DemoFolder(directory, f"sqlite:///{directory / 'jobs.db'}", namespace or "")
    # an existing store: use a new namespace, so that only jobs of the demo are counted
    fresh = namespace is None
    return DemoFolder(
        directory,
        url,
        f"demo-{secrets.token_hex(4)}" if namespace is None else namespace,
        external_store=True,
        fresh=fresh,
    )


def _clear(folder: DemoFolder) -> None:
    """Remove the jobs and queues of the demo from an existing store."""
    from penstock.demo.conductor import QUEUES
    from penstock.inspector import Inspector
    from penstock.stores.connect import connect

    async def clear(inspector: Inspector) -> None:
        for queue in QUEUES:
            await inspector.purge(queue)
            await inspector.delete_queue(queue)

    with contextlib.closing(connect(folder.url, namespace=folder.namespace)) as store:
        asyncio.run(clear(Inspector(store)))


# ── when it is over ──────────────────────────────────────────────────────────────────────────────


def _summarise(results: Results, folder: DemoFolder, *, kept: bool) -> None:
    verdict, found = results.verdict, results.found
    same = "NOT the same as" if results.differing else "the same as"
    lost = f"{results.enqueued - results.completed} are not" if verdict is None else f"{verdict.lost} lost"
    rows = [
        ("files", f"{found.files:,} below {results.root} ({found.unparsed} do not parse)"),
        ("lines", f"{found.lines:,} with {found.functions:,} functions and {found.classes:,} classes"),
        ("longest function", f"{found.longest}, {found.longest_lines:,} lines"),
        ("checked", f"every file, hash and directory: {same} computed without Penstock"),
        ("jobs", f"{results.enqueued:,} enqueued, {results.completed:,} completed, {lost}"),
        *([] if verdict is None else _ledger_rows(results, verdict)),
        ("time", f"{results.seconds:.1f} s, {results.parse_seconds:.1f} s of them parsing"),
        ("plain processes", f"{results.direct_seconds:.1f} s for the same computation without Penstock"),
        ("speed", f"{results.rate:,.0f} jobs/s"),
    ]
    width = max(len(name) for name, _ in rows)
    say()
    facts([(name.rjust(width), value) for name, value in rows])
    say()
    findings = [] if verdict is None else verdict.findings
    for finding in [*results.differing[:10], *map(str, findings[:20])]:
        say(finding, fg="red")
    if kept:
        _say_where(folder)
    outcome = "nothing was lost" if results.good else "something is WRONG"
    say(outcome, fg="green" if results.good else "red", bold=True)


def _say_where(folder: DemoFolder) -> None:
    files = "the ledger and the workers' log" if folder.with_ledger else "the workers' log"
    if folder.external_store:
        say(f"{files} are in {folder.workdir}, the jobs in the store:")
    else:
        say(f"the jobs, {files} are in {folder.workdir}:")
    say(f"  {_look_command(folder)}")
    if folder.fresh:
        say(f"  {_remove_command(folder)}")


def _ledger_rows(results: Results, verdict: Verdict) -> Iterator[tuple[str, str]]:
    yield "retried", f"{verdict.retried} after a failure"
    yield "delayed", f"{results.delayed}, {_lateness(verdict.lateness)}"
    yield from _crash_rows(verdict)


def _lateness(late: list[int]) -> str:
    if not late:
        return "none started"
    if late[0] < 0:
        return f"one of them {-late[0]} ms too EARLY"
    return f"none early, the latest {late[-1]} ms late"


def _crash_rows(verdict: Verdict) -> Iterator[tuple[str, str]]:
    for crash in verdict.crashes:
        yield (
            "killed",
            f"worker process {crash.pid} by {crash.cause}, with {counted(len(crash.held), 'started job')}",
        )
        for one in crash.held[:20]:
            again = "not again" if one.seconds is None else f"attempt {one.attempt} {one.seconds:.2f} s later"
            yield "", f"{one.task.rpartition('.')[2]} {one.id}: attempt {one.attempt_before}, then {again}"
    reruns, started = verdict.rerun_after_crash, sum(len(crash.held) for crash in verdict.crashes)
    more = (
        f"; {reruns - started} of them had ended, but their outcomes were not stored"
        if reruns > started
        else ""
    )
    yield "run again", f"{reruns} after the crash{more}"
    if verdict.recovery is not None:
        yield "recovered", f"in {verdict.recovery:.2f} s"
    elif not verdict.crashes:
        yield "killed", "no worker"


def _look_command(folder: DemoFolder) -> str:
    return f"penstock jobs list {_where(folder)}"


def _remove_command(folder: DemoFolder) -> str:
    from penstock.demo.conductor import QUEUES

    return f"penstock queues delete --force {' '.join(QUEUES)} {_where(folder)}"


def _where(folder: DemoFolder) -> str:
    """The options --url and --namespace of the demo's store, with the password masked."""
    namespace = f" --namespace {folder.namespace}" if folder.namespace else ""
    return f"--url {shlex.quote(mask_url(folder.url))}{namespace}"


def _document(results: Results, folder: DemoFolder, seconds: float) -> dict[str, Any]:
    return {
        "good": results.good,
        "root": str(results.root),
        "found": results.found,
        "direct": results.direct,
        "differing": results.differing[:100],
        "jobs": {"enqueued": results.enqueued, "completed": results.completed, "delayed": results.delayed},
        "jobs_per_second": round(results.rate, 1),
        "seconds": round(seconds, 2),
        "work_seconds": round(results.seconds, 2),
        "parse_seconds": round(results.parse_seconds, 2),
        "direct_seconds": round(results.direct_seconds, 2),
        "workdir": str(folder.workdir),
        "url": mask_url(folder.url),
        "namespace": folder.namespace,
        "look": _look_command(folder),
        "pid": os.getpid(),
        **({} if results.verdict is None else _ledger_facts(results, results.verdict)),
    }


def _ledger_facts(results: Results, verdict: Verdict) -> dict[str, Any]:
    """What the ledger adds to the document."""
    return {
        "jobs": {
            "enqueued": results.enqueued,
            "completed": verdict.completed,
            "lost": verdict.lost,
            "runs": verdict.runs,
            "retried": verdict.retried,
            "delayed": results.delayed,
            "early": verdict.early,
            "rerun_after_crash": verdict.rerun_after_crash,
            "reruns": verdict.reruns,
        },
        "crashes": verdict.crashes,
        "recovery_seconds": verdict.recovery,
        "latest_ms": verdict.lateness[-1] if verdict.lateness else None,
        "findings": [str(finding) for finding in verdict.findings[:100]],
    }
