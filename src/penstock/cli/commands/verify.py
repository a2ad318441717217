"""`penstock verify`: a chaos run against your own server and settings, checked against a ledger."""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from penstock.cli.faults import Exit
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, facts, note, say, status, table
from penstock.core.errors import StoreError

if TYPE_CHECKING:  # not imported for `penstock --help`
    from penstock.verify.conductor import VerifyProgress
    from penstock.verify.environment import Environment
    from penstock.verify.report.report import Report, Spread
    from penstock.verify.run_folder import RunFolder

_PRIVATE = ("sqlite", "redis", "redis-always", "redis-everysec", "redis-sentinel", "redis-cluster")


@click.command("verify", cls=Command)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="N",
    help="Minutes of fault injection; then the run drains.",
)
@click.option(
    "--faults",
    default="all",
    metavar="KINDS",
    help="Kinds of faults, e.g. kill-worker,storm.  [default: all kinds that are possible]",
)
@click.option(
    "--seed", metavar="N", type=click.IntRange(min=0), help="Seed of faults and load.  [default: random]"
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="Number of worker programs; every second one is a supervisor with two processes.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=100.0,
    show_default=True,
    metavar="N",
    help="Jobs per second of all producers together.",
)
@click.option(
    "--process-share",
    type=click.FloatRange(0, 1),
    metavar="N",
    help="Share of jobs that run in a process of their own, e.g. 0.5.  [default: 0.03]",
)
@click.option(
    "--flow-share",
    type=click.FloatRange(0, 1),
    default=0.02,
    show_default=True,
    metavar="N",
    help="Share of flows in the load, e.g. 0.2: chords, chains, durable steps, signals, sagas.",
)
@click.option(
    "--private",
    type=click.Choice(_PRIVATE),
    help="Start a private store for the run, which adds faults of the server.",
)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the report to this file, as JSON.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the report to this file, as HTML.",
)
@click.option(
    "--dir",
    "workdir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for ledger and logs, which are kept.  [default: a temporary directory]",
)
def command(
    minutes: float,
    faults: str,
    seed: int | None,
    workers: int,
    rate: float,
    process_share: float | None,
    flow_share: float,
    private: str | None,
    report_file: Path | None,
    html: Path | None,
    workdir: Path | None,
) -> int:
    """Check that your store keeps its promises under faults.

    Verify starts producers and workers in a new namespace. Meanwhile it kills and stops workers, cuts
    connections, and lets tasks crash. A ledger outside the store records all events, and is compared with
    the store at the end. Nothing else in the store is touched, and the namespace is emptied.

    The exit code is 0 if all promises were kept, and 1 if one was broken.
    """
    from penstock.verify.conductor import conduct, interruptible
    from penstock.verify.faults.plan import choose
    from penstock.verify.run_folder import RunRequest

    session = Session.current()
    if "namespace" in session.options:
        raise click.UsageError("verify creates its own namespace: leave --namespace out")
    shares = (("--process-share", process_share or 0.0), ("--flow-share", flow_share))
    for option, number in (("--minutes", minutes), ("--rate", rate), *shares):
        if math.isnan(number):
            raise click.UsageError(f"{option} {number} is not a number")
    for file in (report_file, html):
        _can_be_written(file, workdir)
    with interruptible(), _folder(workdir) as folder, _environment(session, private, folder) as environment:
        chosen = choose([word.strip() for word in faults.split(",")], environment.capabilities)
        place = _place(folder, environment)
        environment.check()
        seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        request = RunRequest(minutes * 60, chosen, seed, workers, rate, process_share, flow_share)
        note(f"seed {seed}, namespace {place.namespace}, {len(chosen)} kinds of faults; logs in {folder}")
        try:
            with _display(request.seconds) as show:
                report = conduct(place, environment, request, show)
        finally:
            _clean(environment, place)
    _hand_over(report, report_file, html, json=session.json)
    if report.kept and workdir is None:
        shutil.rmtree(folder, ignore_errors=True)
    elif not report.kept:
        note(f"the ledger and the logs are in {folder}")
    return Exit.OK if report.kept else Exit.FAILED


