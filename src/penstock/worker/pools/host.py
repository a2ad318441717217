"""Runs user code in a child process: imports it, calls it with its arguments, and reports its end."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import importlib
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

import msgspec

from penstock.app.app import App
from penstock.app.attempt import Attempt, Reported, running
from penstock.app.loading import enable_own_loggers, load_app
from penstock.app.outcome import outcome_of, result_of, undetermined
from penstock.client.options import Options
from penstock.core import clock
from penstock.core.errors import ConfigError
from penstock.core.job import Job, NewJob, Progress
from penstock.core.lifecycle import too_late
from penstock.core.running import Awaited
from penstock.stores.job_log import LogLine
from penstock.worker.logs import configure_logs
from penstock.worker.plan import Decode, decoder, raw_arguments, wants_result
from penstock.worker.pools.messages import (
    Failed,
    FromChild,
    FunctionReturned,
    Logged,
    Progressed,
    Refused,
    RunJob,
    Waits,
    WorkerHello,
)
from penstock.worker.pools.shared_state import LARGE, Arena, CallPage
from penstock.worker.process_identity import end_fork, reset_stray, stray
from penstock.worker.shared_lease_table import LeaseTable

_log = logging.getLogger("penstock.worker")
_PROGRESS_EVERY = 0.05

Send = Callable[[FromChild], object]


@dataclasses.dataclass(slots=True, eq=False)
class _Plan:
    """How to run the jobs of one task in this child."""

    function: Callable[..., Any]
    decode: Decode
    encode: Callable[[Any], bytes] | None
    options: Options


class Host:
    """The user's code in this process."""

    def __init__(
        self, hello: WorkerHello, send: Send, page: CallPage, table: LeaseTable | None, arena: Arena | None
    ) -> None:
        reset_stray()
        self._hello = hello
        self._send = send
        self._page = page
        self._table = table
        self._arena = arena
        self._main: ModuleType | None = None
        self._apps: list[App] = []
        self._plans: dict[tuple[str, str, bool], _Plan] = {}
        self._loop: asyncio.Runner | None = None

    def open(self) -> None:
        """Set up this process like the worker: its import path, its log, its app."""
        hello = self._hello
        sys.path[:] = hello.path
        sys.argv[:] = hello.argv
        if hello.config is not None:
            configure_logs(hello.config)
        if hello.app is not None:
            if hello.app.startswith("__main__:"):
                self._import("__main__")
            self._start_up(load_app(hello.app))

    def close(self) -> None:
        for app in self._apps:
            try:
                self._call_hooks(app.hooks.on_shutdown, app)
            except Exception:  # noqa: BLE001  # boundary: user code, and the process ends anyway
                _log.exception("a shutdown hook failed in a child process")
        if self._loop is not None:
            self._loop.close()

    def attempt(self, order: RunJob) -> FunctionReturned | Failed | Refused:
        """Run the job's function and return its end, unless its lease is lost or it is too late for it."""
        if clock.lease_seconds() >= order.until or _is_too_late(order) or not self._may_start(order):
            return Refused(order.number)
        self._page.note_begun(order.number)
        job, plan, started, took = order.job, None, 0.0, 0.0
        try:
            plan = self._plan_of(order)
            began = time.monotonic()
            if order.large is not None and self._arena is not None:
                spec = msgspec.structs.replace(job.spec, payload=self._arena.get(order.large))
                job = msgspec.structs.replace(job, spec=spec)
            args, kwargs = plan.decode(job)
            reporter = _Reporter(self._send, order.number)
            context = contextvars.copy_context()
            started = self._page.begin(order.number)
            ends = None if order.seconds is None else started + order.seconds
            context.run(running.set, Attempt(job, reporter, ends))
            try:
                value = context.run(plan.function, *args, **kwargs)
            finally:
                if stray.here:
                    end_fork()
                self._page.end()
                took = time.monotonic() - started
                reporter.close()
            result = result_of(value, plan.encode, job)
            place = None
            if result is not None and len(result) >= LARGE and self._arena is not None:
                place = self._arena.put_result(order.number, result)
            spent = time.monotonic() - began
            kept = result if place is None else None
            return FunctionReturned(order.number, started, took, spent, kept, place)
        except BaseException as error:  # noqa: BLE001  # boundary: any error of user code is its outcome
            now = _store_now(order)
            options = Options() if plan is None else plan.options
            return _failed(order.number, started, took, job, now, error, options)

    def _may_start(self, order: RunJob) -> bool:
        """Mark the start in the worker's lease table; False if the supervisor has revoked the lease."""
        if self._table is None or order.entry is None:
            return True
        deadline = 0 if order.seconds is None else int((time.monotonic() + order.seconds) * 1e9)
        return self._table.try_start_entry(*order.entry, deadline)

    def _plan_of(self, order: RunJob) -> _Plan:
        if order.step:
            return self._step_plan(order)
        spec = order.job.spec
        key = (spec.queue, spec.task, _keeps(spec))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(order)
            if len(self._plans) < 10_000:  # raw jobs may carry any name
                self._plans[key] = plan
        return plan

    def _step_plan(self, order: RunJob) -> _Plan:
        from penstock.workflows.step_calls import answer_to  # most children run no steps

        function: Any = self._import(order.module)
        for part in order.qualname.split("."):
            function = getattr(function, part)
        call = functools.partial(answer_to, function, order.qualname)
        return _Plan(call, lambda job: ((job.spec.payload,), {}), bytes, Options())

    def _make_plan(self, order: RunJob) -> _Plan:
        queue, name, kept = order.job.spec.queue, order.job.spec.task, _keeps(order.job.spec)
        module = self._import(order.module)
        for app in [*self._apps, *(v for v in vars(module).values() if isinstance(v, App))]:
            handler, task = app.handlers.get(queue), app.tasks.get(name)
            if handler is not None:
                self._start_up(app)
                wanted = wants_result(app, queue, name, handler.result, kept)
                encode = handler.result.encode if wanted else None
                return _Plan(handler.function, raw_arguments, encode, handler.options)
            if task is not None:
                self._start_up(app)
                wanted = wants_result(app, queue, task.name, task.result, kept)
                encode = task.result.encode if wanted else None
                return _Plan(task.function, decoder(task.args.decode), encode, task.options)
        raise ConfigError(
            f"the task {name!r} is not found in a child process: importing {order.module!r} does not "
            "register it there with a module's app; start the worker as `penstock worker module:app`"
        )

    def _import(self, name: str) -> ModuleType:
        if name not in ("__main__", "__mp_main__"):
            return importlib.import_module(name)
        if self._main is None:
            self._main = import_script(self._hello.main_module, self._hello.main_file)
        return self._main

    def _start_up(self, app: App) -> None:
        if not any(known is app for known in self._apps):
            self._call_hooks(app.hooks.on_startup, app)
            enable_own_loggers()
            self._apps.append(app)

    def _call_hooks(self, hooks: Iterable[Callable[..., Any]], app: App) -> None:
        for hook in hooks:
            returned = hook(app) if inspect.signature(hook).parameters else hook()
            if inspect.isawaitable(returned):
                if self._loop is None:
                    self._loop = asyncio.Runner()
                self._loop.run(_awaited(returned))


