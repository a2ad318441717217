"""`penstock dev`: one process that works, serves the dashboard, and restarts when the code changes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from tests.cli.conftest import Cli
from tests.cli.test_worker import wait_for

CODE = """
import asyncio
from penstock import App

app = App("sqlite:///jobs.db", retention="1h")

@app.task
async def greet(name: str) -> str:
    return f"hello {name}"

@app.task
async def never(name: str) -> None:
    print("never", name, flush=True)
    await asyncio.sleep(3_600)
"""


class Dev:
    """The running command, and the store that it uses."""

    def __init__(self, here: Path, code: str = CODE) -> None:
        self.code = here / "tasks.py"
        self.code.write_text(code)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "dev", "tasks:app", "--port", "0", "--json"],
            cwd=here,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PENSTOCK_LOG_FORMAT": "text"},
        )
        assert self.process.stdout is not None
        self.facts = json.loads(self.process.stdout.readline())
        self.app = App(f"sqlite:///{here}/jobs.db")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.app.store.close()

    def logs(self, text: str) -> None:
        wait_for(self.process.stderr, text)

    def greets(self, name: str) -> Any:
        payload = json.dumps({"name": name}).encode()
        handle = self.app.enqueue_raw("default", payload, "tasks.greet", retention="1h")
        return handle.result(timeout=60)

    def page(self, path: str = "/") -> tuple[int, str]:
        client = http.client.HTTPConnection("127.0.0.1", self.facts["port"], timeout=20)
        client.request("GET", path)
        answer = client.getresponse()
        text = answer.read().decode()
        client.close()
        return answer.status, text


@pytest.fixture
def dev(here: Path) -> Iterator[Dev]:
    made = Dev(here)
    yield made
    made.close()


@pytest.mark.system
def test_code_is_changed_broken_and_mended_while_jobs_run_and_pages_are_open(dev: Dev) -> None:
    assert dev.greets("ann") == "hello ann"
    assert dev.page("/queues/default")[0] == 200
    dev.code.write_text(CODE + "def (")
    dev.logs("tasks.py changed: the app restarts")
    dev.logs("SyntaxError: invalid syntax")
    dev.logs("waiting for a change")
    status, text = dev.page()
    assert status == 503
    assert "def (\n" in text
    assert "user_modules" not in text
    dev.code.write_text(CODE.replace("hello", "hallo"))
    assert dev.greets("bob") == "hallo bob"
    assert dev.page("/queues/default")[0] == 200
    dev.app.enqueue_raw("default", b'{"name": "x"}', "tasks.never")
    assert dev.process.stdout is not None
    wait_for(dev.process.stdout, "never x")
    dev.process.send_signal(signal.SIGHUP)  # its terminal is closed
    dev.logs("drains: 1 job(s) may run for up to 5s")
    dev.process.send_signal(signal.SIGINT)
    dev.logs("0 job(s) ended, 1 released")
    assert dev.process.wait(60) == 0
    (counts,) = [queue.counts for queue in dev.app.store.sync.queues()]
    assert counts == {"completed": 2, "available": 1}


def test_a_taken_port_and_a_missing_app_are_said_in_a_line(here: Path) -> None:
    penstock = Cli("memory://dev")
    assert "no app: name one" in penstock("dev", url=False).output
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = penstock("dev", "tasks:app", "--port", port, url=False)
    assert said.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; name another port" in said.output
