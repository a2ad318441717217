"""`penstock serve --lmstfy`: serve a store over HTTP, as lmstfy does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import resource
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.session import Command, Session, require_web
from penstock.cli.show import emit, note

if TYPE_CHECKING:
    from penstock.dialects.lmstfy.service import LmstfyService
    from penstock.stores.contract import Store

__all__ = ["command"]


#: Thresholds of the garbage collector: requests leave no cycles, and Python's 700 objects are a few requests.
_COLLECT_AFTER = (20_000, 10, 10)


@click.command("serve", cls=Command)
@click.option("--lmstfy", is_flag=True, help="Serve lmstfy's HTTP interface, for its clients.")
@click.option("--host", default="127.0.0.1", help="Address of the data API.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), default=7777, help="Its port.  [default: 7777]")
@click.option("--admin-host", default="127.0.0.1", help="Address of the admin API.  [default: 127.0.0.1]")
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
    """
    if not lmstfy:
        raise click.UsageError("say what to serve: penstock serve --lmstfy")
    require_web("serve needs")
    _check(options)
    session = Session.current()
    options["asynq_names"] = session.load().config.asynq_metrics
    with session.store(create=True) as store, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(store, options, as_json=session.json))


def _check(options: dict[str, Any]) -> None:
    """Refuse to serve beyond loopback what asks for no secret."""
    if options["no_tokens"] and not _is_loopback(options["host"]):
        raise click.UsageError(
            f"--no-tokens would let everyone who reaches {options['host']} take and delete jobs: "
            "leave it out, and give tokens with --token or the admin API"
        )
    if not options["accounts"] and not _is_loopback(options["admin_host"]):
        raise click.UsageError(
            f"everyone who reaches {options['admin_host']} could make tokens: give --account NAME:PASSWORD"
        )


async def _serve(store: Store, options: dict[str, Any], *, as_json: bool) -> int:
    service = _service(store, options)
    _allow_open_files()
    gc.set_threshold(*_COLLECT_AFTER)
    gc.collect()
    gc.freeze()  # what is loaded now stays: full collections skip it
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, stopping)
    port = await service.start(options["host"], options["port"])
    admin_port = await service.start_admin(options["admin_host"], options["admin_port"])
    if as_json:
        emit({"url": store.url, "port": port, "admin_port": admin_port})
    else:
        data, admin = f"{options['host']}:{port}", f"{options['admin_host']}:{admin_port}"
        note(f"serving {store.url} at {data}, admin at {admin}")
    await stopping.wait()
    await service.stop(options["grace"])
    return 0


def _allow_open_files() -> None:
    """Raise the soft limit of open files to the hard one: each connection is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses an unlimited number
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _stop(stopping: asyncio.Event) -> None:
    if stopping.is_set():  # the second signal
        raise SystemExit(1)
    stopping.set()


def _service(store: Store, options: dict[str, Any]) -> LmstfyService:
    from penstock.dialects.lmstfy.service import LmstfyService
    from penstock.web.hosts import HostRule

    tokens: dict[str, frozenset[str]] = {}
    for namespace, token in _pairs(options["tokens"], "--token"):
        tokens[namespace] = tokens.get(namespace, frozenset()) | {token}
    beyond = not _is_loopback(options["host"])
    # beyond loopback a request needs a token, which no page of another site knows
    return LmstfyService(
        {"default": store},
        need_tokens=not options["no_tokens"],
        fixed_tokens=tokens,
        accounts=dict(_pairs(options["accounts"], "--account")),
        hosts=HostRule(options["hosts"], open_to_all=beyond and not options["hosts"]),
        admin_hosts=HostRule(
            options["hosts"], open_to_all=not _is_loopback(options["admin_host"]) and not options["hosts"]
        ),
        asynq_names=options["asynq_names"],
        public_sizes=options["public_sizes"] or not beyond,
    )


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
