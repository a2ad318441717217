"""No secret is ever said: keys and passwords stand in no output, log, event, error, traceback or listing."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock.sealing import new_key
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


class Silence:
    """A folder with an app that has secrets, and all that was said there."""

    def __init__(self, place: Place, url: str, key: str) -> None:
        self.place = place
        self.url = url
        self.key = key
        self.said: list[str] = []
        (place.folder / "tasks.py").write_text(TASKS)
        (place.folder / "penstock.toml").write_text(f'key = "{key}"\n')

    def run(self, *words: str, url: str = "", **env: str) -> int:
        """A command to its end; its exit code."""
        done = self.place.penstock(*words, PENSTOCK_URL=url or self.url, PENSTOCK_LOG_LEVEL="debug", **env)
        self.said += [f"$ penstock {' '.join(words)}", done.stdout, done.stderr]
        return done.returncode

    def leaks(self) -> list[str]:
        """The lines in which a secret stands, in any spelling."""
        raw = b64decode(self.key)
        secrets = [self.key, self.key.rstrip("="), raw.hex(), repr(raw)[2:-1], "hunter2", "Tr0ub4dor"]
        secrets.append(b64encode(PASSWORD.encode()).decode())
        text = "\n".join([*self.said, *(program.log for program in self.place.programs)])
        return [line for line in text.splitlines() if any(secret in line for secret in secrets)]


@pytest.fixture
def server(new_redis: Callable[..., RedisServer]) -> RedisServer:
    server = new_redis(f'requirepass "{PASSWORD}"', password=PASSWORD)
    return server


def url_of(server: RedisServer, password: str = PASSWORD) -> str:
    return f"redis://:{quote(password, safe='')}@127.0.0.1:{server.port}/0"


def test_a_worker_and_its_commands_say_no_secret(place: Place, server: RedisServer) -> None:
    at = Silence(place, url_of(server), new_key())
    for task, arguments in (("fail", '["boom"]'), ("add", "[1, 2]"), ("show", "[]")):
        assert at.run("enqueue", "tasks:app", f"tasks.{task}", arguments) == 0
    assert at.run("worker", "tasks:app", "--burst", "--log-level", "debug") == 0
    assert "ValueError: boom" in "".join(at.said), "the worker tells of what happens"
    assert "event JobCompleted" in "".join(at.said)
    for words in ("config", "config --why", "config --json", "queues list", "workers", "stats", "doctor"):
        assert at.run(*words.split()) in (0, 1)
    assert at.run("jobs", "list", "--json") == 0
    shown = "".join(at.said)
    assert "***" in shown
    for id in re.findall(r"default/([0-9a-f-]{36})", shown):
        assert at.run("jobs", "show", id, "--full") == 0
    assert at.leaks() == []


def test_neither_do_those_that_find_no_store(place: Place, server: RedisServer) -> None:
    at = Silence(place, url_of(server), new_key())
    wrong = url_of(server, "hunter2-wrong")
    assert at.run("enqueue", "tasks:app", "tasks.show", "--traceback", url=wrong) != 0
    assert at.run("worker", "tasks:app", "--burst", url=wrong) != 0
    assert at.run("doctor", "--traceback", url=wrong) != 0
    server.kill()
    for words in (
        "enqueue tasks:app tasks.show --traceback",
        "jobs list --traceback",
        "worker tasks:app --burst",
    ):
        assert at.run(*words.split()) != 0
    assert len("".join(at.said)) > 500
    assert at.leaks() == []


@pytest.mark.parametrize(
    "url",
    [
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
    ],
)
def test_a_url_that_cannot_be_does_not_have_its_password_repeated(place: Place, url: str) -> None:
    at = Silence(place, url, new_key())
    assert at.run("enqueue", "tasks:app", "tasks.show", "--traceback", url=url) != 0
    assert at.leaks() == []


def test_a_key_that_is_none_is_not_repeated(place: Place) -> None:
    at = Silence(place, "sqlite:///jobs.db", new_key())
    assert at.run("config", PENSTOCK_KEY="hunter2") != 0
    (place.folder / "penstock.toml").write_text('key = ["hunter2"]\n')
    assert at.run("worker", "tasks:app", "--traceback") != 0
    assert "penstock keygen" in "".join(at.said)
    assert at.leaks() == []


def test_a_child_is_not_told_the_key(place: Place) -> None:
    """Its environment can be read by others of the same user, and outlives it in a core dump."""
    at = Silence(place, place.url, new_key())
    worker = place.start("-m", "penstock", "worker", "tasks:app", PENSTOCK_URL=place.url)
    place.until(lambda: " serves " in worker.log, "the worker serves")
    for pid in worker.family():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert at.key.encode() not in environment + command
    worker.signal(15)
    assert worker.wait(PATIENCE) == 0
    assert at.leaks() == []
