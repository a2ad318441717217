"""The main command: help, exit codes, one-line errors, and loading of apps."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from penstock.cli.faults import Exit, code_of
from penstock.cli.main import cli
from penstock.errors import (
    ArgumentError,
    ConfigError,
    JobExists,
    JobNotFound,
    StoreBusy,
    StoreCorrupt,
    StoreUnavailable,
    UnknownScheme,
)
from penstock.stores.contract import WorkerInfo
from penstock.stores.memory import MemoryStore
from tests.cli.conftest import Cli, announce, at_terminal, put


@pytest.fixture
def penstock() -> Cli:
    return Cli("memory://main")


# ── help and names ───────────────────────────────────────────────────────────────────────────────


def test_the_help_names_each_command_and_the_exit_codes(penstock):
    text = penstock.ok("--help", url=False)
    for command in (
        "worker",
        "enqueue",
        "jobs",
        "queues",
        "workers",
        "stats",
        "config",
        "doctor",
        "completion",
    ):
        assert f"\n  {command} " in text
    assert "Exit codes:" in text
    assert "..." not in text.split("Commands:")[1]  # each short help is short enough to be whole


@pytest.mark.parametrize(
    "words",
    [
        *("worker", "enqueue", "workers", "stats", "config", "doctor", "completion"),
        *(f"jobs {verb}" for verb in ("list", "show", "retry", "cancel", "delete")),
        *(f"queues {verb}" for verb in ("list", "pause", "resume", "close", "open", "purge", "delete")),
    ],
)
def test_every_command_has_help_and_json_and_a_store(penstock, words):
    text = penstock.ok(*words.split(), "--help", url=False)
    for option in ("--json", "--url", "--app", "--namespace", "--traceback"):
        assert option in text


def test_an_unknown_command_is_answered_with_the_near_one(penstock):
    assert penstock.says(2, "jbos").startswith("no command 'jbos' (did you mean 'jobs'?)")
    assert "the commands are" in penstock.says(2, "xyzzy")


def test_an_unknown_option_is_answered_with_the_near_one(penstock):
    line = penstock.says(2, "jobs", "list", "--quue", "x")
    assert "'--quue'" in line
    assert "--queue" in line
    assert "see `penstock jobs list --help`" in line


def test_options_may_stand_before_or_after_the_command(penstock):
    before = penstock.ok("--json", "queues", "list")
    after = penstock.ok("queues", "list", "--json")
    assert json.loads(before) == json.loads(after) == {"queues": []}
    assert json.loads(penstock.ok("queues", "list", "--json", "--url", "memory://main", url=False)) == {
        "queues": []
    }


def test_the_real_command_imports_only_what_it_needs(shell):
    """What makes a command slow to start is what it imports: counted here, not timed."""
    ran = shell("--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert ran.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "click" in imported
    assert not imported & {"rich", "redis", "sqlite3", "cronsim", "uvloop", "multiprocessing", "unittest"}
    ours = {name for name in imported if name.split(".")[0] == "penstock"}
    assert (
        not {name for name in ours if name.startswith("penstock.stores.")}
        - {"penstock.stores.contract"}
        - {name for name in ours if name.startswith("penstock.stores.contract.")}
    )
    assert not {name.split(".")[1] for name in ours if "." in name} & {
        *("app", "client", "demo", "inspector", "maintenance", "pool"),
        *("testing", "verify", "worker"),
    }
    assert len(ours) < 49


def test_the_version_is_printed(shell):
    ran = shell("--version")
    assert ran.stdout.startswith("penstock 0.")


# ── exit codes ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), Exit.USAGE),
        (UnknownScheme("x"), Exit.USAGE),
        (ArgumentError("x"), Exit.USAGE),
        (JobExists("q", "x"), Exit.FAILED),
        (JobNotFound("x"), Exit.NOT_FOUND),
        (StoreUnavailable("x"), Exit.UNAVAILABLE),
        (StoreBusy("x"), Exit.UNAVAILABLE),
        (StoreCorrupt("x"), Exit.FAILED),
    ],
)
def test_each_error_has_its_exit_code(error, code):
    assert code_of(error) is code


def test_a_store_that_does_not_answer_is_one_line_and_exit_code_4(penstock, monkeypatch):
    async def away(*_, **__):
        raise StoreUnavailable("the store does not answer: try again")

    monkeypatch.setattr(MemoryStore, "queues", away)
    assert penstock.says(4, "queues", "list") == "the store does not answer: try again"


def test_the_traceback_is_shown_on_request(penstock, monkeypatch):
    async def away(*_, **__):
        raise StoreUnavailable("the store does not answer: try again")

    monkeypatch.setattr(MemoryStore, "queues", away)
    result = penstock("queues", "list", "--traceback")
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1] == "penstock: error: the store does not answer: try again"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlit:///x.db", "did you mean 'sqlite'?"),
        ("nonsense", "not a store URL"),
        ("redis+sentinel://localhost", "does not say which master"),
        ("sqlite:///x.db?durabilty=full", "did you mean 'durability'?"),
    ],
)
def test_a_url_that_leads_nowhere_is_one_line(url, says):
    assert says in Cli(url).says(2, "queues", "list")


def test_all_wrong_settings_are_reported(penstock, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LEESE", "1s")
    monkeypatch.setenv("PENSTOCK_CONCURRENCY", "many")
    result = penstock("queues", "list")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 2
    assert all(line.startswith("penstock: error: PENSTOCK_") for line in result.stderr.splitlines())


def test_looking_leaves_no_empty_store_behind(here):
    line = Cli(f"sqlite:///{here}/none.db").says(1, "queues", "list")
    assert line.startswith("there is no store at sqlite:///")
    assert list(here.iterdir()) == []


# ── which store ──────────────────────────────────────────────────────────────────────────────────


def test_the_store_can_come_from_the_environment_or_the_file(penstock, here, monkeypatch):
    (here / "penstock.toml").write_text('url = "memory://of-file"')
    assert penstock.json("config", url=False)["settings"][0]["source"] == "penstock.toml"
    monkeypatch.setenv("PENSTOCK_URL", "memory://of-env")
    assert penstock.json("config", url=False)["settings"][0]["source"] == "PENSTOCK_URL"
    assert penstock.json("config")["settings"][0]["source"] == "--url"


def test_the_store_can_be_that_of_an_app(penstock, here, tasks):
    assert "there is no store at sqlite:///" in penstock.says(
        1, "--app", "tasks:app", "queues", "list", url=False
    )
    penstock.ok("enqueue", "tasks:app", "tasks.greet", '["x"]', url=False)
    (queue,) = penstock.json("--app", "tasks:app", "queues", "list", url=False)["queues"]
    assert queue["counts"] == {"available": 1}
    assert penstock.json("queues", "list", url=False) == {
        "queues": [queue]
    }  # sqlite:///jobs.db is the default, too


def test_a_url_wins_over_an_app(penstock, tasks, here):
    assert penstock.json("--app", "tasks:app", "queues", "list") == {"queues": []}
    assert not (here / "jobs.db").exists()


def test_namespaces_do_not_see_each_other(here):
    penstock = Cli(f"sqlite:///{here}/jobs.db")
    penstock.ok("enqueue", "--raw", "-q", "q", "t", "{}", "--namespace", "team-a")
    assert penstock.json("queues", "list", "--namespace", "team-b") == {"queues": []}
    assert len(penstock.json("queues", "list", "--namespace", "team-a")["queues"]) == 1


# ── apps that do not load ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("tasks:ap", "the module 'tasks' has no 'ap' (did you mean tasks:app?)"),
        ("tasks:other", "tasks:other is not an App but of the type int (did you mean tasks:app?)"),
        ("tasks", "'tasks' is not an app: write module:attribute (did you mean tasks:app?)"),
        ("task:app", "there is no module 'task' (did you mean 'tasks'?)"),
        ("tasks.more:app", "there is no module 'tasks.more'"),
        ("tasks.py:app", "'tasks.py:app' is not an app: write the module, not its file, as in tasks:app"),
        ("./lib/tasks.py:app", "write the module, not its file, as in lib.tasks:app"),
        (":app", "write module:attribute, as in tasks:app"),
        ("tasks:", "write module:attribute, as in tasks:app"),
    ],
)
def test_an_app_that_is_not_there_is_one_line(penstock, tasks, spec, says):
    assert says in penstock.says(2, "--app", spec, "queues", "list", url=False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import json\nx = undefined\n", "NameError: name 'undefined' is not defined ({here}/broken.py:2)"),
        ("def f(:\n", "SyntaxError: invalid syntax ({here}/broken.py:1)"),
        ("import nosuchthing\n", "ModuleNotFoundError: No module named 'nosuchthing' ({here}/broken.py:1)"),
        ("raise SystemExit(3)\n", "SystemExit: 3 ({here}/broken.py:1)"),
        ("import json\njson.loads('{')\n", "JSONDecodeError"),
    ],
)
def test_an_app_whose_module_fails_is_one_line_with_the_place(penstock, here, monkeypatch, text, says):
    (here / "broken.py").write_text(text)
    line = penstock.says(1, "--app", "broken:app", "queues", "list", url=False)
    assert line.startswith("the module 'broken' cannot be imported: ")
    assert says.format(here=here) in line
    result = penstock("--app", "broken:app", "queues", "list", "--traceback", url=False)
    assert "broken.py" in result.stderr
    assert "Traceback" in result.stderr


def test_a_loaded_app_knows_its_spec(tasks):
    from penstock.app.loading import load_app

    assert load_app("tasks:app").spec == "tasks:app"
    assert sys.modules["tasks"].app.spec == "tasks:app"


# ── completion and config ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("shell_name", "has"), [("zsh", "#compdef penstock"), ("fish", "complete ")])
def test_completion_scripts_are_printed(penstock, shell_name, has):
    script = penstock.ok("completion", shell_name)
    assert has in script
    assert "_PENSTOCK_COMPLETE" in script
    assert penstock.json("completion", shell_name)["script"].strip() == script.strip()


@pytest.mark.slow
def test_the_shell_completes_commands_and_queues(shell, here):
    url = f"sqlite:///{here}/jobs.db"
    assert shell("--url", url, "enqueue", "--raw", "-q", "mailbox", "t").returncode == 0
    env = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock jo", "COMP_CWORD": "1"}
    assert complete(env) == ["plain,jobs"]
    env |= {"COMP_WORDS": "penstock queues pause mai", "COMP_CWORD": "3", "PENSTOCK_URL": url}
    assert complete(env) == ["plain,mailbox"]
    assert complete(env | {"PENSTOCK_URL": "nonsense"}) == []


@pytest.mark.slow
def test_completion_imports_no_app_but_the_one_on_the_command_line(here):
    (here / "penstock.toml").write_text('app = "stranger:app"\n')
    (here / "stranger.py").write_text(f"open({str(here / 'it-ran')!r}, 'w').close()\n{OTHER_APP}")
    env = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock queues pause ", "COMP_CWORD": "3"}
    assert complete(env) == []
    assert complete(env | {"PENSTOCK_APP": "stranger:app"}) == []
    assert not (here / "it-ran").exists()
    named = {"COMP_WORDS": "penstock --app stranger:app queues pause ", "COMP_CWORD": "5"}
    assert complete(env | named) == ["plain,theirs"]


@pytest.mark.slow
def test_completion_of_commands_and_options_imports_neither_an_app_nor_a_store(here):
    (here / "penstock.toml").write_text('app = "stranger:app"\n')
    code = """
