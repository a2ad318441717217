"""What tasks of each executor find around them in a supervised worker: signals, streams, the log."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.app.loading import enable_own_loggers
from tests.system.conftest import Place

_SIGNALS = '''

import subprocess
import sys


def dispositions() -> str:
    """What a program that a task starts does with the signals that end it."""
    code = "import signal; print(*(signal.getsignal(n) is signal.SIG_IGN for n in (2, 15, 1, 17)))"
    mask = "; print(*signal.pthread_sigmask(0, []))"
    return subprocess.run([sys.executable, "-c", code + mask], capture_output=True, text=True).stdout.strip()


@app.task(name="program")
def program() -> str:
    return dispositions()


@app.task(name="program_async")
async def program_async() -> str:
    return dispositions()


@app.task(name="program_process", run_in="process")
def program_process() -> str:
    return dispositions()
'''

_STREAMS = """

def say(text: str) -> str:
    print(text, flush=True)
    print(text, file=__import__("sys").stderr)
    return "said"


@app.task(name="says", retry="1h", max_attempts=1)
def says(text: str) -> str:
    return say(text)


@app.task(name="says_process", run_in="process", max_attempts=1)
def says_process(text: str) -> str:
    return say(text)
"""

_LOG = """

import logging.config

CONFIG = {
    "version": 1,
    "handlers": {"own": {"class": "logging.StreamHandler"}},
    "root": {"level": "INFO", "handlers": ["own"]},
}
if (HERE / "at start").exists():

    @app.on_startup
    def configure() -> None:
        logging.config.dictConfig(CONFIG)

else:
    logging.config.dictConfig(CONFIG)


@app.task(name="fails", max_attempts=1)
def fails() -> None:
    raise ValueError("for good")
"""


def with_tasks(place: Place, text: str) -> Any:
    with (place.folder / "tasks.py").open("a") as file:
        file.write(text)
    return place.tasks


def test_programs_of_tasks_do_not_ignore_signals(place: Place) -> None:
    tasks = with_tasks(place, _SIGNALS)
    handles = [one.enqueue() for one in (tasks.program, tasks.program_async, tasks.program_process)]
    place.worker()
    place.until_ended(handles)
    assert [handle.result(1) for handle in handles] == ["False False False False"] * 3


@pytest.mark.parametrize("restarted", [False, True])
def test_a_task_may_print_any_character_with_the_c_locale(place: Place, restarted: bool) -> None:
    tasks = with_tasks(place, _STREAMS)
    worker = place.worker(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    if restarted:  # a process that is started later is a new program, not a fork
        (info,) = place.workers()
        place.until(lambda: _kill(info.pid), "it is killed")
        place.until(lambda: [one for one in place.workers() if one.pid != info.pid], "another one serves")
    handles = [one.enqueue("žluťoučký kůň") for one in (tasks.says, tasks.says_process)]
    place.until_ended(handles)
    assert [handle.result(1) for handle in handles] == ["said", "said"]
    assert "\\u017elu" in worker.log


def _kill(pid: int) -> bool:
    import os
    import signal

    os.kill(pid, signal.SIGKILL)
    return True


@pytest.mark.parametrize("when", ["import", "at start"])
def test_an_app_that_configures_its_log_does_not_silence_the_worker(place: Place, when: str) -> None:
    """`logging.config.dictConfig` disables all loggers that exist, by default."""
    (place.folder / when).touch()
    tasks = with_tasks(place, _LOG)
    enable_own_loggers()  # the import has silenced them in this process, too: other tests look at them
    worker = place.worker()
    handle = tasks.fails.enqueue()
    place.until_ended([handle])
    place.until(lambda: "for good" in worker.log, "the death of the job is logged")
