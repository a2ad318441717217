"""`penstock serve --lmstfy`: serve a store over HTTP, as lmstfy does."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.session import Command, Session, require_web
from penstock.cli.show import emit, note

if TYPE_CHECKING:
    from penstock.dialects.lmstfy.defaults import LmstfySettings
    from penstock.dialects.lmstfy.service import LmstfyService
    from penstock.stores.contract import Store
    from penstock.web.hosts import HostRule

__all__ = ["command"]

_PATH = click.Path(dir_okay=False, path_type=Path)


@click.command("serve", cls=Command)
@click.option("--lmstfy", is_flag=True, help="Serve lmstfy's HTTP interface, for its clients.")
@click.option("--host", default="127.0.0.1", help="ListenAddress of the data API.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), default=7777, help="Its port.  [default: 7777]")
@click.option(
    "--admin-host", default="127.0.0.1", help="ListenAddress of the admin API.  [default: 127.0.0.1]"
)
@click.option("--admin-port", type=click.IntRange(0, 65_535), default=7778, help="Its port.  [default: 7778]")
@click.option(
    "--token",
    "tokens",
    multiple=True,
    metavar="NAMESPACE:TOKEN",
    envvar="LMSTFY_TOKENS",
    help="Accept this token for this namespace, besides those of the admin API. May be repeated.",
)
@click.option("--no-tokens", is_flag=True, help="Answer requests without a token. On loopback only.")
@click.option(
    "--account",
    "accounts",
    multiple=True,
    metavar="NAME:PASSWORD",
    envvar="LMSTFY_ACCOUNTS",
    help="Ask for this name and password on the admin API's routes for tokens. May be repeated.",
)
@click.option(
    "--admin-tokens",
    is_flag=True,
    help="Ask for a token with the right admin (penstock tokens) on these routes, if no account is given.",
)
@click.option(
    "--allowed-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Accept this name in the Host header, besides localhost and IP addresses. May be repeated.",
)
@click.option(
    "--public-sizes",
    is_flag=True,
    help="Answer the sizes of queues without a token, as lmstfy does, also beyond loopback.",
)
@click.option(
    "--processes",
    "-p",
    type=click.IntRange(1, 1_000),
    default=1,
    metavar="N",
    help="Number of server processes on the same addresses.  [default: 1]",
)
@click.option("--unix", type=_PATH, metavar="PATH", help="Unix socket of the data API, instead of --port.")
@click.option("--admin-unix", type=_PATH, metavar="PATH", help="Unix socket of the admin API.")
@click.option(
    "--unix-mode",
    default="0600",
    metavar="MODE",
    help="Permissions of the Unix sockets: who may connect.  [default: 0600]",
)
@click.option("--tls-cert", type=_PATH, metavar="FILE", help="Certificate chain in PEM: serve HTTPS.")
@click.option("--tls-key", type=_PATH, metavar="FILE", help="Its key in PEM.")
@click.option("--access-log", is_flag=True, help="Log each request.")
@click.option("--log-format", metavar="text|json", help="Log format.  [default: text, or json with --json]")
@click.option(
    "--log-level", metavar="LEVEL", help="Log level: debug, info, warning or error.  [default: info]"
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=30.0,
    metavar="SECONDS",
    help="Time for requests in flight when the server stops.  [default: 30]",
)
def command(lmstfy: bool, **options: Any) -> int:
    """Serve the jobs of a store over HTTP.

    \b
    Signals:
      INT, TERM  Accept no more connections, answer waiting requests, finish
                 those in flight, and exit. A second signal exits at once.
      HUP        Read settings and certificates again.
    """
    if not lmstfy:
        raise click.UsageError("say what to serve: penstock serve --lmstfy")
    require_web("serve needs")
    from penstock.web.processes import inherited_listeners
    from penstock.worker.logs import configure_logs

    inherited = inherited_listeners()
    _check(options)
    session = Session.current()
    knobs = {"log_level": options["log_level"], "log_format": options["log_format"]}
    if session.json and knobs["log_format"] is None:
        knobs["log_format"] = "json"
    config = session.load(**knobs).config
    configure_logs(config)
    options["asynq_names"] = config.asynq_metrics
    with session.store(create=True) as store:
        return _run(store, options, inherited, as_json=session.json)


def _check(options: dict[str, Any]) -> None:
    """Refuse to serve beyond loopback what asks for no secret, and options that need each other."""
    if options["no_tokens"] and not options["unix"] and not _is_loopback(options["host"]):
        raise click.UsageError(
            f"--no-tokens would let everyone who reaches {options['host']} take and delete jobs: "
            "leave it out, and give tokens with --token or the admin API"
        )
    guarded = options["accounts"] or options["admin_tokens"]
    if not guarded and not options["admin_unix"] and not _is_loopback(options["admin_host"]):
        raise click.UsageError(
            f"everyone who reaches {options['admin_host']} could make tokens: "
            "give --account NAME:PASSWORD or --admin-tokens"
        )
    if bool(options["tls_cert"]) != bool(options["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key: give both, or none")


def _run(store: Store, options: dict[str, Any], inherited: Any, *, as_json: bool) -> int:
    from penstock.cli.serving import ADMIN, DATA, ListenAddress, Listening, check_processes, serve, supervise
    from penstock.web.tls import Tls

    tls = Tls(options["tls_cert"], options["tls_key"]) if options["tls_cert"] else None
    service = _service(store, options)
    settings = _settings(options)
    processes = 1 if inherited else options["processes"]
    check_processes(processes, store.url)
    mode = _mode(options["unix_mode"])
    wanted = {
        DATA: ListenAddress(options["host"], options["port"], options["unix"], mode),
        ADMIN: ListenAddress(options["admin_host"], options["admin_port"], options["admin_unix"], mode),
    }
    listening = None if inherited else Listening.at(wanted, processes)

    def show() -> None:
        if listening is None:
            return
        data, admin = listening.addresses[DATA], listening.addresses[ADMIN]
        if as_json:
            emit({"url": store.url, "port": data.port, "admin_port": admin.port, "processes": processes})
        else:
            number = f" by {processes} processes" if processes > 1 else ""
            note(f"serving {store.url} at {data}{number}, admin at {admin}")

    if listening is not None and processes > 1:
        return supervise(listening, grace=options["grace"], on_ready=show)
    service.apply(settings)

    def reload() -> list[str]:
        service.apply(_settings(options))
        return []

    sockets = listening.processes[0] if listening is not None else inherited[1]
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(
                serve(
                    service,
                    sockets,
                    tls=tls,
                    grace=options["grace"],
                    reload=reload,
                    on_ready=show,
                    control=inherited[0] if inherited else None,
                )
            )
    finally:
        if listening is not None:
            listening.close()


def _settings(options: dict[str, Any]) -> LmstfySettings:
    from penstock.dialects.lmstfy.defaults import LmstfySettings

    accounts = dict(_pairs(options["accounts"], "--account"))
    return LmstfySettings(accounts=accounts, access_log=options["access_log"])


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise click.UsageError(f"--unix-mode {text}: write permissions as octal digits, e.g. 0660")
    return mode


def _service(store: Store, options: dict[str, Any]) -> LmstfyService:
    from penstock.dialects.lmstfy.service import LmstfyService

    tokens: dict[str, frozenset[str]] = {}
    for namespace, token in _pairs(options["tokens"], "--token"):
        tokens[namespace] = tokens.get(namespace, frozenset()) | {token}
    beyond = options["unix"] is None and not _is_loopback(options["host"])
    # beyond loopback a request needs a token, which no page of another site knows, and no page can reach a
    # Unix socket
    return LmstfyService(
        {"default": store},
        need_tokens=not options["no_tokens"],
        fixed_tokens=tokens,
        need_admin=options["admin_tokens"],
        hosts=_host_rule(options, beyond=beyond or options["unix"] is not None),
        admin_hosts=_host_rule(
            options, beyond=options["admin_unix"] is not None or not _is_loopback(options["admin_host"])
        ),
        asynq_names=options["asynq_names"],
        public_sizes=options["public_sizes"] or not beyond,
    )


def _host_rule(options: dict[str, Any], *, beyond: bool) -> HostRule:
    from penstock.web.hosts import HostRule

    return HostRule(options["hosts"], open_to_all=beyond and not options["hosts"])


def _pairs(values: Sequence[str], option: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for value in values:
        name, colon, secret = value.partition(":")
        if not colon or not name or not secret:
            raise click.UsageError(f"{option}: write two parts with a colon between them")
        pairs.append((name, secret))
    return pairs


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
