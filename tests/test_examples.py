"""Each example runs and prints what its text says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

#: Per example: its options, and its output line by line as patterns. Figures vary, counts do not.
SAYS: dict[str, tuple[list[str], list[str]]] = {
    "backpressure.py": (
        [],
        [
            r"the queue is full: 50 imports wait in it, and the next customer was sent away",
            r"customers: all 200 imports were accepted in the end; sent away [1-9]\d* times",
            r"each time the answer said when to come again",
            r"worker: 200 imports done, each once; nothing that was accepted is lost",
        ],
    ),
    "checkout.py": (
        [],
        [
            r"the worker was killed 5 times, once after each step of the first order",
            r"first order: order 1 is closed: ANN, BOB",
            r"second order: dead: (undone after: )?out of stock",  # a kill may meet it before its undo
            r"the bank: charge of order 1, charge of order 2, refund of order 2",
        ],
    ),
    "devices.py": (
        [],
        [
            r"9 commands to 3 devices, stored by 2 producers; the first of d3 is for later",
            r"d1: lock, blink, unlock",
            r"d2: lock, blink, unlock \(lock was tried 3 times: the device was offline\)",
            r"d3: blink, unlock, lock",
            r"no device was ever told two things at once",
        ],
    ),
    "thumbnails.py": (
        [],
        [
            r"20 pictures, one flow of 22 nodes",
            r"19 thumbnails, 1 broken pictures",
            r"the flow is completed; the page has 19 files to show",
        ],
    ),
    "orders.py": (
        ["--scale", "0.004"],
        [
            r"45 orders: reminded at minute 10, closed at minute 30 unless paid",
            r"minute  5: 10 paid, their reminder and their closing were called off",
            r"minute 10: a worker was killed while it sent reminders",
            r"minute 20: 35 reminders have been sent; 10 more orders were paid",
            r"minute 30: the rest was closed, or paid in the same instant",
            r"reminders: 35 sent, each once",
            r"races: 20 decided, none twice, none never",
            r"the killed worker's reminders ran again",
            r"nothing ran early; the latest first attempt began \d+ ms after its time",
            r"of the racing customers \d+ were in time and \d+ too late",
        ],
    ),
    "two_queues.py": (
        ["--scale", "0.5"],
        [
            r"enqueued: 100 reports and 300 mails; slots: 10 for reports, 20 for mails",
            r"TERM: the worker ended what ran, and went; nothing was cut off",
            r"reports: at most 10 at once",
            r"mails: at most 20 at once",
            r"reports: 100 came by their own middleware",
            r"done: 100 reports and 300 mails, each in one attempt",
        ],
    ),
}
LIVE = re.compile(r"live: mails \d+ waiting, \d+ leased, \d+ done; reports \d+ waiting, \d+ leased, \d+ done")


def test_every_example_has_its_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.system
@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_says_what_it_should(name: str, tmp_path: Path) -> None:
    options, expected = SAYS[name]
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    said = [line for line in ran.stdout.splitlines() if not LIVE.fullmatch(line)]
    assert len(said) == len(expected), ran.stdout
    for line, pattern in zip(said, expected, strict=True):
        assert re.fullmatch(pattern, line), line
    assert ran.stdout.count("live: ") >= 3 or name != "two_queues.py"
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
