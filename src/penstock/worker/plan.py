"""How to run the jobs of one task: everything that is looked up once per task instead of once per job."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from penstock.app.app import App
from penstock.app.attempt import StepAccess, StepExecutor
from penstock.client.middleware import AroundAttempt
from penstock.client.option_readers import RunIn
from penstock.client.options import Options
from penstock.codec import ResultCodec
from penstock.core.errors import ConfigError, SignatureMismatch
from penstock.core.job import Job, RawJob
from penstock.core.text import text_of

_log = logging.getLogger("penstock.worker")


#: Gives the arguments of the function for a job.
Decode = Callable[[Job], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclasses.dataclass(slots=True, eq=False)
class Plan:
    """How to run the jobs of one task or raw handler."""

    name: str
    function: Callable[..., Any]
    run_in: RunIn
    decode: Decode
    encode: Callable[[Any], bytes] | None  #: None: the result is not kept
    around: tuple[AroundAttempt, ...]
    options: Options
    reference: tuple[str, str]
    step_access: StepAccess | None = None  #: None: without durable steps
    why_not: str | None = None  #: why its jobs cannot run here, and are parked; None: they can
    in_thread: bool = dataclasses.field(init=False)  #: a plain thread call, without middleware
    in_process: bool = dataclasses.field(init=False)  #: a plain process call
    measured: int = 0  #: number of measured calls, up to those that the average is made of
    seconds: float | None = None  #: average duration of its last process calls; None: unknown

    def __post_init__(self) -> None:
        self.in_thread = self.run_in == "thread" and not self.around
        self.in_process = self.run_in == "process" and not self.around

    @classmethod
    def refused(cls, name: str, why: str) -> Plan:
        """The plan of jobs that cannot run here."""
        return cls(name, _nothing, "async", lambda _: ((), {}), None, (), Options(), ("", ""), why_not=why)


class Plans:
    """Finds the plan for a job; None if this worker does not know its task. Raises nothing.

    Jobs of a task that cannot be planned, because an annotation cannot be resolved, say, have a plan that
    says so: the other jobs of their fetch start.
    """

    def __init__(self, app: App, lease: int, step_runner: Callable[[], StepExecutor]) -> None:
        self._app = app
        self._lease = lease
        self._step_runner = step_runner
        self._made: dict[tuple[str, str, bool], Plan] = {}
        self._last: tuple[str, str, bool, Plan] | None = None

    def of(self, job: Job) -> Plan | None:
        spec = job.spec
        queue, task, kept = spec.queue, spec.task, spec.retention > 0 or spec.flow is not None
        last = self._last  # usually the same again: a store reads both names once per batch
        if last is not None and last[1] is task and last[0] is queue and last[2] is kept:
            return last[3]
        key = (queue, task, kept)
        plan = self._made.get(key)
        if plan is None:
            plan = self._plan_or_refusal(*key)
            if plan is not None and len(self._made) < 10_000:  # raw jobs may carry any name
                self._made[key] = plan
        if plan is not None:
            self._last = (queue, task, kept, plan)
        return plan

    def refused(self) -> tuple[dict[str, str], dict[str, str]]:
        """Why the jobs of tasks, and of queues with a handler, cannot run here, by their names."""
        tasks = {name: (task.queue, name, _keeps(task.options)) for name, task in self._app.tasks.items()}
        handlers = {queue: (queue, "", _keeps(one.options)) for queue, one in self._app.handlers.items()}
        return self._refusals_of(tasks), self._refusals_of(handlers)

    def _refusals_of(self, keys: Mapping[str, tuple[str, str, bool]]) -> dict[str, str]:
        plans = {name: self._plan_or_refusal(*key) for name, key in keys.items()}
        return {name: plan.why_not for name, plan in plans.items() if plan is not None and plan.why_not}

    def _plan_or_refusal(self, queue: str, name: str, kept: bool) -> Plan | None:
        try:
            return self._make(queue, name, kept)
        except Exception as error:  # noqa: BLE001  # boundary: one task that cannot be planned must not stop the others
            if not isinstance(error, ConfigError):
                _log.exception("the jobs of the task %r cannot be planned", name)
            return Plan.refused(name, text_of(error) or type(error).__name__)

    def _make(self, queue: str, name: str, kept: bool) -> Plan | None:
        handler = self._app.handlers.get(queue)
        if handler is not None:
            around = self._app.middleware.attempts(queue, name)
            function = handler.function
            ref = _reference(function)
            encode = self._encoder(queue, name, handler.result, kept)
            return Plan(name, function, handler.run_in, raw_arguments, encode, around, handler.options, ref)
        task = self._app.tasks.get(name)
        if task is None:
            return None
        around = self._app.middleware.attempts(queue, task.name)
        function = task.function
        task.args.prepare()
        encode = self._encoder(queue, task.name, task.result, kept)
        ref = _reference(function)
        steps = StepAccess(
            lambda: self._app.store,
            task.options,
            task.run_in,
            self._lease,
            asyncio.get_running_loop(),
            self._step_runner,
        )
        decode = decoder(task.args.decode)
        return Plan(name, function, task.run_in, decode, encode, around, task.options, ref, steps)

    def _encoder(
        self, queue: str, task: str, result: ResultCodec, kept: bool
    ) -> Callable[[Any], bytes] | None:
        """The encoder of a result that is wanted, prepared; None if none is. Raises ConfigError."""
        if not wants_result(self._app, queue, task, result, kept):
            return None
        result.prepare()
        return result.encode


def _keeps(options: Options) -> bool:
    """Whether the jobs of a task keep their results, unless their call says otherwise."""
    return options.retention is None or options.retention > 0


def _nothing() -> None:
    """The function of a job that is not run."""


def _reference(function: Callable[..., Any]) -> tuple[str, str]:
    """The module and name of a function; a `partial`, say, has no name, and needs none in this process."""
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", "")


def decoder(decode: Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]]]) -> Decode:
    """Make a function that decodes a job's arguments; a SignatureMismatch it raises names the job."""

    def decode_job(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            return decode(job.spec.payload)
        except SignatureMismatch as error:
            error.job = job.id
            raise

    return decode_job


def wants_result(app: App, queue: str, task: str, result: ResultCodec, kept: bool) -> bool:
    """Whether a job's result is needed: by its store or by an `on_success` callback."""
    return result.keeps and (kept or bool(app.callbacks.of(queue, task).on_success))


def raw_arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a raw handler's function: the job as it sees it."""
    spec = job.spec
    return (RawJob(spec.id, spec.queue, spec.task, spec.payload, job.attempt, spec.headers or {}),), {}
