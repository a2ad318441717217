"""Effects of durable steps, outside of the store: a file for each step of each job, a line for each effect.

They stand for charges and mails: what cannot be taken back. So the files show what happened, whatever the
store and the ledger say. This page imports little: a step in a process of its own imports it.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from penstock.core.job import Ref


class StepEffect(msgspec.Struct, frozen=True):
    """An effect of a step: under which lease, when (mono), in which process, and for which arguments.

    `mark`: another for each effect; the step's result has it. `given`: the arguments as JSON, shortened.
    """

    token: str
    mono: int
    pid: int
    mark: str
    given: str


class StepEffects:
    """The effects of a run, in a folder beside the facts of its ledger."""

    def __init__(self, ledger: str | Path) -> None:
        self._folder = Path(ledger) / "effects"

    def happen(self, ref: Ref, step: str, effect: StepEffect) -> None:
        """Append an effect, in one system call. The kernel has it when this returns."""
        folder = self._folder / quote(ref.queue, safe="") / quote(ref.id, safe="")
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(
            folder / quote(step, safe=""), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(file, msgspec.json.encode(effect) + b"\n")
        finally:
            os.close(file)

    def read(self) -> dict[Ref, dict[str, list[StepEffect]]]:
        """All effects, by job and step, in the order in which they happened."""
        found: dict[Ref, dict[str, list[StepEffect]]] = {}
        for path in sorted(self._folder.glob("*/*/*")):
            ref = Ref(unquote(path.parent.parent.name), unquote(path.parent.name))
            lines = path.read_bytes().splitlines()
            found.setdefault(ref, {})[unquote(path.name)] = [_decode(line) for line in lines]
        return found


_decode = msgspec.json.Decoder(StepEffect).decode


def act_in_process(n: int, job: str, place: tuple[str, str, str, str]) -> list[Any]:
    """Have the effect of the step `render`. `place`: ledger, queue, job, and token of the lease."""
    ledger, queue, id, token = place
    mark = secrets.token_hex(4)
    effect = StepEffect(token, time.monotonic_ns(), os.getpid(), mark, msgspec.json.encode((n, job)).decode())
    StepEffects(ledger).happen(Ref(queue, id), "render", effect)
    return [n, mark]
