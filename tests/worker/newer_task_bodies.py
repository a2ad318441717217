"""Task bodies of a newer release, which the child processes of its workers import."""

from __future__ import annotations

from penstock.app.app import App
from tests.worker.task_bodies import made

#: The registry of child processes.
app = App("memory://")


def greet(name: str, lang: str, times: int = 1) -> str:
    """It takes another argument than it used to, and needs it."""
    return {"de": "hallo", "en": "hello"}[lang] + f" {name}" * times


async def greet_async(name: str, lang: str, times: int = 1) -> str:
    return greet(name, lang, times)


made(app, "process", greet)
