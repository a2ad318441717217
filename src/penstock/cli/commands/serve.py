"""`penstock serve`: serve the dashboard of a store, or a store over HTTP as lmstfy does."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from penstock.cli.session import Command, Session
from penstock.cli.show import emit, note
from penstock.core.errors import ConfigError

if TYPE_CHECKING:
    from penstock.cli.lmstfy_pools import Pools
    from penstock.cli.serving import ListenAddress, Listening
    from penstock.dialects.lmstfy.service import LmstfyService
    from penstock.dialects.lmstfy.settings import LmstfyConfig

_PATH = click.Path(dir_okay=False, path_type=Path)


@click.command("serve", cls=Command)
@click.argument("app", required=False)
@click.option(
    "--lmstfy", is_flag=True, help="Serve lmstfy's HTTP interface, for its clients, instead of the dashboard."
)
@click.option("--read-only", is_flag=True, help="Dashboard: show everything, change nothing.")
@click.option(
    "--redact",
    multiple=True,
    metavar="NAME",
    help="Dashboard: hide the values of arguments, results and headers with this name, e.g. '*iban*'. "
    "May be repeated; "
    "passwords, secrets, tokens and keys are hidden by default.",
)
@click.option(
    "--trust-proxy",
    metavar="ADDRESS",
    help="Dashboard: take the client's address and https from the X-Forwarded headers of this proxy; "
    "'unix' for one that connects to --unix.",
)
@click.option(
    "--config",
    type=_PATH,
    metavar="FILE",
    help="Pools, addresses and defaults in lmstfy's config.toml. Options take precedence.",
)
@click.option(
    "--host", default="127.0.0.1", help="Address of the dashboard, or of the data API.  [default: 127.0.0.1]"
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=None,
    help="Port of the dashboard, or of the data API.  [default: 8080, with --lmstfy 7777]",
)
@click.option("--admin-host", default="127.0.0.1", help="Address of the admin API.  [default: 127.0.0.1]")
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65_535),
    default=7778,
    help="Port of the admin API.  [default: 7778]",
)
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
    help="Ask for a token with the right admin (penstock tokens) on the admin API's routes for tokens, "
    "if no account is given.",
)
@click.option(
    "--allowed-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Accept this name in the Host header, besides localhost and IP addresses. May be repeated.",
)
@click.option(
    "--allow-anyone",
    is_flag=True,
    help="Serve without tokens or accounts also beyond loopback, to everyone who reaches the address.",
)
@click.option(
    "--public-sizes",
    is_flag=True,
    help="Answer the sizes of queues without a token, as lmstfy does, also beyond loopback.",
)
@click.option(
    "--public-info",
    is_flag=True,
    help="Answer /info, /pools and /migrations of the admin API without an account, also beyond loopback.",
)
@click.option(
    "--processes",
    "-p",
    type=click.IntRange(1, 1_000),
    default=1,
    metavar="N",
    help="Number of server processes on the same addresses.  [default: 1]",
)
@click.option("--unix", type=_PATH, metavar="PATH", help="Unix socket, instead of --port.")
@click.option("--admin-unix", type=_PATH, metavar="PATH", help="Unix socket of the admin API.")
@click.option(
    "--unix-mode",
    default="0600",
    metavar="MODE",
    help="Permissions of the Unix sockets: who may connect.  [default: 0600]",
)
@click.option("--tls-cert", type=_PATH, metavar="FILE", help="Certificate chain in PEM: serve HTTPS.")
@click.option("--tls-key", type=_PATH, metavar="FILE", help="Private key of --tls-cert, in PEM.")
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
def command(app: str | None, lmstfy: bool, **options: Any) -> int:
    """Serve the dashboard, or with --lmstfy a job queue over HTTP.

    On loopback the dashboard is open until the store has an access token (penstock tokens create). Elsewhere,
    with --unix and with --trust-proxy visitors log in with one.

    \b
    Signals:
      INT, TERM  Accept no more connections, answer waiting requests, finish
                 those in flight, and exit. A second signal exits at once.
      HUP        Read settings and certificates again.
      USR1       Nothing: the log goes to stderr, so there is no file to reopen.
    """
    _ignore_usr1()
    if not lmstfy:
        from penstock.cli.dashboard_serving import run_dashboard

        _refuse(_OF_LMSTFY, "--lmstfy")
        return run_dashboard(app, {**options, "mode": _mode(options["unix_mode"])})
    _refuse(_OF_DASHBOARD, "the dashboard: leave --lmstfy out")
    if app is not None:
        raise click.UsageError("--lmstfy serves a store: name it with --url, or the app with --app")
    options["port"] = 7777 if options["port"] is None else options["port"]
    from penstock.core.installation import HTTP_SERVER, require_extra

    require_extra("web", HTTP_SERVER, "serve")
    from penstock.cli.lmstfy_pools import check_stores, open_pools, read_file
    from penstock.web.processes import inherited_listeners
    from penstock.worker.logs import configure_logs

    inherited = inherited_listeners()
    config = read_file(options)
    _check(options, {} if config is None else config.settings.accounts)
    session = Session.current()
    knobs = {"log_level": options["log_level"], "log_format": options["log_format"]}
    if session.json and knobs["log_format"] is None:
        knobs["log_format"] = "json"
    settings = session.load(**knobs).config
    configure_logs(settings)
    options["asynq_names"] = settings.asynq_metrics
    if config is not None and inherited is None:
        for line in config.notes:
            note(f"penstock: {line}")
    with open_pools(config) as pools:
        if inherited is None:
            check_stores(pools, config)
        return _run(pools, config, options, inherited, as_json=session.json)


#: Options of one of the two servers alone.
_OF_LMSTFY = (
    *("config", "admin_host", "admin_port", "tokens", "no_tokens", "accounts", "admin_tokens"),
    *("public_sizes", "public_info", "processes", "admin_unix"),
)
_OF_DASHBOARD = ("read_only", "redact", "trust_proxy")


def _ignore_usr1() -> None:
    """Ignore SIGUSR1, which programs that rotate logs send, also in the processes of this server."""
    if hasattr(signal, "SIGUSR1"):  # not on Windows
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _refuse(names: Collection[str], needed: str) -> None:
    """Refuse options that would have no effect."""
    context = click.get_current_context()
    for param in context.command.params:
        given = context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if param.name in names and given:
            raise click.UsageError(f"{param.opts[0]} is an option of {needed}")


def _check(options: dict[str, Any], accounts: Mapping[str, str]) -> None:
    """Refuse to serve beyond loopback what asks for no secret, and options that need each other."""
    from penstock.core.security import is_loopback

    open_data = options["no_tokens"] and not options["unix"] and not is_loopback(options["host"])
    if open_data and not options["allow_anyone"]:
        raise click.UsageError(
            f"--no-tokens would let everyone who reaches {options['host']} take and delete jobs: "
            "leave it out, and give tokens with --token or the admin API, or allow it with --allow-anyone"
        )
    _check_admin(options, accounts)
    if bool(options["tls_cert"]) != bool(options["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key: give both, or none")


def _check_admin(options: dict[str, Any], accounts: Mapping[str, str]) -> None:
    """Refuse to let everyone beyond loopback make tokens."""
    from penstock.core.security import is_loopback

    guarded = options["accounts"] or accounts or options["admin_tokens"]
    alone = options["admin_unix"] or is_loopback(options["admin_host"])
    if not guarded and not alone and not options["allow_anyone"]:
        raise click.UsageError(
            f"everyone who reaches {options['admin_host']} could make tokens: "
            "give --account NAME:PASSWORD or --admin-tokens, or allow it with --allow-anyone"
        )


def _run(
    pools: Pools, config: LmstfyConfig | None, options: dict[str, Any], inherited: Any, *, as_json: bool
) -> int:
    from penstock.cli.lmstfy_pools import make_service, read_settings
    from penstock.cli.serving import Listening, check_processes, serve, supervise
    from penstock.web.tls import Tls
    from penstock.worker.event_loop import loop_runner

    tls = Tls(options["tls_cert"], options["tls_key"]) if options["tls_cert"] else None
    settings = read_settings(options, config)
    service = make_service(pools, options, settings.accounts)
    service.apply(settings)
    processes = 1 if inherited else options["processes"]
    for store in pools.stores.values():
        check_processes(processes, store.url)
    listening = None if inherited else Listening.at(_addresses(options), processes)
    urls = pools.urls if as_json else pools.shown

    def show() -> None:
        if listening is not None:
            _show(listening, urls, processes, as_json=as_json)

    if listening is not None and processes > 1:
        return supervise(listening, grace=options["grace"], on_ready=show)
    sockets = listening.processes[0] if listening is not None else inherited[1]
    try:
        with loop_runner() as runner:
            return runner.run(
                serve(
                    service,
                    sockets,
                    tls=tls,
                    grace=options["grace"],
                    reload=lambda: _reload(service, config, options),
                    on_ready=show,
                    control=inherited[0] if inherited else None,
                )
            )
    finally:
        if listening is not None:
            listening.close()


def _addresses(options: dict[str, Any]) -> dict[str, ListenAddress]:
    from penstock.cli.serving import ADMIN, DATA, ListenAddress

    mode = _mode(options["unix_mode"])
    return {
        DATA: ListenAddress(options["host"], options["port"], options["unix"], mode),
        ADMIN: ListenAddress(options["admin_host"], options["admin_port"], options["admin_unix"], mode),
    }


def _show(listening: Listening, urls: str, processes: int, *, as_json: bool) -> None:
    from penstock.cli.serving import ADMIN, DATA

    data, admin = listening.addresses[DATA], listening.addresses[ADMIN]
    if as_json:
        emit({"url": urls, "port": data.port, "admin_port": admin.port, "processes": processes})
    else:
        number = f" by {processes} processes" if processes > 1 else ""
        note(f"serving {urls} at {data}{number}, admin at {admin}")


def _reload(service: LmstfyService, before: LmstfyConfig | None, options: dict[str, Any]) -> list[str]:
    """Apply what the file says now; returns what needs a restart. Raises ConfigError."""
    from penstock.cli.lmstfy_pools import read_settings
    from penstock.dialects.lmstfy.settings import read_config

    if before is None:
        service.apply(read_settings(options, None))
        return []
    config = read_config(options["config"])
    try:
        # the listener has taken its rules for `Host` from the accounts that it had at the start
        had = {"allow_anyone": False} if before.settings.accounts else {}
        _check_admin({**options, **had}, config.settings.accounts)
    except click.UsageError as error:
        raise ConfigError(f"{error.message}; the old accounts stay until a restart") from None
    service.apply(read_settings(options, config))
    fields = {"pools": "Pool", "admin_url": "AdminRedis", "host": "Host", "port": "Port"}
    fields |= {"admin_host": "AdminHost", "admin_port": "AdminPort", "log_level": "LogLevel"}
    changed = [shown for name, shown in fields.items() if getattr(config, name) != getattr(before, name)]
    notes = [f"{', '.join(changed)} changed: this takes effect after a restart"] if changed else []
    return [*config.notes, *notes]


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise click.UsageError(f"--unix-mode {text}: write permissions as octal digits, e.g. 0660")
    return mode
