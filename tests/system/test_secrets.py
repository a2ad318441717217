"""Keys and passwords appear in no output, log, event, error, traceback or listing."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock.encryption import new_key
from tests.servers import RedisServer
from tests.system.conftest import PATIENCE, Place

PASSWORD = "hunter2/Tr0ub4dor@3"

TASKS = """
import logging
import os
import sys

from penstock import App, Event

logging.basicConfig(level=logging.DEBUG)
app = App()


@app.on(Event)
def tell(event: Event) -> None:
    print("event", event, file=sys.stderr)


@app.task(max_attempts=1)
def fail(text: str) -> None:
    raise ValueError(text)


@app.task(run_in="process")
def add(a: int, b: int) -> int:
    return a + b


@app.task
async def show() -> str:
    return repr((app, app.store, vars(app.store)))
"""

SAY = """
import json
import shlex
import sys
import traceback

from click.testing import CliRunner

from penstock.cli.main import cli

for command in json.loads(sys.argv[1]):
    words = shlex.split(command)
    env = dict(word.split("=", 1) for word in words if word.startswith("PENSTOCK_"))
    words = [word for word in words if not word.startswith("PENSTOCK_")]
    sys.modules.pop("tasks", None)
    done = CliRunner().invoke(cli, words, prog_name="penstock", env=env)
    print("$", words, done.output, sep="\\n")
    print(f"exit {done.exit_code}")
    if done.exc_info:
        traceback.print_exception(*done.exc_info)
"""


class Silence:
    """A folder with an app that has secrets, and all that was said there."""

    def __init__(self, place: Place, url: str, key: str) -> None:
        self.place = place
        self.url = url
        self.key = key
        (place.folder / "tasks.py").write_text(TASKS)
        (place.folder / "penstock.toml").write_text(f'key = "{key}"\n')

    def run(self, *commands: str, url: str = "", **env: str) -> list[int]:
        """Commands to their ends, in one process of their own; their exit codes."""
        (self.place.folder / "say.py").write_text(SAY)
        program = self.place.start(
            "say.py", json.dumps(commands), PENSTOCK_URL=url or self.url, PENSTOCK_LOG_LEVEL="debug", **env
        )
        assert program.wait() == 0, program.log
        return [int(code) for code in re.findall(r"^exit (\d+)$", program.log, re.M)]

    @property
    def said(self) -> str:
        return "\n".join(program.log for program in self.place.programs)

    def leaks(self) -> list[str]:
        """The lines in which a secret stands, in any spelling."""
        raw = b64decode(self.key)
        secrets = [self.key, self.key.rstrip("="), raw.hex(), repr(raw)[2:-1], "hunter2", "Tr0ub4dor"]
        secrets.append(b64encode(PASSWORD.encode()).decode())
        return [line for line in self.said.splitlines() if any(secret in line for secret in secrets)]


@pytest.fixture
def server(new_redis: Callable[..., RedisServer]) -> RedisServer:
    server = new_redis(f'requirepass "{PASSWORD}"', password=PASSWORD)
    return server


def url_of(server: RedisServer, password: str = PASSWORD) -> str:
    return f"redis://:{quote(password, safe='')}@127.0.0.1:{server.port}/0"


def test_a_worker_and_its_commands_say_no_secret(place: Place, server: RedisServer) -> None:
    at = Silence(place, url_of(server), new_key())
    jobs = ["tasks.fail '[\"boom\"]' --id 1", "tasks.add '[1, 2]' --id 2", "tasks.show --id 3"]
    assert at.run(*(f"enqueue tasks:app {job}" for job in jobs)) == [0, 0, 0]
    worker = place.start(
        *["-m", "penstock", "worker", "tasks:app", "--burst", "--log-level", "debug"], PENSTOCK_URL=at.url
    )
    assert worker.wait() == 0
    assert "ValueError: boom" in worker.log, "the worker tells of what happens"
    assert "event JobCompleted" in worker.log
    looks = ["config", "config --why", "config --json", "queues list", "workers", "stats", "doctor"]
    looks += ["jobs list --json", *(f"jobs show {id} --full" for id in "123")]
    assert set(at.run(*looks)) <= {0, 1}
    assert "<App of 3 tasks on" in at.said
    assert "***" in at.said
    assert at.leaks() == []


def test_neither_do_those_that_find_no_store(place: Place, server: RedisServer) -> None:
    at = Silence(place, url_of(server), new_key())
    tries = ["enqueue tasks:app tasks.show --traceback", "jobs list --traceback", "doctor --traceback"]
    assert 0 not in at.run(*tries, url=url_of(server, "hunter2-wrong"))
    server.kill()
    assert 0 not in at.run(tries[1], "worker tasks:app --burst")
    assert len(at.said) > 500
    assert at.leaks() == []


WRONG = [
    "redis://:hunter2@127.0.0.1:1/x",
    "redis:/:hunter2@127.0.0.1:1",
    "redis:hunter2",
    "rdis://:hunter2@127.0.0.1:1",
    "redis://:hunter2@127.0.0.1:99999",
    "redis://:hunter2/slash@127.0.0.1:1",
    "redis://user:hunter2@@127.0.0.1:1/0?nonsense=1",
    "redis://127.0.0.1:1/0?password=hunter2",
    "redis+sentinel://a:1/m?sentinel_password=hunter2&sentinel_password=hunter2",
    "sqlite://user:hunter2@host/jobs.db",
    "memory://user:hunter2@host/x",
    "postgresql://user:hunter2@host/db",
]


def test_a_url_that_cannot_be_does_not_have_its_password_repeated(place: Place) -> None:
    at = Silence(place, "", new_key())
    commands = [f"{command} --traceback" for command in ("jobs list", "enqueue tasks:app tasks.show")]
    assert 0 not in at.run(*(f"PENSTOCK_URL='{url}' {command}" for url in WRONG for command in commands))
    assert len(at.said) > 1000
    assert at.leaks() == []


def test_a_key_that_is_none_is_not_repeated(place: Place) -> None:
    at = Silence(place, "sqlite:///jobs.db", new_key())
    assert at.run("config", "jobs list --traceback", PENSTOCK_KEY="hunter2") == [2, 2]
    (place.folder / "penstock.toml").write_text('key = ["hunter2"]\n')
    assert 0 not in at.run("worker tasks:app --traceback", "enqueue tasks:app tasks.show --traceback")
    assert "penstock keygen" in at.said
    assert at.leaks() == []


def test_a_child_process_does_not_get_the_key(place: Place) -> None:
    """Its environment can be read by others of the same user, and outlives it in a core dump."""
    at = Silence(place, place.url, new_key())
    worker = place.start("-m", "penstock", "worker", "tasks:app", PENSTOCK_URL=place.url)
    place.until(lambda: " serves " in worker.log, "the worker serves")
    for pid in worker.session_processes():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert at.key.encode() not in environment + command
    worker.signal(15)
    assert worker.wait(PATIENCE) == 0
    assert at.leaks() == []
