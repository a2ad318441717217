"""`penstock demo` runs jobs, kills a worker, and reports whether anything was lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.demo_serving import display
from penstock.cli.main import cli
from penstock.demo.conductor import Results
from penstock.demo.demo_folder import ChildFile, DemoProgress, ParsingChild, children_in
from penstock.demo.survey import Survey, Totals, files_under, standard_library, survey, total
from penstock.verify.ledger import Verdict, Violation
from penstock.verify.ledger.history import read

PACKAGES = ("asyncio", "email", "json", "importlib", "xml")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of the standard library, and a file that does not parse."""
    place = tmp_path_factory.mktemp("library")
    for name in PACKAGES:
        shutil.copytree(standard_library() / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "broken.py").write_text("def (:\n")
    return place


def _start(*options: object, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "demo", *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def _run(*options: object) -> tuple[int, str, str]:
    with _start(*options) as process:
        try:
            out, err = process.communicate(timeout=280)
        finally:
            process.kill()
    return process.returncode, out, err


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.system
def test_a_worker_is_killed_and_nothing_is_lost(library: Path, tmp_path: Path) -> None:
    code, out, err = _run("--path", library, "--json", "--workdir", tmp_path / "run")
    assert code == 0, out + err
    said = json.loads(out)
    expected = [survey(path) for path in files_under(library)]
    assert said["good"] is True
    assert said["found"] == said["direct"] == _plain(total(expected))
    assert said["found"]["unparsed"] == 1
    jobs = said["jobs"]
    directories = {path.parent for path in files_under(library)}
    assert jobs["enqueued"] == jobs["completed"] == 2 * len(expected) + len(directories)
    assert (jobs["lost"], jobs["early"]) == (0, 0)
    assert jobs["retried"] >= 3
    assert jobs["delayed"] >= 3
    (crash,) = said["crashes"]
    assert len(crash["held"]) >= 1
    for one in crash["held"]:
        assert (one["attempt_before"], one["attempt"]) == (1, 2)
        assert one["seconds"] < 10
    assert jobs["rerun_after_crash"] >= len(crash["held"])
    assert said["recovery_seconds"] == max(one["seconds"] for one in crash["held"])
    assert all(_gone(pid) for pid in read(tmp_path / "run" / "ledger").parents if pid != os.getpid())
    looked = subprocess.run(
        [sys.executable, "-m", *said["look"].split(), "--json"], capture_output=True, text=True, check=True
    )
    assert "penstock.demo.tasks" in looked.stdout


def _plain(totals: Totals) -> dict[str, Any]:
    return {name: getattr(totals, name) for name in totals.__struct_fields__}


@pytest.mark.system
def test_on_another_store_nobody_is_killed_unless_asked(library: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}?durability=normal"
    code, out, err = _run(
        "--path", library / "email", "--url", url, "--no-kill", "--workdir", tmp_path / "run"
    )
    assert code == 0, out + err
    assert "nothing was lost" in out
    assert "killed  no worker" in out
    assert f"penstock jobs list --url '{url}' --namespace demo-" in out
    assert f"penstock queues delete --force parse read sum --url '{url}' --namespace demo-" in out
    assert "jobs done" in err
    assert not (tmp_path / "run" / "jobs.db").exists()


@pytest.mark.system
def test_without_a_ledger_only_results_are_compared(library: Path, tmp_path: Path) -> None:
    code, out, err = _run(
        "--path", library / "json", "--no-ledger", "--no-kill", "--workdir", tmp_path / "run"
    )
    assert code == 0, out + err
    assert "nothing was lost" in out
    assert "retried" not in out
    assert not (tmp_path / "run" / "ledger").exists()
    children = children_in(tmp_path / "run" / "children")
    assert sum(child.jobs for child in children) >= len(files_under(library / "json"))
    assert "parsed by child" in err
    assert len(err.splitlines()) < 30


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process(library: Path, tmp_path: Path, number: int) -> None:
    process = _start("--path", library, "--workdir", tmp_path / "run")
    assert process.stderr is not None
    while not process.stderr.readline().startswith(tuple("123456789")):
        assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert "the demo did not end" in err
    assert "Traceback" not in err
    pids = set(read(tmp_path / "run" / "ledger").parents)
    assert len(pids) >= 2
    assert all(_gone(pid) for pid in pids)


def test_a_store_in_memory_is_refused_in_one_line(library: Path) -> None:
    code, out, err = _run("--path", library, "--url", "memory://")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "leave --url out" in err


def test_a_directory_without_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = _run("--path", tmp_path / "empty", "--workdir", tmp_path / "run")
    assert code == 1
    assert "there is no .py file below" in err


# ── what it says when something is wrong ─────────────────────────────────────────────────────────


def _results(**changes: Any) -> Results:
    facts: dict[str, Any] = {
        "root": Path("/lib"),
        "found": Totals(files=1),
        "direct": Totals(files=1),
        "differing": [],
        "verdict": Verdict(enqueued=3, completed=3),
        "enqueued": 3,
        "completed": 3,
        "delayed": 1,
        "seconds": 1.0,
        "parse_seconds": 0.8,
        "direct_seconds": 0.5,
    }
    return Results(**{**facts, **changes})


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({}, 0, "nothing was lost"),
        ({"differing": ["a.py: 3 instead of 4"]}, 1, "a.py: 3 instead of 4"),
        ({"enqueued": 4}, 1, "something is WRONG"),
        ({"verdict": None}, 0, "nothing was lost"),
        ({"verdict": None, "completed": 2}, 1, "3 enqueued, 2 completed, 1 are not"),
        (
            {
                "verdict": Verdict(
                    completed=3, lost=1, findings=[Violation("lost", "it is gone", "parse", "x")]
                )
            },
            1,
            "lost: job x in parse: it is gone",
        ),
    ],
)
def test_the_exit_code_says_whether_all_is_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any], code: int, says: str
) -> None:
    monkeypatch.setattr("penstock.demo.conductor.conduct", lambda *_, **__: _results(**changes))
    for options in ([], ["--json"]):
        ran = CliRunner().invoke(cli, ["demo", "--workdir", str(tmp_path / "run"), *options])
        assert ran.exit_code == code, ran.output
        if not options:
            assert says in ran.output