async def _awaited(returned: Any) -> None:
    await returned


def _keeps(spec: NewJob) -> bool:
    """Whether the store keeps the result."""
    return spec.retention > 0 or spec.flow is not None


def _store_now(order: RunJob) -> int:
    """The store's clock (ms)."""
    return order.epoch + int(time.monotonic() * 1000)


def _is_too_late(order: RunJob) -> bool:
    """Whether the job has expired, or its deadline has passed, while it waited for this child.

    A step belongs to an attempt that has begun.
    """
    return not order.step and too_late(order.job, _store_now(order)) is not None


def _failed(
    number: int, started: float, took: float, job: Job, now: int, error: BaseException, options: Options
) -> Failed:
    try:
        trace = error.__traceback__
        if trace is not None and trace.tb_next is not None:
            error.__traceback__ = trace.tb_next  # without our own frame
        return Failed.of(number, started, took, outcome_of(job, now, error, options))
    except BaseException as wrong:  # noqa: BLE001  # boundary: the worker gets an end even if the error cannot be read
        return Failed.of(number, started, took, undetermined(job, now, error, wrong))


class _Reporter:
    """Sends log lines to the worker, and progress at most every 50 ms: of several reports only the last."""

    def __init__(self, send: Send, number: int) -> None:
        self._send = send
        self._number = number
        self._lock = threading.Lock()
        self._sent = 0.0
        self._waiting: Progress | None = None
        self._timer: threading.Timer | None = None
        self._closed = False

    def __call__(self, _job: Job, progress: Reported) -> None:
        with self._lock:
            if self._closed:
                return
            if isinstance(progress, LogLine):
                self._send(Logged(self._number, progress))
                return
            if isinstance(progress, Awaited):
                self._send(Waits(self._number, progress))
                return
            wait = self._sent + _PROGRESS_EVERY - time.monotonic()
            if wait <= 0 and self._waiting is None:
                self._send_now(progress)
                return
            self._waiting = progress
            if self._timer is None:
                self._timer = threading.Timer(max(0.0, wait), self._send_waiting)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Stop reporting; progress that still waits is sent before the attempt's end."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            if self._waiting is not None:
                self._send_now(self._waiting)

    def _send_waiting(self) -> None:
        with self._lock:
            self._timer = None
            if self._waiting is not None and not self._closed:
                self._send_now(self._waiting)

    def _send_now(self, progress: Progress) -> None:
        self._waiting = None
        self._sent = time.monotonic()
        self._send(Progressed(self._number, progress))


# ── the script that the worker was started as ────────────────────────────────────────────────────

_importing = False


def import_script(module_name: str | None, file: str | None) -> ModuleType:
    """Import the worker's script under a name other than `__main__`, so that its main guard is skipped."""
    global _importing
    _importing = True
    try:
        if module_name is not None:
            module = importlib.import_module(module_name)
        elif file is not None:
            # without a __spec__, like any script, so that task names are the same as in the worker
            module = ModuleType("__mp_main__")
            module.__file__ = file
            sys.modules["__mp_main__"] = module
            SourceFileLoader("__mp_main__", file).exec_module(module)
        else:
            raise ConfigError(
                "a process task defined at a prompt cannot run in another process: put it into a file"
            )
        sys.modules["__mp_main__"] = sys.modules["__main__"] = module
        return module
    finally:
        _importing = False


def refuse_while_importing() -> None:
    """Refuse to start a worker in a child process that imports its worker's script."""
    if _importing:
        raise ConfigError(
            "this script starts a worker whenever it is imported, and a process task has to import it: "
            'put the start under `if __name__ == "__main__":`'
        )
