"""`penstock serve` starts the dashboard and stops it by a signal, also while a page listens."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.system
def test_serve_opens_a_page_and_ends_its_streams_at_sigterm(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    command = [sys.executable, "-m", "penstock", "serve", "--url", url, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        server.send_signal(signal.SIGUSR1)  # of a program that rotates logs
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        client.request("GET", "/")
        answer = client.getresponse()
        assert answer.status == 200
        assert b"No queues yet" in answer.read()
        client.request("GET", "/events")
        stream = client.getresponse()
        assert stream.getheader("x-accel-buffering") == "no"
        assert stream.readline() == b"retry: 3000\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        assert stream.read().endswith(b"\n")
        client.close()
