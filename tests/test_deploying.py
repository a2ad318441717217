"""The files of docs/deploying.md and of the examples: Dockerfiles, units, manifests and probes."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.cli.main import cli
from penstock.config import Config
from tests.packages import program_or_skip
from tests.test_docs import Block, blocks_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "deploying.md"
BLOCKS = blocks_of(PAGE)
DOCKERFILES = [
    *sorted((ROOT / "examples").rglob("Dockerfile")),
    *sorted((ROOT / "src").rglob("Dockerfile.txt")),
]
COMPOSE = sorted((ROOT / "examples").rglob("compose.yaml"))

#: How long a stopping worker may take: it drains, and is killed if it hangs (s).
LONGEST_STOP = (Config().drain_timeout + Config().kill_grace) / 1000


def the(language: str) -> Block:
    (block,) = [block for block in BLOCKS if block.language == language]
    return block


def instructions(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_a_dockerfile_has_no_findings(path: Path) -> None:
    hadolint = program_or_skip("hadolint")
    found = subprocess.run([hadolint, "--no-color", str(path)], capture_output=True, text=True)
    assert found.stdout + found.stderr == ""


def test_the_dockerfile_of_the_page_is_that_of_the_example() -> None:
    example = (ROOT / "examples" / "fastapi_shop" / "Dockerfile").read_text()
    assert the("dockerfile").text == instructions(example)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_image_of_the_example_can_be_built(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "version"], capture_output=True).returncode != 0:
        pytest.skip("no docker daemon answers")
    context = shutil.copytree(ROOT / "examples" / "fastapi_shop", tmp_path / "shop")
    (context / ".dockerignore").unlink()
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(context / "wheels")]
    subprocess.run([*wheel, str(ROOT)], check=True)
    text = (context / "Dockerfile").read_text()
    text = text.replace("RUN pip", "COPY wheels ./wheels\nRUN pip").replace("dir .", "dir -f wheels .")
    (context / "Dockerfile").write_text(text)
    subprocess.run([docker, "build", str(context)], check=True)


def commands() -> Iterator[list[str]]:
    """Every worker command that a unit, a manifest, an image or a compose file starts."""
    unit = configparser.ConfigParser(strict=False)
    unit.read_string(the("ini").text)
    yield shlex.split(unit["Service"]["ExecStart"])
    for text in [the("yaml").text, *(path.read_text() for path in [*DOCKERFILES, *COMPOSE])]:
        for words in re.findall(r"(?:command:|CMD) \[(\W?penstock\b.*)\]", text):
            yield [word.strip(' "') for word in words.split(",")]


def test_every_command_is_a_worker_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[click.Context] = []
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: parsed.append(ctx))
    found = list(commands())
    for program, *words in found:
        assert Path(program).name == "penstock"
        cli.main(words, standalone_mode=False)
        assert parsed[-1].command.name == "worker"
    assert len(found) >= 4


def test_each_grace_period_is_longer_than_the_longest_stop() -> None:
    texts = [PAGE.read_text("utf-8"), *(path.read_text() for path in COMPOSE)]
    option = r"(?:TimeoutStopSec=|terminationGracePeriodSeconds: |stop-timeout |stop_grace_period: )(\d+)"
    periods = [int(seconds) for text in texts for seconds in re.findall(option, text)]
    assert len(periods) >= 5
    assert min(periods) > LONGEST_STOP


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / "shop-worker.service"
    text = the("ini").text.replace("/srv/shop/.venv/bin/penstock", sys.executable)
    unit.write_text(text.replace("User=shop\n", "User=root\n"))
    said = subprocess.run([verify, "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert not [line for line in said.stderr.splitlines() if unit.name in line], said.stderr


def test_the_liveness_probe_looks_at_the_age_of_the_file(tmp_path: Path) -> None:
    (found,) = re.findall(r"exec: \{command: (\[\"sh\".*\])\}", the("yaml").text)
    alive = tmp_path / "worker-alive"
    probe = [word.replace("/tmp/worker-alive", str(alive)) for word in json.loads(found)]

    def passes() -> bool:
        return subprocess.run(probe, capture_output=True).returncode == 0

    assert not passes()
    alive.touch()
    assert passes()
    old = time.time() - 200
    os.utime(alive, (old, old))
    assert not passes()
