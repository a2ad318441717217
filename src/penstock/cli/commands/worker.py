"""`penstock worker`: run jobs until told to stop."""

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

__all__ = ["command", "parse_queues"]


@click.command("worker", cls=Command)
@click.argument("spec", required=False, metavar="[MODULE:ATTRIBUTE]")
@click.option("--queues", "-q", metavar="QUEUES", shell_complete=complete_queue,
              help="What to serve, as in critical:weight=6,default:weight=3:slots=10; by default, all queues "
              "of the app's tasks.")  # fmt: skip
@click.option("--concurrency", "-c", metavar="N", help="Slots per process: attempts at once.  [20]")
@click.option("--processes", "-p", metavar="N", help="Worker processes.  [1]")
@click.option("--strict", is_flag=True, default=None, help="A queue only when those before it are empty.")
@click.option("--burst", is_flag=True, help="End when nothing is available, running, or due within 1 s.")
@click.option(
    "--drain-timeout", metavar="DURATION", help="How long to wait for attempts when stopping.  [30s]"
)
@click.option(
    "--max-jobs-per-child", metavar="N", help="Jobs after which a child for process tasks is replaced."
)
@click.option(
    "--max-memory-per-child", metavar="SIZE", help="Memory at which it is replaced after its job, e.g. 500MB."
)
@click.option(
    "--log-format", metavar="text|json", help="For people or for machines.  [text; json with --json]"
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [info]")
@click.option(
    "--reload", is_flag=True, help="For development: start anew when a .py file below here changes."
)
def command(spec: str | None, queues: str | None, burst: bool, reload: bool, **knobs: Any) -> int:
    """Run the jobs of an app until told to stop.

    INT or TERM: start nothing more, wait for what runs, then give it back; a second one stops at once.
    TSTP or USR1: start nothing more, but stay. TTIN: print all stacks.

    Whatever has no option here is set by PENSTOCK_... variables or penstock.toml: see `penstock config`.
    """
    session = Session.current()
    if session.json and knobs["log_format"] is None:
        knobs["log_format"] = "json"
    config = session.load(queues=queues, **knobs).config
    served = parse_queues(config.queues) if config.queues else None
    app = session.app_spec(spec)
    if reload:
        from penstock.cli.reload import run_reloading

        return run_reloading(sys.argv[1:], config)
    from penstock.worker.logs import configure_logs
    from penstock.worker.process import AWAY, REFUSED, UNUSABLE
    from penstock.worker.supervisor import supervise

    configure_logs(config)
    code = supervise(app, config, queues=served, burst=burst)
    return {REFUSED: Exit.USAGE, UNUSABLE: Exit.FAILED, AWAY: Exit.UNAVAILABLE}.get(code, code)


def parse_queues(text: str) -> list[Queue]:
    """The queues of `"critical:weight=6,default:weight=3:slots=10"`; raises ConfigError."""
    from penstock.worker.queues import as_queues

    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"queues={text!r}: there is nothing between two commas, or at an end")
    return list(as_queues([_parse_queue(part) for part in parts]))


def _parse_queue(text: str) -> Queue:
    from penstock.worker.queues import Queue

    # a name may contain ":" and "=" itself, so only what looks like an option is taken from the end
    name, options = text, {}
    while ":" in name and "=" in name.rpartition(":")[2]:
        name, _, option = name.rpartition(":")
        key, _, value = option.partition("=")
        if key not in ("weight", "slots"):
            near = did_you_mean(key, ("weight", "slots"))
            raise ConfigError(f"queue {text!r}: {key!r} is not an option{near}: they are weight and slots")
        if not value.isdecimal() or len(value) > 9:
            raise ConfigError(f"queue {text!r}: {key}={value} is not a whole number")
        options[key] = int(value)
    return Queue(name, **options)
