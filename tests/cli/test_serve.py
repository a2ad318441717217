"""`penstock serve`: what it refuses to serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from penstock.cli.lmstfy_pools import Pools, make_service
from penstock.cli.main import cli
from penstock.stores.memory import MemoryStore
from penstock.web.dashboard import Dashboard, DashboardSettings


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--no-tokens"], "--no-tokens is an option of --lmstfy"),
        (["--lmstfy", "--read-only"], "--read-only is an option of the dashboard"),
        (["--lmstfy", "tasks:app"], "--lmstfy serves a store"),
        (["--tls-cert", "x"], "--tls-cert and --tls-key: give both"),
        (["--lmstfy", "--no-tokens", "--host", "0.0.0.0"], "--no-tokens would let everyone"),
        (["--lmstfy", "--no-tokens", "--host", "jobs.example"], "--no-tokens would let everyone"),
        (["--lmstfy", "--admin-host", "0.0.0.0"], "could make tokens: give --account"),
        (["--lmstfy", "--token", "no-colon"], "--token: write two parts"),
        (["--lmstfy", "--account", "name:"], "--account: write two parts"),
    ],
)
def test_what_is_unsafe_or_unclear_is_not_served(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "memory://")
    with pytest.raises(click.UsageError) as refused:
        cli.main(["serve", *arguments], standalone_mode=False)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "is_open"),
    [
        ([], True),
        (["--allow-anyone", "--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0"], False),
        (["--trust-proxy", "127.0.0.1"], False),
        (["--unix", "x.sock"], False),
        (["--unix", "x.sock", "--trust-proxy", "unix"], False),
    ],
)
def test_a_dashboard_is_open_only_where_no_visitor_comes_from_elsewhere(
    arguments: list[str], is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[DashboardSettings] = []

    async def serve(dashboard: Dashboard, *_: object, **__: object) -> int:
        served.append(dashboard._shared.settings)
        return 0

    monkeypatch.setenv("PENSTOCK_URL", "memory://")
    monkeypatch.setattr("penstock.web.dashboard.server.serve_dashboard", serve)
    monkeypatch.setattr("penstock.worker.logs.configure_logs", lambda *_: None)  # of the whole process
    cli.main(["serve", *arguments], standalone_mode=False)
    (settings,) = served
    assert settings.open_to_all is is_open
    assert (settings.hosts is not None) is is_open  # without a login, other names in Host are refused


@pytest.mark.parametrize("command", [["serve", "--lmstfy"], ["worker", "x:app", "--metrics-port", "9"]])
def test_a_missing_extra_is_named(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.core.errors import MissingExtra

    monkeypatch.setattr("penstock.core.installation.is_installed", lambda _: False)
    with pytest.raises(MissingExtra, match=r"pip install 'penstock\[web\]'"):
        cli.main(command, standalone_mode=False)


@pytest.mark.parametrize(
    ("changed", "data", "admin"),
    [
        ({}, False, False),
        ({"host": "0.0.0.0", "admin_host": "0.0.0.0", "admin_tokens": True}, True, True),
        ({"host": "0.0.0.0", "admin_host": "0.0.0.0", "no_tokens": True}, False, False),
        ({"unix": Path("a"), "admin_unix": Path("b"), "no_tokens": True}, True, True),
    ],
)
def test_every_host_is_accepted_only_where_a_secret_is_needed(
    changed: dict[str, Any], data: bool, admin: bool
) -> None:
    store = MemoryStore()
    options: dict[str, Any] = {
        "host": "127.0.0.1",
        "admin_host": "127.0.0.1",
        "unix": None,
        "admin_unix": None,
    }
    options |= dict.fromkeys(
        ("no_tokens", "admin_tokens", "asynq_names", "public_sizes", "public_info"), False
    )
    options |= {"tokens": (), "hosts": (), **changed}
    service = make_service(Pools({"default": store}, {}, store), options, {})
    assert service._data._hosts.accepts("rebound.example", None) is data
    assert service._admin._hosts.accepts("rebound.example", None) is admin
    store.close()
