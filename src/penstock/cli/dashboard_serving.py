"""Runs `penstock serve` without `--lmstfy`: the dashboard of an app or a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.session import Session
from penstock.cli.show import emit, note
from penstock.core.installation import DASHBOARD_SERVER, require_extra

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.stores.contract import Store

_PORT = 8080


def run_dashboard(app: str | None, options: dict[str, Any]) -> int:
    """Serve the dashboard until SIGTERM or SIGINT."""
    require_extra("web", DASHBOARD_SERVER, "the dashboard")
    from penstock.app.app import App
    from penstock.core.security import is_loopback
    from penstock.stores.connect import shown_store
    from penstock.web.dashboard import Dashboard
    from penstock.web.dashboard.server import DashboardListener, serve_dashboard
    from penstock.web.dashboard.settings import REDACTED
    from penstock.worker.event_loop import loop_runner
    from penstock.worker.logs import configure_logs

    if bool(options["tls_cert"]) != bool(options["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key: give both, or none")
    session = Session.current()
    knobs = {"log_level": options["log_level"], "log_format": options["log_format"]}
    configure_logs(session.load(**knobs).config)
    # a Unix socket and a trusted proxy mean visitors from elsewhere, whom nothing tells apart
    proxied = options["unix"] is not None or options["trust_proxy"] is not None
    is_open = options["allow_anyone"] or (not proxied and is_loopback(options["host"]))
    with _served(session, app) as what:
        dashboard = Dashboard(
            what,
            read_only=options["read_only"],
            redact=(*REDACTED, *options["redact"]),
            # a page of another site reaches nothing where a login is needed: then any name will do
            hosts=options["hosts"] if options["hosts"] or is_open else None,
            open_to_all=is_open,
        )
        listener = DashboardListener(
            host=options["host"],
            port=_PORT if options["port"] is None else options["port"],
            path=options["unix"],
            mode=options["mode"],
            certificate=options["tls_cert"],
            key=options["tls_key"],
            proxy=options["trust_proxy"],
            access_log=options["access_log"],
        )

        shown = shown_store(what.store if isinstance(what, App) else what)

        def show(address: str, port: int) -> None:
            if session.json:
                emit({"url": dashboard.url, "port": port, "dashboard": address})
            else:
                note(f"dashboard of {shown} at {address}")

        with loop_runner() as runner:
            return runner.run(serve_dashboard(dashboard, listener, grace=options["grace"], on_ready=show))


@contextmanager
def _served(session: Session, app: str | None) -> Iterator[App | Store]:
    """The app, if one is named, else the store of the options."""
    if app is None and not session.uses_app():
        with session.store(create=True) as store:
            yield store
        return
    opened = session.open_app(app)
    try:
        yield opened
    finally:
        opened.store.close()
