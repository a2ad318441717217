"""Broken streams, encodings or files around a command: it ends with a one-line error."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from penstock.config import load
from penstock.core.job import Ref
from penstock.errors import ConfigError
from tests.cli.conftest import put

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.parametrize("store", ["sqlite"], indirect=True),
]


def run(
    store, *words: str, redirect: str = "", url: bool = True, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """The command in a shell that has no more variables than these."""
    command = 'exec "$0" -m penstock "$@" ' + redirect
    return subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, *(("--url", store.url) if url else ()), *words],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        timeout=60,
        check=False,
    )


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("words", ["jobs list", "jobs list --json", "jobs show nope --json"])
def test_a_closed_stream_changes_no_exit_code(store, words, redirect):
    ran = run(store, *words.split(), redirect=redirect)
    assert ran.returncode == (3 if "nope" in words else 0)
    assert b"Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_worker_whose_streams_are_closed_runs_its_jobs(store, tasks, redirect):
    """Its first files would be 0, 1 and 2, where its children have their streams."""
    put(store, "a", task="tasks.greet", payload=b'{"name": "ann"}', retention=60_000)
    ran = run(store, "worker", "tasks:app", "--burst", redirect=redirect, url=False)
    assert ran.returncode == 0, ran.stderr
    assert [job.state for job in store.sync.get([Ref("default", "a")]) if job] == ["completed"]


@pytest.mark.parametrize("redirect", ["<&-", "</dev/null"])
def test_a_question_that_nobody_can_answer_is_answered_with_no(store, redirect):
    put(store, "a")
    ran = run(store, "jobs", "delete", "--all", "-q", "default", redirect=redirect)
    assert ran.returncode == 1
    says = "penstock: error: no answer on stdin: --yes does it without a question"
    assert ran.stderr.decode().splitlines()[-1] == says
    assert b"Traceback" not in ran.stderr
    assert store.sync.get([Ref("default", "a")]) != [None]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("words", ["jobs list", "jobs list --json", "jobs show nope --json", "--help"])
def test_a_full_disk_behind_stdout_is_one_line(store, words):
    put(store, "a")
    ran = run(store, *words.split(), redirect=">/dev/full")
    assert ran.returncode == (3 if "nope" in words else 1)
    assert b"Traceback" not in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_reader_that_has_had_enough_is_no_fault(store):
    ran = run(store, "config", redirect="| head -n 1")
    assert ran.stdout.startswith(b"SETTING")
    assert ran.stderr == b""
    put(store, *(f"j{n}" for n in range(9)))
    ran = run(store, "jobs", "list", "--watch=0.1", redirect="| head -n 2")  # and the watch ends
    assert ran.stdout.splitlines()[1].startswith(b"ID")
    assert ran.stderr == b""


# ── encodings ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_json_is_the_same_in_every_encoding(store, encoding):
    put(store, "a", payload='{"x":"é日👩"}'.encode())
    ran = run(store, "jobs", "show", "a", "--json", PYTHONIOENCODING=encoding)
    (job,) = json.loads(ran.stdout)["jobs"]
    assert job["payload"] == {"x": "é日👩"}


def test_an_encoding_without_a_character_shows_its_escape(store):
    put(store, "a", payload='{"x":"日"}'.encode())
    ran = run(store, "jobs", "show", "a", PYTHONIOENCODING="latin-1")
    assert rb'"x": "\u65e5"' in ran.stdout


def test_without_a_home_or_any_variable_all_is_well(store):
    assert run(store, "jobs", "list").returncode == 0


# ── the file, and strange values ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe",
        b"concurrency = ",
        b"concurrency = " + b"9" * 5_000,
        b"concurrency = " + b"[" * 5_000,
        b"concurrency = " + b"[" * 5_000 + b"]" * 5_000,
        b"\x00",
        b"concurrency = 1\nconcurrency = 2",
    ],
    ids=["no text", "no value", "long number", "open", "deep", "nul", "twice"],
)
def test_a_file_that_is_no_toml_is_one_line(store, penstock, here, text):
    (here / "penstock.toml").write_bytes(text)
    assert penstock.says(2, "config", url=False).startswith("penstock.toml is not valid TOML: ")


def test_a_byte_order_mark_is_no_part_of_the_file(store, penstock, here):
    (here / "penstock.toml").write_bytes(b'\xef\xbb\xbfurl = "memory://of-file"')
    assert penstock.json("config", url=False)["settings"][0]["value"] == "memory://of-file"


def test_a_directory_for_the_file_is_one_line(store, penstock, here):
    (here / "penstock.toml").mkdir()
    assert "penstock.toml cannot be read" in penstock.says(2, "config", url=False)


def test_a_long_value_is_quoted_in_part(store, penstock, here):
    (here / "penstock.toml").write_text(f'lease = "{"x" * 100_000}"\nurl = "{"y" * 100_000}"\n')
    with pytest.raises(ConfigError) as raised:
        load(env={})
    assert len(str(raised.value)) < 2_000


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "list", "--after", "9" * 5_000),
        ("jobs", "list", "--after", "9" * 30),
        ("batches", "list", "--limit", "9" * 30),
        ("jobs", "show", "x" * 100_000),
        ("jobs", "list", "--state", "x" * 100_000),
        ("queues", "pause", "x" * 100_000),
        ("stats", "--days", "9" * 5_000),
        ("x" * 100_000,),
        ("jobs", "list", "--" + "x" * 100_000),
    ],
    ids=lambda words: " ".join(words)[:30],
)
def test_a_value_beyond_all_measure_is_one_bounded_line(store, penstock, words):
    result = penstock(*words)
    assert result.exit_code in (0, 2, 3)
    assert "Traceback" not in result.stderr
    assert len(result.stderr) < 5_000
    assert len(result.stderr.splitlines()) <= 1
