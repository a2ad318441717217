"""The runner of a file for the verbs of one more namespace."""

from __future__ import annotations

import asyncio
from typing import ParamSpec, TypeVar

from penstock.stores.sqlite.calls import Verb
from penstock.stores.sqlite.notifier import Notifier
from penstock.stores.sqlite.runner import Runner

__all__ = ["NamespaceRunner"]

P = ParamSpec("P")
R = TypeVar("R")


class NamespaceRunner:
    """Runs verbs in a namespace of its own, in the transactions of a store's runner."""

    def __init__(self, runner: Runner, namespace: str) -> None:
        self._runner = runner
        self._namespace = namespace

    @property
    def notifiers(self) -> dict[str, Notifier]:
        return self._runner.notifiers

    def ask(self, verb: Verb[P, R], *args: P.args, **options: P.kwargs) -> asyncio.Future[R]:
        """As `Runner.ask`."""
        return self._runner.ask_in(self._namespace, verb, *args, **options)

    def do(self, verb: Verb[P, R], *args: P.args, **options: P.kwargs) -> R:
        """As `Runner.do`."""
        return self._runner.do_in(self._namespace, verb, *args, **options)