# ── where ────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _folder(workdir: Path | None) -> Iterator[Path]:
    if workdir is not None and workdir.is_dir() and any(workdir.iterdir()):
        raise click.UsageError(f"--dir {workdir} is not empty: name an empty or a new directory")
    folder = workdir or Path(tempfile.mkdtemp(prefix="penstock-verify-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder.resolve()
    finally:
        with contextlib.suppress(OSError):  # the folder is not empty, unless the run was refused
            folder.rmdir()


def _can_be_written(file: Path | None, workdir: Path | None) -> None:
    """Raise UsageError before the run if a report file cannot be written."""
    folder = None if file is None else file.resolve().parent
    if folder is None or (workdir is not None and folder == workdir.resolve()):
        return
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise click.UsageError(f"{file} cannot be written: {folder} is not a writable directory")


@contextlib.contextmanager
def _environment(session: Session, private: str | None, folder: Path) -> Iterator[Environment]:
    from penstock.verify.environment import environment_on, private_environment

    if private is not None and {"url", "app"} & session.options.keys():
        raise click.UsageError(f"--private {private} starts its own store: leave --url and --app out")
    environment = environment_on(session.url()) if private is None else private_environment(private, folder)
    try:
        yield environment
    finally:
        environment.close()


def _place(folder: Path, environment: Environment) -> RunFolder:
    from penstock.verify.run_folder import RunFolder, settings_of_run

    settings = settings_of_run()
    return RunFolder(
        folder,
        environment.url,
        environment.new_namespace(),
        worker_url=environment.worker_url,
        settings=settings,
    )


def _clean(environment: Environment, place: RunFolder) -> None:
    """Empty the namespace of the run. If that fails, print a note, so that the report is not lost."""
    from penstock.verify.conductor import without_interrupts

    try:
        with without_interrupts():
            environment.wipe(place.namespace)
    except StoreError as error:
        if not environment.capabilities.private:  # a private store is deleted as a whole
            note(f"the namespace {place.namespace} cannot be emptied and stays in the store: {error}")


# ── while it runs ────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _display(seconds: float) -> Iterator[Callable[[VerifyProgress], None]]:
    """Show progress: one updated line at a terminal, otherwise a new line from time to time."""
    if not sys.stderr.isatty():
        yield _lines(seconds)
        return
    last = ""

    def show(progress: VerifyProgress) -> None:
        nonlocal last
        last = progress.news or last
        status(f"{_where(progress, seconds)}  {last}")

    try:
        yield show
    finally:
        status("")


def _lines(seconds: float) -> Callable[[VerifyProgress], None]:
    shown_at, phase = 0.0, ""

    def show(progress: VerifyProgress) -> None:
        nonlocal shown_at, phase
        if progress.phase != phase or time.monotonic() - shown_at >= 10.0:
            shown_at, phase = time.monotonic(), progress.phase
            note(_where(progress, seconds))

    return show


def _where(progress: VerifyProgress, seconds: float) -> str:
    if progress.phase == "chaos":
        return f"{progress.at:.0f} of {seconds:.0f} s, {progress.faults} faults"
    left = f": {progress.unfinished} jobs left" if progress.unfinished is not None else ""
    return f"{progress.phase}{left}"


# ── when it is over ──────────────────────────────────────────────────────────────────────────────


def _hand_over(report: Report, report_file: Path | None, html: Path | None, *, json: bool) -> None:
    if report_file is not None:
        report_file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if html is not None:
        from penstock.verify.report.page import page

        html.write_text(page(msgspec.to_builtins(report)), encoding="utf-8")
    if json:
        emit(report)
    else:
        _show(report)


def _show(report: Report) -> None:
    facts(
        [
            ("store", f"{report.url} ({report.store})"),
            ("seed", str(report.seed)),
            ("time", f"{report.seconds:.0f} s"),
            ("enqueued", f"{report.enqueued:,} of {report.offered:,} offered; {report.refused:,} refused, "
                         f"{report.unknown:,} without an answer"),
            ("completed", f"{report.completed:,}; {report.cancelled:,} cancelled, {report.dead:,} dead"),
            ("lost", f"{report.lost:,}"),
            ("flows", _flows(report)),
            ("forgotten", f"{report.forgiven:,} jobs or ends, as the store's settings allow"),
            ("unfinished", f"{report.unfinished:,}"),
            ("duplicated", f"{report.duplicated:,}; {report.unexplained:,} unexplained"),
            ("early, late", f"{report.early:,}, {report.late:,}"),
            ("stale", f"{report.stale:,} outcomes of lost leases, refused"),
            ("recovery", _spread(report.recovery_lone, "after a worker without supervisor was killed")),
            ("", _spread(report.recovery_supervised, "after a supervisor or a worker under one was killed")),
            ("restart", _spread(report.restart, "from the return of the store to the first job")),
            ("throughput", _throughput(report)),
        ]
    )  # fmt: skip
    say()
    rows = [(kind, f"{n}") for kind, n in report.injected.items()]
    table(("FAULT", "TIMES"), rows, empty="no faults were asked for")
    if report.left_out:
        say()
    for lack in report.left_out:
        say(f"left out: {lack}")
    causes = sorted(report.reruns.items(), key=lambda one: -one[1])
    if causes:
        say()
        table(("RAN AGAIN BECAUSE OF", "TIMES"), [(cause, f"{n}") for cause, n in causes], empty="")
    say()
    for reason in report.reasons:
        say(reason, fg="red")
    says = "all promises were kept" if report.kept else "a promise was BROKEN"
    say(says, fg="green" if report.kept else "red", bold=True)


def _flows(report: Report) -> str | None:
    its = report.flows
    if not its.stored:
        return None
    ends = f"{its.completed:,} completed, {its.failed:,} failed, {its.cancelled:,} cancelled"
    return (
        f"{its.stored:,} of {its.nodes:,} nodes; {ends}, {its.hanging:,} hanging; {its.steps:,} steps, "
        f"{its.undone:,} undone, {its.signals:,} signals"
    )


def _spread(spread: Spread, what: str) -> str | None:
    if not spread.n:
        return None
    return f"p50 {spread.p50:.2f} s, p99 {spread.p99:.2f} s, max {spread.max:.2f} s {what} ({spread.n:,})"


def _throughput(report: Report) -> str | None:
    seconds = report.throughput
    if not seconds:
        return None
    mean = sum(one.completed for one in seconds) / len(seconds)
    return f"{mean:,.0f} jobs/s on average, {max(one.completed for one in seconds):,} in the best second"
