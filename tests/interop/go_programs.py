"""lmstfy, and the test suite of its own client, built once for all tests of a run and all their processes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import click
import pytest

from benchmarks.http import build, run_go

__all__ = ["lmstfy_folder"]

PRESET = """
package config

import (
	"os"
	"strconv"
)

type PresetConfigForTest struct {
	*Config
}

func CreatePresetForTest(version string, pools ...string) (*PresetConfigForTest, error) {
	port, err := strconv.Atoi(os.Getenv("LMSTFY_PORT"))
	if err != nil {
		return nil, err
	}
	adminPort, err := strconv.Atoi(os.Getenv("LMSTFY_ADMIN_PORT"))
	if err != nil {
		return nil, err
	}
	return &PresetConfigForTest{&Config{Host: "127.0.0.1", Port: port, AdminPort: adminPort}}, nil
}

func (presetConfig *PresetConfigForTest) Destroy() {}
"""


def lmstfy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `lmstfy` (the server), `http_load` (the load of the benchmark), `client.test`, and the
    source of lmstfy. Skips the test if the Go module proxy does not have it.

    `client.test` is the test suite of the client, unchanged; only the preset of its setup is replaced.
    """
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent  # which its processes share
    folder = run / "lmstfy"
    with open(run / "lmstfy.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "client.test").exists():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    try:
        build(folder)
        source = folder / "source"
        (source / "config" / "preset.go").write_text(PRESET)
        run_go("test", "-mod=mod", "-c", "-o", str(folder / "client.test"), "./client", cwd=source)
    except click.ClickException as error:
        pytest.skip(f"lmstfy cannot be built here: {error.message}")
