"""A worker with an unusable configuration ends with a one-line error and an exit code, and no job is lost."""

from __future__ import annotations

import sqlite3

import pytest

from penstock.core.job import State
from tests.system.conftest import Place


def _refused(place: Place, *arguments: str, **env: str) -> tuple[int, str]:
    """The exit code of a worker that must not start, and the one line that it says."""
    program = place.start("-m", "penstock", "worker", *arguments, **env)
    code = program.wait(60)
    said = [line for line in program.log.splitlines() if " INFO penstock." not in line]
    assert len(said) == 1, f"not one clear line but {said}"
    assert said[0].startswith("penstock: error: ")
    assert not program.session_processes()
    return code, said[0].removeprefix("penstock: error: ")


def _write(place: Place, name: str, text: str) -> None:
    (place.folder / f"{name}.py").write_text(text)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_no_such_module(place, processes):
    code, says = _refused(place, "task:app", "--processes", processes)
    assert code == 2
    assert says == (
        f"there is no module 'task' (did you mean 'tasks'?): it is neither in {place.folder} nor installed"
    )


def test_a_module_that_raises_while_it_is_imported(place):
    _write(place, "broken", "import tasks\n\nraise RuntimeError('no settings')\n")
    code, says = _refused(place, "broken:app")
    assert code == 2
    assert "the module 'broken' cannot be imported: RuntimeError: no settings" in says
    assert "broken.py:3" in says


def test_a_module_that_is_no_python(place):
    _write(place, "broken", "def app(:\n")
    code, says = _refused(place, "broken:app")
    assert code == 2
    assert "SyntaxError" in says
    assert "broken.py:1" in says


def test_a_module_that_imports_what_is_not_installed(place):
    _write(place, "broken", "import no_such_package\n")
    code, says = _refused(place, "broken:app")
    assert code == 2
    assert "No module named 'no_such_package'" in says


def test_a_module_that_exits(place):
    _write(place, "broken", "import sys\n\nsys.exit('no settings')\n")
    code, says = _refused(place, "broken:app")
    assert code == 2
    assert "no settings" in says


def test_no_such_attribute(place):
    code, says = _refused(place, "tasks:ap")
    assert code == 2
    assert says == "the module 'tasks' has no 'ap' (did you mean tasks:app?)"


def test_something_else_than_an_app(place):
    code, says = _refused(place, "tasks:quick")
    assert code == 2
    assert says.startswith("tasks:quick is not an App but of the type ")
    assert says.endswith("(did you mean tasks:app?)")


def test_an_app_without_tasks(place):
    _write(place, "empty", "from penstock import App\n\napp = App('sqlite:///jobs.db')\n")
    code, says = _refused(place, "empty:app")
    assert code == 2
    assert "this worker has no queues" in says


def test_a_file_for_a_module(place):
    code, says = _refused(place, "tasks.py")
    assert code == 2
    assert says == "'tasks.py' is not an app: write the module, not its file, as in tasks:app"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqlit:///jobs.db", "did you mean"),
        ("jobs.db", "sqlite:///jobs.db"),
        ("redis+sentinel://localhost", "does not say which master"),
    ],
)
def test_a_url_that_leads_nowhere(place, url, hint):
    text = "from penstock import App\n\napp = App({!r})\n\n\n@app.task\nasync def nothing() -> None: ...\n"
    _write(place, "urls", text.format(url))
    code, says = _refused(place, "urls:app")
    assert code == 2
    assert hint in says


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        (["--concurrency", "none"], "none"),
        (["--concurency", "3"], "--concurrency"),
        (["--queues", "default:wieght=3"], "did you mean 'weight'?"),
        (["--drain-timeout", "5 parsecs"], "parsecs"),
    ],
)
def test_options_that_make_no_sense(place, option, hint):
    code, says = _refused(place, "tasks:app", *option)
    assert code == 2
    assert hint in says


def test_a_setting_that_does_not_exist(place):
    code, says = _refused(place, "tasks:app", PENSTOCK_CONCURENCY="3")
    assert code == 2
    assert "PENSTOCK_CONCURENCY" in says
    assert "did you mean" in says


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def _elsewhere(place: Place, path: str) -> None:
    """The store is at this path of the place instead."""
    tasks = place.folder / "tasks.py"
    tasks.write_text(tasks.read_text().replace("HERE / 'jobs.db'", f"HERE / {path!r}"))


def test_a_directory_that_is_not_there(place):
    _elsewhere(place, "no/such/jobs.db")
    code, says = _refused(place, "tasks:app")
    assert code == 1
    folder = place.folder / "no/such"
    assert says == f"cannot open {folder / 'jobs.db'}: there is no directory {folder}; make it first"
    assert not (place.folder / "no").exists()


def test_a_directory_for_a_file(place):
    (place.folder / "jobs.db").mkdir()
    code, says = _refused(place, "tasks:app")
    assert code == 1
    assert "it is a directory" in says


def test_a_file_that_is_no_database(place):
    text = b"these are my notes, and nobody may touch them\n" * 100
    place.file.write_bytes(text)
    code, says = _refused(place, "tasks:app", "--processes", "2")
    assert code == 1
    assert says == f"{place.file} is not a SQLite database: give another path, or move that file away"
    assert place.file.read_bytes() == text


def test_a_file_of_a_later_version(place):
    place.tasks.quick.enqueue(1)
    place.app.close()
    cx = sqlite3.connect(place.file)
    with cx:
        cx.execute("UPDATE penstock_meta SET value = '999' WHERE key = 'schema'")
    cx.close()
    code, says = _refused(place, "tasks:app")
    assert code == 1
    assert says.startswith(f"{place.file} has the store version 999, this Penstock knows versions up to ")
    assert says.endswith("upgrade penstock here, or use another file")


def test_a_file_that_can_only_be_read(place):
    place.tasks.quick.enqueue(1)
    place.app.close()
    place.file.chmod(0o444)
    place.folder.chmod(0o555)
    try:
        program = place.start("-c", _LIKE_ANYBODY, "-m", "penstock", "worker", "tasks:app")
        code = program.wait(60)
    finally:
        place.folder.chmod(0o755)
        place.file.chmod(0o644)
    assert code == 1
    said = [line for line in program.log.splitlines() if " INFO penstock." not in line]
    assert len(said) == 1, f"not one clear line but {said}"
    assert str(place.file) in said[0]
    assert "can be read but not written" in said[0] or "cannot be written" in said[0]
    assert place.counts() == {State.AVAILABLE: 1}


#: Root may write everywhere, unless it gives that up (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH).
_LIKE_ANYBODY = """
import ctypes, os, sys
if os.geteuid() == 0:
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_a_task_that_an_old_worker_does_not_know_waits_for_one_that_does(place):
    old = (place.folder / "tasks.py").read_text()
    old = old.replace('@app.task(name="quick")', '@app.task(name="quick_of_yesterday")')
    _write(place, "old", old)
    place.tasks.quick_thread.enqueue(1)
    program = place.start("-m", "penstock", "worker", "old:app")
    place.until_started(1)
    new = place.tasks.quick.enqueue(2)
    place.until(lambda: place.counts().get(State.PARKED) == 1, "it is parked")
    (job,) = place.jobs([new])
    assert (job.state, job.attempt, job.errors) == (State.PARKED, 0, ())
    assert "no task 'quick' in this worker; the job is parked" in program.log
    place.worker()
    (job,) = place.until_ended([new])
    assert (job.state, job.attempt) == (State.COMPLETED, 1)
