"""What the command line shows of a store, in a process of its own as an operator's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from penstock.verify.ledger.rules.faces import Numbers, numbers_of
from penstock.verify.run_folder import VerifyFailed

__all__ = ["command_line_numbers"]

_PATIENCE = 60.0


def command_line_numbers(url: str, namespace: str) -> Numbers:
    """The jobs by state and the totals of all queues, from `penstock queues list` and `penstock stats`.

    Raises VerifyFailed.
    """
    env = {**os.environ, "PENSTOCK_URL": url, "PENSTOCK_NAMESPACE": namespace}
    return numbers_of(_json(env, "queues", "list")["queues"], _json(env, "stats")["queues"])


def _json(env: dict[str, str], *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "penstock", *words, "--json"]
    said = subprocess.run(  # noqa: S603 (a program of ours, in words of ours)
        command, env=env, capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    if said.returncode:
        raise VerifyFailed(f"penstock {' '.join(words)} failed: {said.stderr.strip()[-500:]}")
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer
