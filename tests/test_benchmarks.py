"""The benchmarks run. Figures are for a quiet machine; a benchmark that is broken is found here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.system]

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize("group", ["enqueue", "drain"])
def test_a_quick_run_measures_every_store_and_its_raw_limit(group: str, tmp_path: Path) -> None:
    out = tmp_path / "values.json"
    ran = run("benchmarks", "--quick", "--only", group, "--dir", str(tmp_path), "--json", str(out))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    setups = json.loads(out.read_text())["setups"]
    assert set(setups) == {"sqlite, full", "sqlite, normal", "memory"}
    for name, values in setups.items():
        assert any(figure.startswith("raw_") for figure in values) == (name != "memory")
        assert all(value > 0 for taken in values.values() for value in taken)
    assert "% of raw" in ran.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["values.json"], "it left something behind"


def test_fairness_finds_nothing_lost_nothing_twice_and_a_sound_file(tmp_path: Path) -> None:
    ran = run("benchmarks.fairness", "--seconds", "1", "--processes", "2", "--dir", str(tmp_path))
    # how long a writer waits is for a quiet machine to say
    faults = [line for line in ran.stdout.splitlines() if line.startswith("FAULT") and "waited" not in line]
    assert "integrity_check: ok" in ran.stdout, ran.stdout + ran.stderr
    assert "lost 0, twice 0, unknown 0" in ran.stdout
    assert not [fault for fault in faults if "fair share" not in fault]


def test_a_soak_reports_a_worker_that_does_not_grow(tmp_path: Path) -> None:
    ran = run("benchmarks.soak", "--jobs", "4000", "--first", "2000", "--dir", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "stable" in ran.stdout
