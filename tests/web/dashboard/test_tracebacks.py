"""Tracebacks on the page of a job: the user's own code is open, libraries are folded."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.web.dashboard.formats import folded_traceback

HERE = str(Path(penstock.__file__).parent)
LIBS = "/venv/lib/python3.13/site-packages"


def parts_of(*files: str, task: str = "shop.orders.confirm") -> list[tuple[int, bool]]:
    """The number of folded frames of each part of a traceback through these files, and whether it is open."""
    frames = "".join(f'  File "{file}", line 1, in f\n    f()\n' for file in files)
    parts = folded_traceback(
        f"Traceback (most recent call last):\n{frames}ValueError: no\n  more of the message\n", task
    )
    assert "\n".join(part.text for part in parts).count("f()") == len(files)
    return [(part.frames, part.open) for part in parts]


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        (["/srv/shop/orders.py", f"{LIBS}/httpx/_client.py", f"{LIBS}/httpcore/a.py"], [0, 2, 0]),
        (
            [f"{LIBS}/penstock/worker/run.py", f"{LIBS}/shop/orders.py", f"{LIBS}/sqlalchemy/shop/x.py"],
            [0, 1, 0, 1, 0],
        ),
        ([f"{LIBS}/shop.py", f"{LIBS}/shopify/client.py"], [0, 1, 0]),
        ([f"{LIBS}/penstock/demo/showcase/shop.py", "/usr/lib/python3.13/json/decoder.py"], [0, 1, 0]),
    ],
)
def test_the_own_code_is_open_also_if_it_is_installed(files: list[str], parts: list[int]) -> None:
    assert parts_of(*files) == [(n, False) for n in parts]


@pytest.mark.parametrize(
    "folder",
    [
        "/home/ann/penstock",
        "/home/ann/penstock/src/penstock",
        "/srv/site-packages.old/penstock/demo",
        r"C:\work\penstock",
    ],
)
def test_a_projects_folder_may_have_the_name_of_a_library(folder: str) -> None:
    library = f"{folder}/.venv/lib/python3.13/json/decoder.py"
    files = [f"{folder}/jobs.py", f"{HERE}/worker/worker.py", library]
    assert parts_of(*files, task="pack") == [(0, False), (2, False), (0, False)]


def test_the_demo_is_own_code_wherever_penstock_runs_from() -> None:
    parts = parts_of(f"{HERE}/worker/worker.py", f"{HERE}/demo/shop.py")
    assert parts == [(0, False), (1, False), (0, False)]


def test_without_own_code_the_last_frames_are_open() -> None:
    files = [f"{LIBS}/penstock/worker/run.py", f"{LIBS}/helpers/mail.py"]
    assert parts_of(*files, task="confirm") == [(0, False), (2, True), (0, False)]
    assert parts_of() == [(0, False)]
