"""`penstock dev`: a worker and the dashboard of an app in one process that restarts when the code changes."""

from __future__ import annotations

import socket
import sys
from typing import Any

import click

from penstock.cli.completing import complete_queue
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, note

#: Seconds after the drain time before a restart kills a process that does not end.
_PATIENCE = 5.0


@click.command("dev", cls=Command)
@click.argument("spec", required=False, metavar="[MODULE:ATTRIBUTE]")
@click.option("--host", default="127.0.0.1", help="Address of the dashboard.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=None,
    help="Port of the dashboard; 0: any free port.  [default: 8080, or the next free port]",
)
@click.option(
    "--queues",
    "-q",
    metavar="QUEUES",
    shell_complete=complete_queue,
    help="Queues to serve, as of `penstock worker`.  [default: all queues of the app's tasks]",
)
@click.option("--concurrency", "-c", metavar="N", help="Slots: attempts at the same time.  [default: 20]")
@click.option(
    "--drain-timeout",
    metavar="DURATION",
    help="Time to wait for running jobs at a restart and at the end; then they are released.  [default: 5s]",
)
@click.option("--no-reload", is_flag=True, help="Do not restart when the code changes.")
@click.option("--open", "opens", is_flag=True, help="Open the dashboard in a browser.")
@click.option(
    "--log-level", metavar="LEVEL", help="Log level: debug, info, warning or error.  [default: info]"
)
@click.option("--listen-on", hidden=True, help="Open files of the sockets, of the process that watches.")
def command(
    spec: str | None,
    host: str,
    port: int | None,
    queues: str | None,
    no_reload: bool,
    opens: bool,
    listen_on: str | None,
    **knobs: Any,
) -> int:
    """Run a worker and the dashboard; restart when code changes.

    For development. The process runs the jobs of all queues, enqueues periodic jobs and serves the dashboard.
    When a .py file below the working directory, or penstock.toml, changes, running jobs may end within
    --drain-timeout, the others are released, and the process starts again. If the app cannot be loaded, the
    traceback is shown until the next change.

    \b
    Signals:
      INT, TERM  Wait for running jobs up to --drain-timeout, and exit.
                 A second signal exits at once.
    """
    from penstock.core.installation import DASHBOARD_SERVER, require_extra

    require_extra("web", DASHBOARD_SERVER, "dev")
    from penstock.cli.commands.worker import parse_queues

    session = Session.current()
    knobs["drain_timeout"] = knobs["drain_timeout"] or "5s"
    config = session.load(queues=queues, **knobs).config
    app = session.app_spec(spec)
    served = parse_queues(config.queues) if config.queues else None
    if listen_on is not None:
        from penstock.cli.dev_process import serve_dev

        return serve_dev(
            app, config, served, [socket.socket(fileno=int(n)) for n in listen_on.split(",")], host
        )
    from penstock.cli.serving import address_of, listen_somewhere

    sockets = listen_somewhere(host, port)
    address = address_of(host, sockets[0])
    if session.json:
        emit({"app": app, "dashboard": address, "port": sockets[0].getsockname()[1]})
    else:
        note(f"{address}  dashboard and worker of {app}; Ctrl-C stops")
    if opens:
        import webbrowser

        webbrowser.open(address)
    if no_reload:
        from penstock.cli.dev_process import serve_dev

        return serve_dev(app, config, served, sockets, host)
    from penstock.cli.reload import run_reloading

    files = [one.fileno() for one in sockets]
    return run_reloading(
        [*sys.argv[1:], "--listen-on", ",".join(map(str, files))],
        config,
        name="the app",
        sockets=files,
        patience=config.drain_timeout / 1000 + _PATIENCE,
    )
