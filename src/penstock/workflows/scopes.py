"""The scopes of a flow (main code, branches, items of loops), and the uses of operations in them.

Uses are counted per scope, so that no scope depends on what runs beside it or before it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextvars import ContextVar

from penstock.core.errors import FlowError
from penstock.core.step_names import Identity, numbered

#: A task or thread: it runs its code in sequence.
Runner = asyncio.Task[object] | threading.Thread


class GivenUp(BaseException):
    """Ends code that was given up: another piece of `flow.first` has won, or a timeout cut it off earlier."""


class Scope:
    """A branch, an item of a loop, or (without a parent) the main code.

    - `path`: its parts, each ending in `/`.
    - `runner`: the task or thread whose code it is; others may use it, too.
    - `used`: of a loop, the names used in it by the numbering of older releases.
    """

    __slots__ = ("closed", "given_up", "left", "parent", "path", "runner", "scopes", "used")

    def __init__(self, scopes: Scopes, path: str, runner: Runner, parent: Scope | None) -> None:
        self.scopes = scopes
        self.path = path
        self.runner = runner
        self.parent = parent
        self.used: set[str] | None = None
        self.given_up = False  # another of `flow.first` has won
        self.closed = False  # an earlier run has given it up: it does nothing that is not stored
        self.left = False  # its own runner has gone on behind it: the item of a loop is done

    @property
    def is_given_up(self) -> bool:
        """Whether it, or a scope around it, is given up."""
        return self.given_up or (self.parent is not None and self.parent.is_given_up)

    @property
    def is_closed(self) -> bool:
        """Whether it, or a scope around it, is closed."""
        return self.closed or (self.parent is not None and self.parent.is_closed)

    @property
    def branch(self) -> Scope:
        """The branch, or the main code, around this scope: an item of a loop has no runner of its own."""
        inside = self.parent is not None and self.path.endswith("]/")
        return self.parent.branch if inside and self.parent is not None else self

    def runners(self) -> set[Runner]:
        """Its runner, and those of the scopes around it."""
        around = set() if self.parent is None else self.parent.runners()
        return {self.runner, *around}


current_scope: ContextVar[Scope | None] = ContextVar("penstock_flow_scope", default=None)


class Use:
    """One use of an operation in this run: its identity with the number of the use, and who uses it.

    `text`: its identity without the number. `older`: its name by the numbering of older releases.
    """

    __slots__ = ("key", "older", "operation", "runner", "scope", "text")

    def __init__(self, operation: Identity, scope: Scope, runner: Runner) -> None:
        self.operation = operation
        self.scope = scope
        self.runner = runner
        self.text = operation.within(scope.path)
        self.key = self.text
        self.older = operation.older

    @property
    def part(self) -> str:
        """Its name inside its scope; the names of scopes below it begin with it."""
        return self.key.rpartition("/")[2]


class Scopes:
    """The scopes of one run of a flow, and what was used in them."""

    def __init__(self) -> None:
        self.main = Scope(self, "", this_runner(), None)
        self._uses: Counter[str] = Counter()
        self.older_uses: Counter[str] = Counter()  # by the numbering of older releases
        self._users: dict[str, Runner] = {}  # who has used an identity
        self._running: set[str] = set()  # identities of operations that have begun and not ended
        self.calls = 0  # of operations, so far
        self._first: dict[Runner, int] = {}  # the first call of each runner
        self._last: dict[Runner, int] = {}  # the last one

    def current(self, runner: Runner | None = None) -> Scope:
        """The scope of the code that runs here, in this runner."""
        scope = current_scope.get()
        if scope is None:
            return self.main
        runner = runner or this_runner()
        while scope is not None and (scope.scopes is not self or (scope.left and scope.runner == runner)):
            scope = scope.parent
        return scope or self.main

    def inside(self, use: Use, part: str) -> Scope:
        """Make a scope below an operation, named `part`, for code of this runner."""
        return Scope(self, f"{use.scope.path}{part}/", this_runner(), use.scope)

    def path_below(self, use: Use) -> str:
        """The path of the branch that this use has begun."""
        return f"{use.scope.path}{use.part}/"

    def use(self, operation: Identity) -> Use:
        """Count a use of an operation that is called here, now."""
        self.calls += 1
        runner = this_runner()
        use = Use(operation, self.current(runner), runner)
        self._first.setdefault(runner, self.calls)
        self._last[runner] = self.calls
        self._uses[use.text] += 1
        use.key = numbered(use.text, self._uses[use.text])
        self.older_uses[operation.older] += 1
        use.older = numbered(operation.older, self.older_uses[operation.older])
        scope: Scope | None = use.scope
        while scope is not None:
            if scope.used is not None:
                scope.used.add(operation.older)
            scope = scope.parent
        return use

    def begin(self, use: Use) -> None:
        """Note that the operation begins. Raises FlowError if its number could be another in the next run."""
        user = self._users.setdefault(use.text, use.runner)
        if use.text in self._running or (user != use.runner and use.operation.key is None):
            raise FlowError(_ambiguous(use, at_once=use.text in self._running))
        self._running.add(use.text)

    def end(self, use: Use) -> None:
        """Note that the operation has ended."""
        self._running.discard(use.text)

    def called_since(self, runner: Runner, since: int) -> bool:
        """Whether this runner has called an operation since `calls` was this number."""
        return self._last.get(runner, 0) > since

    def went_on(self, use: Use, since: int) -> bool:
        """Whether the code that called this operation, or the code around it, has called another since.

        `since`: the number of calls at that time. Tasks that call their first operation later are taken for
        those of the code that goes on.
        """
        mine = {use.runner, *use.scope.runners()}
        return any(
            calls > since for calls in (*self._first.values(), *(self._last.get(one, 0) for one in mine))
        )


def this_runner() -> Runner:
    """The asyncio task that runs here, or the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop
        task = None
    return threading.current_thread() if task is None else task


def _ambiguous(use: Use, *, at_once: bool) -> str:
    what = "at once" if at_once else "by several asyncio tasks or threads"
    return (
        f"{use.operation} is used {what}: when the job runs again, one could get the answer of the other. "
        "Give each a key= of its own, or name the branches: flow.branches(a=..., b=...). For a time limit "
        "use `async with asyncio.timeout(...)`: `asyncio.wait_for` starts a task"
    )
