"""`penstock tokens` and `penstock audit`."""

from __future__ import annotations

import asyncio
import re

import pytest

from penstock.core.job import NewJob
from penstock.inspector import Inspector
from tests.cli.conftest import Cli

SECRET = re.compile(r"pst_[0-9A-Za-z]{40}")


def test_a_token_is_created_listed_and_revoked(penstock: Cli) -> None:
    first = penstock(
        "tokens", "create", "deploy", "--allow", "produce,consume:mail.*,orders", "--allow", "read"
    )
    assert first.exit_code == 0
    assert SECRET.fullmatch(first.stdout.strip())
    assert first.stderr.startswith(
        "deploy: store the token now, it cannot be shown again; it does not expire"
    )
    words = ("--allow", "admin", "--expires", "1d", "--rate", "100/min", "--description", "for Ann")
    second = penstock.json("tokens", "create", "root", *words)
    assert SECRET.fullmatch(second["token"])
    deploy, root = penstock.json("tokens", "list")["tokens"]
    assert deploy["scopes"] == [
        {"rights": ["produce", "consume"], "queues": ["mail.*", "orders"]},
        {"rights": ["read"], "queues": ["*"]},
    ]
    assert root == {name: value for name, value in second.items() if name != "token"}
    assert (root["rate"], root["description"], root["expired"]) == ("100/min", "for Ann", False)
    shown = penstock.ok("tokens", "list")
    assert not SECRET.search(shown)
    heads, line, _ = shown.splitlines()
    assert heads.split() == ["NAME", "ALLOWS", "RATE", "CREATED", "EXPIRES", "STATUS", "DESCRIPTION"]
    assert line.startswith("deploy  produce,consume:mail.*,orders read  -")
    assert penstock.ok("tokens", "revoke", "deploy", "--yes") == "deploy: revoked\n"
    assert penstock.json("tokens", "revoke", "root", "--yes") == {
        "tokens": [{"name": "root", "revoked": True}]
    }
    assert penstock.json("tokens", "list") == {"tokens": []}


def test_a_revocation_asks_first(penstock: Cli) -> None:
    penstock.ok("tokens", "create", "deploy", "--allow", "read")
    assert penstock("tokens", "revoke", "deploy", input="n\n").exit_code == 1
    assert len(penstock.json("tokens", "list")["tokens"]) == 1
    assert penstock("tokens", "revoke", "deploy", input="y\n").exit_code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--allow", "produse"), "scope='produse': there is no right 'produse' (did you mean 'produce'?)"),
        (("--allow", "x"), "the rights are produce, consume, read, operate, admin"),
        (("--allow", "read:a b"), "scope='read:a b': 'a b' is neither the name of a queue nor a pattern"),
        (("--allow", "read", "--rate", "0.5/s"), "rate='0.5/s': give a whole number of requests"),
        (("--allow", "read", "--expires", "soon"), "--expires='soon' is not a duration"),
        ((), "Missing option '--allow'"),
    ],
)
def test_a_wrong_option_is_explained(penstock: Cli, words: tuple[str, ...], says: str) -> None:
    assert says in penstock.says(2, "tokens", "create", "deploy", *words)


def test_a_name_is_checked_and_taken_once(penstock: Cli) -> None:
    assert "use 1 to 64 of the characters" in penstock.says(2, "tokens", "create", "a b", "--allow", "read")
    penstock.ok("tokens", "create", "deploy", "--allow", "read")
    assert "there is a token 'deploy' already" in penstock.says(
        2, "tokens", "create", "deploy", "--allow", "read"
    )
    line = penstock.says(3, "tokens", "revoke", "deplyo", "--yes")
    assert line == "there is no token 'deplyo' (did you mean 'deploy'?)"


def test_changes_of_tokens_are_in_the_audit_log(penstock: Cli) -> None:
    penstock.ok("tokens", "create", "deploy", "--allow", "read:mail.*")
    penstock.ok("tokens", "revoke", "deploy", "--yes")
    last, first = penstock.json("audit")["entries"]
    assert (last["act"], last["to"], last["number"]) == ("tokens.revoke", "deploy", 2)
    assert (first["act"], first["facts"]) == ("tokens.create", {"scopes": "read:mail.*", "expires": "never"})
    assert re.fullmatch(r"cli:.+@.*", first["who"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.+Z", first["at"])
    one = penstock.json("audit", "-n", "1")
    assert (len(one["entries"]), one["more"]) == (1, True)
    assert [entry["number"] for entry in penstock.json("audit", "--act", "tokens.create")["entries"]] == [1]
    assert penstock.json("audit", "--who", "token:")["entries"] == []
    heads, line, _ = penstock.ok("audit").splitlines()
    assert heads.split() == ["AT", "WHO", "ADDRESS", "ACT", "TO", "STATUS", "FACTS"]
    assert "tokens.revoke" in line


def test_acts_of_commands_are_in_the_audit_log(penstock: Cli, store) -> None:
    store.sync.enqueue([NewJob("a", "t"), NewJob("b", "t")])
    penstock.ok("queues", "pause", "default")
    penstock.ok("queues", "set", "default", "--max-running", "7")
    penstock.ok("jobs", "cancel", "a", "b")
    penstock.ok("jobs", "retry", "--all", "--state", "cancelled", "--yes")
    penstock.ok("queues", "purge", "default", "--yes", "--state", "available")
    penstock.ok("periodic", "add", "tick", "every 30s", "--raw", "--queue", "q", "poll")
    penstock.ok("periodic", "pause", "tick")
    assert penstock("jobs", "cancel", "no-such/job").exit_code == 3
    penstock.says(3, "queues", "pause", "no-such-queue")  # raises: has done nothing
    entries = penstock.json("audit")["entries"]
    bulk = [entry for entry in entries if entry["act"].startswith("bulk.")]
    assert [(entry["act"], entry["facts"]["filter"]) for entry in reversed(bulk)] == [
        (act, '{"states":["cancelled"]}') for act in ("bulk.retry", "bulk.end")
    ]
    others = [entry for entry in reversed(entries) if entry not in bulk]
    assert [(entry["act"], entry["to"], entry["facts"]) for entry in others] == [
        ("queue.pause", "default", {}),
        ("queue.set", "default", {"max_running": "7"}),
        ("jobs.cancel", "a, b", {}),
        ("queue.purge", "default", {"states": "available"}),
        ("periodic.add", "tick", {"schedule": "every 30s"}),
        ("periodic.pause", "tick", {}),
        ("jobs.cancel", "no-such/job", {}),
    ]


def test_an_interrupted_act_is_in_the_audit_log(
    penstock: Cli, store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.sync.enqueue([NewJob("a", "t")])

    async def interrupted(*given: object) -> None:
        raise asyncio.CancelledError  # as Ctrl-C does in the middle of a long purge

    monkeypatch.setattr(Inspector, "purge", interrupted)
    with pytest.raises(asyncio.CancelledError):
        penstock("queues", "purge", "default", "--yes")
    (entry,) = penstock.json("audit")["entries"]
    assert (entry["act"], entry["to"], entry["facts"]["ended"]) == ("queue.purge", "default", "interrupted")


def test_an_empty_store_has_no_tokens_and_no_acts(penstock: Cli, store) -> None:
    store.sync.enqueue([NewJob("a", "t")])
    assert penstock("tokens", "list").stderr.startswith("no tokens yet")
    assert penstock("audit").stderr == "no entries\n"
