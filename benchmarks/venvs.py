"""Virtual environments of measured libraries, kept from one run to the next."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["DEFAULT_FOLDER", "create_venv", "install"]

DEFAULT_FOLDER = Path(tempfile.gettempdir()) / "penstock-peers"


def create_venv(python: str, folder: Path) -> Path:
    """Create the environment if it is missing. Returns its interpreter."""
    interpreter = folder / "bin" / "python"
    if not interpreter.exists():
        made = subprocess.run([python, "-m", "venv", str(folder)], capture_output=True, check=False)
        if made.returncode:  # some systems have no ensurepip
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([python, "-m", "virtualenv", "--quiet", str(folder)], check=True)
    return interpreter


def install(interpreter: Path, pins: Sequence[str]) -> None:
    """Install `name==version` pins that the environment does not have yet."""
    names = [pin.partition("==")[0].partition("[")[0] for pin in pins]
    read = "import sys, importlib.metadata as m; print(*(m.version(name) for name in sys.argv[1:]))"
    found = subprocess.run([interpreter, "-c", read, *names], capture_output=True, text=True, check=False)
    if found.stdout.split() != [pin.partition("==")[2] for pin in pins]:
        pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins]
        subprocess.run(pip, check=True, capture_output=True, text=True)
