"""Liveness locks with real processes: no living process is taken for dead, and dead ones are found soon."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.worker import liveness
from penstock.worker.liveness import LivenessLock, is_dead, lock_directory, proven_dead, remove_dead, sweep

HOLDER = """
import os, subprocess, sys
from pathlib import Path
from penstock.worker.liveness import LivenessLock
lock = LivenessLock(sys.argv[1], Path(sys.argv[2]))
assert lock.held
started = None
if "forks" in sys.argv:
    there, here = os.pipe()
    if os.fork() == 0:
        os.write(here, b"!")
        sys.stdin.read()
        os._exit(0)
    os.read(there, 1)
if "starts" in sys.argv:
    started = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
print("held", flush=True)
sys.stdin.read()
if "releases" in sys.argv:
    lock.release()
"""


@contextmanager
def holder(worker: str, directory: Path, *how: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds its lock, until its stdin is closed or it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, worker, str(directory), *how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "penstock"


def test_a_killed_worker_is_proven_dead_and_a_living_one_is_not(directory: Path) -> None:
    with holder("w-1", directory) as process:
        assert not is_dead("w-1", directory)
        assert not remove_dead("w-1", directory)
        kill(process)
        assert is_dead("w-1", directory)
        assert is_dead("w-1", directory), "the proof can be had again until the dead worker is removed"
        assert remove_dead("w-1", directory)
        assert not is_dead("w-1", directory), "a missing file proves nothing"
        assert list(directory.iterdir()) == []


def test_a_worker_known_to_be_dead_is_not_checked_again_while_its_file_exists(directory: Path) -> None:
    with holder("w-1", directory) as first, holder("w-2", directory):
        assert proven_dead(directory=directory) == set()
        assert proven_dead({"w-2", "w-3"}, directory) == {"w-2"}, "it lives, but nobody looked"
        kill(first)
        assert proven_dead({"w-2"}, directory) == {"w-1", "w-2"}
        assert remove_dead("w-1", directory)
        assert proven_dead({"w-1"}, directory) == set()


def test_a_stopped_worker_is_alive(directory: Path) -> None:
    with holder("w-1", directory) as process:
        process.send_signal(signal.SIGSTOP)
        assert not is_dead("w-1", directory)
        process.send_signal(signal.SIGCONT)


def test_one_own_lock_does_not_prove_ones_own_death(directory: Path) -> None:
    with LivenessLock("me", directory) as lock:
        assert lock.held
        assert not is_dead("me", directory)
    assert not is_dead("me", directory)
    lock.release()


def test_a_worker_of_another_container_is_never_taken_for_dead(tmp_path: Path) -> None:
    """Two containers: the same boot, the same pids perhaps, but a /tmp of its own each."""
    here, there = tmp_path / "here", tmp_path / "there"
    with holder("w-there", there) as process, LivenessLock("w-here", here):
        assert not is_dead("w-there", here)
        assert not is_dead("w-here", there)
        kill(process)
        assert not is_dead("w-there", here), "dead, but not proven from here"
        assert is_dead("w-there", there)


def test_a_worker_that_ended_well_leaves_no_file(directory: Path) -> None:
    with holder("w-1", directory, "releases") as process:
        process.communicate()
    assert list(directory.iterdir()) == []


@pytest.mark.system
@pytest.mark.parametrize("how", ["forks", "starts"])
def test_what_a_worker_forked_or_started_does_not_keep_it_alive(directory: Path, how: str) -> None:
    with holder("w-1", directory, how) as process:
        kill(process)  # the other process has our pipe for its stdin and lives on
        assert is_dead("w-1", directory)


@pytest.mark.system
def test_many_who_look_at_once_all_see_the_same(directory: Path) -> None:
    with holder("dead", directory) as process:
        kill(process)
    with holder("alive", directory):
        barrier, wrong = threading.Barrier(8), []

        def look() -> None:
            barrier.wait()
            for _ in range(300):
                if not is_dead("dead", directory):
                    wrong.append("the dead seemed alive")
                if is_dead("alive", directory):
                    wrong.append("the living seemed dead")

        lookers = [threading.Thread(target=look) for _ in range(8)]
        for looker in lookers:
            looker.start()
        for looker in lookers:
            looker.join()
        assert wrong == []


def test_a_file_recreated_between_open_and_lock_proves_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holder("w-1", directory) as process:
        kill(process)
    real = liveness.fcntl.flock
    new: list[LivenessLock] = []

    def flock(fd: int, how: int) -> None:
        monkeypatch.setattr(liveness.fcntl, "flock", real)
        (directory / "w-1.alive").unlink()  # another checker removed it …
        new.append(LivenessLock("w-1", directory))  # … and a worker of that name came to be
        real(fd, how)

    monkeypatch.setattr(liveness.fcntl, "flock", flock)
    assert not is_dead("w-1", directory)
    assert new[0].held
    new[0].release()


def test_sweeping_removes_only_long_dead_workers(directory: Path) -> None:
    for worker in ("old-dead", "new-dead"):
        with holder(worker, directory) as process:
            kill(process)
    (directory / "never-finished.new").touch()
    (directory / "not-ours.txt").touch()
    with LivenessLock("old-alive", directory):
        for name in ("old-dead.alive", "old-alive.alive", "never-finished.new", "not-ours.txt"):
            os.utime(directory / name, (0, 0))
        assert sweep(3600, directory) == 2
        left = sorted(path.name for path in directory.iterdir())
        assert left == ["new-dead.alive", "not-ours.txt", "old-alive.alive"]
        assert not is_dead("old-alive", directory)
        assert sweep(-60, directory) == 1


def test_the_directory_is_closed_to_others(directory: Path) -> None:
    with LivenessLock("w-1", directory):
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / "w-1.alive").stat().st_mode & 0o777 == 0o600


def test_a_directory_that_others_may_enter_is_not_used(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory.mkdir()
    directory.chmod(0o777)
    with caplog.at_level(logging.WARNING), LivenessLock("w-1", directory) as lock:
        assert not lock.held
    assert "no liveness lock" in caplog.text
    assert str(directory) in caplog.text
    (directory / "w-2.alive").touch()
    assert not is_dead("w-2", directory), "anybody could have put that file there"
    assert sweep(0, directory) == 0


def test_a_link_in_place_of_directory_or_file_is_not_followed(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir(mode=0o700)
    link.symlink_to(real)
    assert not LivenessLock("w-1", link).held
    victim = tmp_path / "victim"
    victim.touch()
    (real / "w-2.alive").symlink_to(victim)
    assert not is_dead("w-2", real)
    assert not remove_dead("w-2", real)
    assert victim.exists()


def test_a_read_only_file_system_is_lived_with(tmp_path: Path) -> None:
    lock = LivenessLock("w-1", tmp_path / "not" / "there")
    assert not lock.held
    lock.release()


@pytest.mark.parametrize("id", ["", "../escape", "a/b", ".hidden", "x" * 200, "a\n"])
def test_an_id_that_is_no_file_name_proves_nothing(directory: Path, id: str) -> None:
    with LivenessLock("w-1", directory):
        assert not is_dead(id, directory)
        assert not remove_dead(id, directory)
    assert not LivenessLock(id, directory).held


def test_the_directory_is_the_users_runtime_one_or_lies_in_tmp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert lock_directory() == tmp_path / "penstock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert lock_directory() == Path(f"/tmp/penstock-{os.getuid()}")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert lock_directory() == Path(f"/tmp/penstock-{os.getuid()}")
