"""The programs that are measured: how each is prepared, and the commands of its producer and worker."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.venvs import create_venv, install

__all__ = ["PROGRAMS", "Commands", "Missing", "Place", "Program"]

_HERE = Path(__file__).resolve().parent
_PYTHON = _HERE / "python"
_RUST = (3, 13)  # mayu and ardiq need this Python


class Missing(Exception):
    """What this machine lacks to run a program, in one line."""


class Place(msgspec.Struct, frozen=True):
    """Where programs are built and environments kept, and the interpreter for libraries with a Rust core."""

    venvs: Path
    python313: str | None = None


class Commands(msgspec.Struct, frozen=True):
    """What to run, in which folder. `producer` takes the command and its numbers as further arguments."""

    producer: Sequence[str]
    worker: Sequence[str]
    folder: Path
    env: dict[str, str] = {}


class Program(msgspec.Struct, frozen=True):
    """A measured program.

    `callers`: number of concurrent callers, 0 if it has no such producer. `times`: its drain takes this
    multiple of the usual number of jobs, filled in bulk. `enqueues`: False if another row shows the enqueues.
    """

    title: str
    prepare: Callable[[Place], Commands]
    callers: int = 0
    times: int = 1
    enqueues: bool = True


# ── Penstock and other libraries on this Python ──────────────────────────────────────────────────


def _penstock(kind: str) -> Callable[[Place], Commands]:
    def prepare(place: Place) -> Commands:
        python = sys.executable
        worker = [python, "-m", "penstock", "worker", "penstock_program:app", "--log-level", "warning"]
        return Commands([python, "penstock_program.py"], worker, _PYTHON, {"BENCH_KIND": kind})

    return prepare


def _dramatiq(place: Place) -> Commands:
    python = _environment(
        place, "dramatiq", sys.executable, "dramatiq==2.2.1", "redis==8.1.0", "hiredis==3.5.0"
    )
    worker = [python, "-m", "dramatiq", "dramatiq_program", "-p", "1", "-t", "4", "--skip-logging"]
    # its default of twice the threads makes the consumer wait when it is full
    return Commands([python, "dramatiq_program.py"], worker, _PYTHON, {"dramatiq_queue_prefetch": "100"})


def _huey(place: Place) -> Commands:
    python = _environment(place, "huey", sys.executable, "huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0")
    return Commands([python, "huey_program.py"], [python, "huey_program.py", "worker"], _PYTHON)


# ── libraries with a Rust core ───────────────────────────────────────────────────────────────────


def _mayu(place: Place) -> Commands:
    python = _environment(place, "mayu", _python313(place), "mayu==0.2.5")
    worker = [python, "-m", "mayu", "worker", "--threads", "4", "--mode", "thread", "--log-level", "WARNING"]
    return Commands([python, "mayu_program.py"], [*worker, "mayu_program:app"], _PYTHON)


def _ardiq(place: Place) -> Commands:
    python = _environment(place, "ardiq", _python313(place), "ardiq==1.2.0")
    worker = [python, "-m", "ardiq", "run", "--quiet", "ardiq_program:app"]
    return Commands([python, "ardiq_program.py"], worker, _PYTHON)


def _python313(place: Place) -> str:
    """The first interpreter that is new enough."""
    wanted = ".".join(map(str, _RUST))
    if place.python313 is not None:
        if not _is_new(place.python313):
            raise Missing(f"{place.python313} is not Python {wanted} or newer")
        return place.python313
    for name in (sys.executable, "python3.13", "python3.14", "python3"):
        if _is_new(name):
            return name
    raise Missing(f"Python {wanted} or newer is not on PATH (say where with --python313)")


def _is_new(python: str) -> bool:
    """False also for a name that does not run, such as pyenv's for a version that is not chosen."""
    check = f"import sys; sys.exit(sys.version_info < {_RUST})"
    try:
        return subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _environment(place: Place, name: str, python: str, *pins: str) -> str:
    try:
        interpreter = create_venv(python, place.venvs / name)
        install(interpreter, pins)
    except subprocess.CalledProcessError as error:
        raise Missing(f"pip could not install {' '.join(pins)}: {_last_line(error.stderr)}") from None
    return str(interpreter)


# ── other languages ──────────────────────────────────────────────────────────────────────────────


def _asynq(place: Place) -> Commands:
    go = shutil.which("go")
    if go is None:
        raise Missing("Go is not on PATH")
    program = place.venvs / "asynq" / "asynq"
    program.parent.mkdir(parents=True, exist_ok=True)
    build = [go, "build", "-buildvcs=false", "-o", str(program), "."]
    built = subprocess.run(build, cwd=_HERE / "asynq", capture_output=True, text=True, check=False)
    if built.returncode:
        raise Missing(f"go build failed: {_last_line(built.stderr)}")
    return Commands([str(program)], [str(program), "worker"], _HERE / "asynq", {"BENCH_SLOTS": "10"})


def _sidekiq(place: Place) -> Commands:
    ruby, sidekiq = shutil.which("ruby"), shutil.which("sidekiq")
    if ruby is None or sidekiq is None:
        raise Missing("Sidekiq is not on PATH (Debian: apt-get install ruby-sidekiq)")
    worker = [sidekiq, "-r", "./jobs.rb", "-c", "25", "-e", "production"]
    return Commands([ruby, "produce.rb"], worker, _HERE / "sidekiq")


def _last_line(text: str | None) -> str:
    return (text or "").strip().rpartition("\n")[2] or "it said nothing"


#: In the order of the table, which is also the order of a repetition.
PROGRAMS = {
    "penstock": Program("Penstock, async tasks", _penstock("async"), callers=100, times=10),
    "penstock-threads": Program("Penstock, thread tasks", _penstock("thread"), times=10, enqueues=False),
    "dramatiq": Program("dramatiq", _dramatiq),
    "huey": Program("huey", _huey),
    "mayu": Program("mayu (Rust core)", _mayu),
    "ardiq": Program("ardiq (Rust core)", _ardiq, callers=100),
    "asynq": Program("asynq", _asynq, callers=32),
    "sidekiq": Program("Sidekiq", _sidekiq),
}
