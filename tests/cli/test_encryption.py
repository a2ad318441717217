"""Commands on encrypted jobs: shown with the key; without it an error names the missing key."""

from __future__ import annotations

import pytest

from penstock import App
from penstock.encryption import Keyring, new_key, read_keys
from tests.cli.conftest import IN_A_FILE, Cli

pytestmark = IN_A_FILE

KEY = new_key()


def id_of(key: str) -> str:
    return Keyring(read_keys(key)).first.id


@pytest.fixture
def job(penstock: Cli) -> str:
    """The address of an encrypted job."""
    app = App(penstock.url, key=KEY)
    handle = app.enqueue_raw("mail", b'{"to": "grace"}', "send")
    app.close()
    return f"{handle.queue}/{handle.id}"


def test_keygen_prints_a_key_and_nothing_else(penstock: Cli) -> None:
    key = penstock.ok("keygen", url=False).rstrip("\n")
    assert len(read_keys(key)[0]) == 32
    made = penstock.json("keygen", url=False)
    assert made["id"] == id_of(made["key"])


def test_a_job_is_shown_to_who_has_the_key(penstock: Cli, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEY", KEY)
    assert '"to": "grace"' in penstock.ok("jobs", "show", job)
    (shown,) = penstock.json("jobs", "show", job)["jobs"]
    assert (shown["payload"], shown["closed"]) == ({"to": "grace"}, None)


@pytest.mark.parametrize("key", ["", new_key()], ids=["none", "another"])
def test_a_process_without_the_key_is_told_which_key_it_lacks(
    penstock: Cli, job: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key:
        monkeypatch.setenv("PENSTOCK_KEY", key)
    said = penstock.ok("jobs", "show", job)
    assert id_of(KEY) in said
    assert "grace" not in said
    assert "$sealed" not in said
    (shown,) = penstock.json("jobs", "show", job)["jobs"]
    assert id_of(KEY) in shown["closed"]


def test_what_is_enqueued_by_hand_is_encrypted(penstock: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEY", KEY)
    monkeypatch.setenv("PENSTOCK_URL", penstock.url)
    made = penstock.json("enqueue", "--raw", "--queue", "mail", "send", '{"to": "grace"}', url=False)
    assert penstock.json("jobs", "show", made["id"])["jobs"][0]["payload"] == {"to": "grace"}
    monkeypatch.delenv("PENSTOCK_KEY")
    assert "grace" not in str(penstock.json("jobs", "show", made["id"]))


def test_the_settings_show_that_there_is_a_key_and_not_which(
    penstock: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_KEY", KEY)
    said = penstock.ok("config", "--changed", url=False)
    assert "***" in said
    assert "PENSTOCK_KEY" in said
    assert KEY not in said


def test_acts_that_copy_or_change_what_an_encrypted_job_contains_need_the_key_and_others_do_not(
    penstock: Cli, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = job.partition("/")[2]
    needs_key = (
        ("edit", job, "--kwargs", '{"to": "bob"}'),
        ("move", job, "--to", "post"),
        ("duplicate", job),
        ("complete", job, "--result", "7"),
    )
    for words in needs_key:
        result = penstock("jobs", *words)
        assert (result.exit_code, id_of(KEY) in result.stderr) == (1, True), result.stderr
    monkeypatch.setenv("PENSTOCK_KEY", KEY)
    penstock.ok("jobs", "edit", job, "--kwargs", '{"to": "bob"}')
    penstock.ok("jobs", "move", job, "--to", "post")
    (shown,) = penstock.json("jobs", "show", f"post/{id}")["jobs"]
    assert (shown["payload"], shown["closed"]) == ({"to": "bob"}, None)
    penstock.ok("jobs", "duplicate", f"post/{id}")
    monkeypatch.delenv("PENSTOCK_KEY")
    for words in (
        ("discard",),
        ("complete",),
        ("retry",),
        ("reschedule", "--delay", "1h"),
        ("run-now",),
        ("cancel",),
        ("delete",),
    ):
        penstock.ok("jobs", *words, f"post/{id}")
