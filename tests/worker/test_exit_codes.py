"""The cause of death of a process, from its return code."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.worker import signals
from penstock.worker.signals import how_it_ended, oom_kills


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-11, "killed by SIGSEGV"),
        (-6, "killed by SIGABRT"),
        (-15, "killed by SIGTERM"),
        (-63, "killed by signal 63"),
        (None, "ended, cause unknown"),
    ],
)
def test_a_death_is_named_as_what_it_was(code: int | None, cause: str) -> None:
    assert how_it_ended(code, 0) == cause


def test_a_kill_for_lack_of_memory_is_distinguished_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vmstat = tmp_path / "vmstat"
    monkeypatch.setattr(signals, "_VMSTAT", str(vmstat))
    assert oom_kills() is None
    assert how_it_ended(-9, None) == "killed by SIGKILL (out of memory?)"
    vmstat.write_text("nr_free_pages 7\noom_kill 4\noom_kill_x 9\n")
    assert oom_kills() == 4
    assert how_it_ended(-9, 4) == "killed by SIGKILL"
    assert how_it_ended(-9, 3) == "killed by SIGKILL (out of memory)"
    assert how_it_ended(-9, None) == "killed by SIGKILL (out of memory?)"
    assert how_it_ended(-11, 3) == "killed by SIGSEGV"