import os, sys
from penstock.cli.main import cli
for words in ("penstock ", "penstock jobs list --st", "penstock workers q", "penstock queues list --w"):
    os.environ |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    try:
        cli(prog_name="penstock")
    except SystemExit:
        pass
heavy = ("penstock.app", "penstock.stores", "penstock.inspector", "sqlite3", "rich", "textual")
print(*[name for name in sys.modules if name.startswith(heavy)], file=sys.stderr)
"""
    env = {**os.environ, "_PENSTOCK_COMPLETE": "bash_complete", "PENSTOCK_APP": "stranger:app"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    offered = ran.stdout.split()
    for command in ("top", "stats", "errors", "bulk", "workers", "doctor"):
        assert f"plain,{command}" in offered
    assert {"plain,--state", "plain,quiet", "plain,--watch"} <= {*offered}
    assert ran.stderr.split() == []


def test_names_of_workers_flows_and_bulk_acts_are_completed(store):
    penstock = Cli(store.url)
    announce(store, WorkerInfo("0a1-x", "box", 1, 0, ("mail",), ("t",), 2))
    put(store, "a")
    penstock.ok("jobs", "retry", "--all", "--state", "dead", "--detach", "--yes")
    (bulk,) = penstock.json("bulk", "list")["bulk"]
    for words, offered in (
        ("workers quiet 0a", ["0a1-x"]),
        ("jobs list --worker 0a", ["0a1-x"]),
        ("bulk show ", [bulk["id"]]),
        ("flows show ", []),
    ):
        *args, incomplete = words.split(" ")
        complete = ShellComplete(cli, {}, "penstock", "_PENSTOCK_COMPLETE")
        found = complete.get_completions(["--url", penstock.url, *args], incomplete)
        assert [item.value for item in found] == offered


def test_completion_does_not_wait_for_a_store_that_is_away(store, monkeypatch):
    async def never(self):
        await asyncio.Event().wait()

    monkeypatch.setattr("penstock.cli.completing._PATIENCE", 0.01)
    monkeypatch.setattr(type(store), "queues", never)
    complete = ShellComplete(cli, {}, "penstock", "_PENSTOCK_COMPLETE")
    assert complete.get_completions(["--url", store.url, "queues", "pause"], "m") == []


OTHER_APP = """
from penstock import App