# ── what it shows of its children ────────────────────────────────────────────────────────────────


def test_a_child_shows_what_it_works_on_and_what_it_has_done(tmp_path: Path) -> None:
    assert children_in(tmp_path) == []
    file = ChildFile(tmp_path)
    assert children_in(tmp_path) == []
    with file.works_on("/lib/a.py"):
        (state,) = children_in(tmp_path)
        assert (state.pid, state.worker, state.jobs) == (os.getpid(), os.getppid(), 0)
        assert state.name == "/lib/a.py"
        assert state.first == state.since > 0
    (state,) = children_in(tmp_path)
    assert (state.name, state.jobs, state.since) == ("", 1, 0.0)
    assert state.busy == state.last - state.first
    assert state.load(state.last) == 1.0


def test_a_long_name_is_cut_and_a_half_written_file_is_left_out(tmp_path: Path) -> None:
    file = ChildFile(tmp_path)
    with file.works_on("/x" * 1_000 + "/end.py"):
        (state,) = children_in(tmp_path)
        assert state.name.endswith("/end.py")
        data = bytearray((tmp_path / str(os.getpid())).read_bytes())
    data[0] |= 1  # as a process leaves it that is killed while it writes
    (tmp_path / "1").write_bytes(data)
    (tmp_path / "2").touch()
    assert [state.pid for state in children_in(tmp_path)] == [os.getpid()]


def test_plain_lines_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    child = ParsingChild(pid=7, worker=6, jobs=5, first=1.0, since=0.0, last=2.0, busy=1.0, name="")
    with display(quiet=False) as show:
        for done in range(1_001):
            show(DemoProgress({"parse": done}, {"parse": 1_000}, children=[child] * 50))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert "child 7: 5 (" in lines[0]
    assert max(map(len, lines)) < 500


# ── what it computes ─────────────────────────────────────────────────────────────────────────────


def test_a_survey_measures_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        "class A:\n    def f(self):\n        return 1\n\nasync def g():\n    def h():\n        pass\n"
    )
    measured = survey(file)
    assert (measured.lines, measured.functions, measured.classes) == (7, 3, 1)
    assert (measured.longest, measured.longest_lines, measured.parses) == ("g", 3, True)
    assert len(measured.sha256) == 64


@pytest.mark.parametrize("text", [b"def (:", b"\0", b"# -*- coding: nonsense -*-\n"])
def test_a_file_that_does_not_parse_is_counted_as_such(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(text)
    assert survey(file).parses is False


def test_totals_add_up_and_name_the_first_of_the_longest() -> None:
    surveys = [
        Survey("", 10, 1, 0, "f", 5),
        Survey("", 1, parses=False),
        Survey("", 20, 2, 3, "g", 9),
        Survey("", 5, 1, 0, "h", 9),
    ]
    assert total(surveys) == Totals(4, 36, 4, 3, "g", 9, 1)


@pytest.mark.slow
def test_the_standard_library_is_all_there_and_nothing_else() -> None:
    files = files_under(standard_library())
    assert len(files) > 500
    assert not [path for path in files if "site-packages" in path.parts]
