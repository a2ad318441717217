"""Finds the server programs of the tests; skips or fails if they are missing."""

from __future__ import annotations

import os
import shutil

import pytest

from penstock.verify.servers.nodes import HOST, READY, free_port, start, until

__all__ = ["HOST", "READY", "free_port", "redis_program", "server_or_skip", "start", "until"]

#: Whether the test that runs may start servers: `make check` leaves it out (see tests/conftest.py).
may_start = True


def server_or_skip(*names: str) -> str:
    """The path of the first of these programs that exists. Without any: skip on a laptop, fail in CI."""
    for name in names:
        if (path := shutil.which(name)) is not None:
            return path
    message = f"needs {' or '.join(names)}, which is not installed (try: make servers)"
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{message}, and CI is set", pytrace=False)
    pytest.skip(message)


def redis_program() -> str:
    if not may_start:
        pytest.fail("it starts a server, and `make check` has none: mark this test: @pytest.mark.server")
    return server_or_skip("redis-server", "valkey-server")
