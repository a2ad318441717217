"""`penstock serve`: what it refuses to serve."""

from __future__ import annotations

import click
import pytest

from penstock.cli.main import cli


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "say what to serve"),
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


@pytest.mark.parametrize("command", [["serve", "--lmstfy"], ["worker", "x:app", "--metrics-port", "9"]])
def test_a_missing_extra_is_named(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.cli import session
    from penstock.core.errors import MissingExtra

    monkeypatch.setattr(session, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'penstock\[web\]'"):
        cli.main(command, standalone_mode=False)
