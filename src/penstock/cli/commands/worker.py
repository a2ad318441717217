"""`penstock worker`: run jobs until stopped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.completing import complete_queue
from penstock.cli.faults import Exit
from penstock.cli.session import Command, Session
from penstock.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from penstock.worker.queues import Queue


@click.command("worker", cls=Command)
@click.argument("spec", required=False, metavar="[MODULE:ATTRIBUTE]")
@click.option(
    "--queues",
    "-q",
    metavar="QUEUES",
    shell_complete=complete_queue,
    help="Queues to serve, with optional weights and slots, e.g. "
    "critical:weight=6,default:weight=3:slots=10.  [default: all queues of the app's tasks]",
)
@click.option(
    "--concurrency",
    "-c",
    metavar="N",
    help="Slots per worker process: attempts at the same time.  [default: 20]",
)
@click.option("--processes", "-p", metavar="N", help="Number of worker processes.  [default: 1]")
@click.option(
    "--strict", is_flag=True, default=None, help="Serve a queue only while all queues before it are empty."
)
@click.option("--burst", is_flag=True, help="Exit when no job is available, running, or due within 1 s.")
@click.option(
    "--drain-timeout", metavar="DURATION", help="Time to wait for running jobs on shutdown.  [default: 30s]"
)
@click.option(
    "--max-jobs-per-child",
    metavar="N",
    help="Replace a process-task child after N jobs.  [default: 0, never]",
)
@click.option(
    "--max-memory-per-child",
    metavar="SIZE",
    help="Replace a process-task child that uses more memory "
    "than this after a job, e.g. 500MB.  [default: 0, never]",
)
@click.option(
    "--max-jobs-per-worker",
    metavar="N",
    help="Replace a worker process after N jobs.  [default: 0, never]",
)
@click.option(
    "--max-memory-per-worker",
    metavar="SIZE",
    help="Replace a worker process that uses more memory than this, e.g. 1GB.  [default: 0, never]",
)
@click.option(
    "--metrics-port", metavar="PORT", help="Serve metrics for Prometheus on this port.  [default: 0, none]"
)
@click.option(
    "--health-port", metavar="PORT", help="Serve /livez and /readyz on this port.  [default: 0, none]"
)
@click.option("--metrics-host", metavar="ADDRESS", help="Address of both ports.  [default: 127.0.0.1]")
@click.option("--log-format", metavar="text|json", help="Log format.  [default: text, or json with --json]")
@click.option(
    "--log-level", metavar="LEVEL", help="Log level: debug, info, warning or error.  [default: info]"
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: restart when a .py file below the working directory, or penstock.toml, changes.",
)
def command(spec: str | None, queues: str | None, burst: bool, reload: bool, **knobs: Any) -> int:
    """Run the jobs of an app until stopped.

    \b
    Signals:
      INT, TERM   Start no more jobs, wait for running ones up to
                  --drain-timeout, return the rest to their queues, and exit.
                  A second signal exits at once.
      TSTP, USR1  Start no more jobs, but do not exit.
      TTIN        Print the stacks of all threads.

    All other settings come from PENSTOCK_... variables or penstock.toml; `penstock config` lists them.
    """
    session = Session.current()
    if session.json and knobs["log_format"] is None:
        knobs["log_format"] = "json"
    config = session.load(queues=queues, **knobs).config
    if config.metrics_port or config.health_port:
        from penstock.core.installation import HTTP_SERVER, require_extra

        require_extra("web", HTTP_SERVER, "the listener of metrics and health")
    served = parse_queues(config.queues) if config.queues else None
    app = session.app_spec(spec)
    if reload:
        from penstock.cli.reload import run_reloading

        return run_reloading([word for word in sys.argv[1:] if word != "--reload"], config)
    from penstock.worker.logs import configure_logs
    from penstock.worker.orders import REFUSED, UNREACHABLE, UNUSABLE
    from penstock.worker.supervisor import supervise

    configure_logs(config)
    code = supervise(app, config, queues=served, burst=burst)
    return {REFUSED: Exit.USAGE, UNUSABLE: Exit.FAILED, UNREACHABLE: Exit.UNAVAILABLE}.get(code, code)


def parse_queues(text: str) -> list[Queue]:
    """Parse queues, e.g. `"critical:weight=6,default:weight=3:slots=10"`; raises ConfigError."""
    from penstock.worker.queues import as_queues

    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"queues={text!r}: there is nothing between two commas, or at an end")
    return list(as_queues([_parse_queue(part) for part in parts]))


def _parse_queue(text: str) -> Queue:
    from penstock.worker.queues import Queue

    # a name may contain ":" and "=", so options are taken from the end
    name, options = text, {}
    while ":" in name and "=" in name.rpartition(":")[2]:
        name, _, option = name.rpartition(":")
        key, _, value = option.partition("=")
        if key not in ("weight", "slots"):
            near = did_you_mean(key, ("weight", "slots"))
            raise ConfigError(
                f"queue {text!r}: {key!r} is not an option{near}: the options are weight and slots"
            )
        if not value.isdecimal() or len(value) > 9:
            raise ConfigError(f"queue {text!r}: {key}={value} is not a whole number")
        options[key] = int(value)
    return Queue(name, **options)