app = App("sqlite:///theirs.db")
app.queue("theirs").settings(max_running=1)
"""


def complete(env):
    # the name under which the shell calls it decides the name of the variable
    code = "from penstock.cli.main import cli; cli(prog_name='penstock')"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in ran.stderr
    return ran.stdout.split()


def test_config_shows_each_value_and_its_source(penstock, here, monkeypatch):
    (here / "penstock.toml").write_text('concurrency = 50\nurl = "redis://:s3cret@host"\n')
    monkeypatch.setenv("PENSTOCK_LEASE", "30s")
    settings = {s["name"]: s for s in penstock.json("config", url=False)["settings"]}
    assert (settings["concurrency"]["value"], settings["concurrency"]["source"]) == ("50", "penstock.toml")
    assert (settings["lease"]["value"], settings["lease"]["source"]) == ("30s", "PENSTOCK_LEASE")
    assert settings["url"]["value"] == "redis://:***@host"
    assert settings["retention"] == {
        "name": "retention",
        "value": "10m",
        "source": "default",
        "default": "10m",
        "variable": "PENSTOCK_RETENTION",
        "kind": "duration",
        "why": "how long a completed job and its result are kept",
    }
    lines = penstock.ok("config", "--changed", url=False).splitlines()
    assert [line.split()[0] for line in lines] == ["SETTING", "url", "concurrency", "lease", "heartbeat"]
    assert "how long a completed job" in penstock.ok("config", "--why")


def test_config_with_a_wrong_file_fails_with_what_is_wrong(penstock, here):
    (here / "penstock.toml").write_text("concurency = 50\n")
    assert "concurency is not a setting (did you mean 'concurrency'?)" in penstock.says(
        2, "config", url=False
    )


@pytest.mark.parametrize("words", [("worker", "tasks:app"), ("enqueue", "tasks:app", "tasks.greet")])
def test_a_url_beside_an_app_that_works_on_its_own_store_is_refused(penstock, words):
    assert "an app uses its own store: leave --url out" in penstock.says(2, *words)


@pytest.mark.slow
def test_at_a_terminal_an_id_is_whole_and_json_is_indented(here):
    url = f"sqlite:///{here}/jobs.db"
    long = "x" * 100
    Cli(url).ok("enqueue", "--raw", "-q", "mail", "some.task.with.a.name", "{}", "--id", long)
    shown = at_terminal("--url", url, "jobs", "list")
    assert long in shown
    assert "some.task.with.a.name" in shown
    assert "\x1b[" in shown  # coloured
    assert '\n  "jobs": [' in at_terminal("--url", url, "jobs", "list", "--json").replace("\r", "")


# ── errors as JSON ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, "jobs list --limit x --json"),
        (2, "jobs list --no-such-option --json"),
        (2, "nosuchcommand --json"),
        (2, "--json config --namespace a/b"),
        (3, "jobs show nope --json"),
        (3, "queues pause nope --json"),
        (1, "--json jobs cancel --all -q default"),
    ],
)
def test_an_error_is_a_json_document_as_well(store, code, words):
    put(store, "a")
    penstock = Cli(store.url)
    result = penstock(*words.split(), input="n\n")
    assert result.exit_code == code, result.output
    error = json.loads(result.stdout)["error"]
    assert error["code"] == code
    assert error["message"] in result.stderr


def test_an_unexpected_error_gives_a_traceback_and_a_line(penstock, monkeypatch):
    async def broken(*_, **__):
        raise KeyError("\x1b[2J")

    monkeypatch.setattr(MemoryStore, "queues", broken)
    result = penstock("queues", "list", "--json")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "\x1b" not in result.stderr
    assert json.loads(result.stdout) == {"error": {"code": 1, "message": "'\\x1b[2J'"}}
