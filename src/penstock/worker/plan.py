"""How to run the jobs of one task: everything that is looked up once per task instead of once per job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.app.app import App
from penstock.app.attempt import StepAccess
from penstock.client.middleware import AroundAttempt
from penstock.client.option_readers import RunIn
from penstock.client.options import Options
from penstock.codec import ResultCodec
from penstock.core.errors import SignatureMismatch
from penstock.core.job import Job, RawJob

__all__ = ["Plan", "Plans", "decoder", "wants_result"]


class Plan:
    """How to run the jobs of one task or raw handler."""

    __slots__ = (
        "around",
        "decode",
        "encode",
        "function",
        "in_process",
        "in_thread",
        "measured",
        "name",
        "options",
        "reference",
        "run_in",
        "seconds",
        "step_access",
    )

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        run_in: RunIn,
        decode: Callable[[Job], tuple[tuple[Any, ...], dict[str, Any]]],
        encode: Callable[[Any], bytes] | None,
        around: tuple[AroundAttempt, ...],
        options: Options,
        reference: tuple[str, str],
        step_access: StepAccess | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.run_in = run_in
        self.in_thread = run_in == "thread" and not around  # a plain thread call, without middleware
        self.in_process = run_in == "process" and not around
        self.measured = 0  # number of measured calls, up to those that the average is made of
        self.seconds: float | None = None  # average duration of its last process calls; None: unknown
        self.decode = decode
        self.encode = encode  # None: the result is not kept
        self.around = around
        self.options = options
        self.reference = reference
        self.step_access = step_access  # None: without durable steps


class Plans:
    """Finds the plan for a job; None if this worker does not know its task."""

    def __init__(self, app: App, lease: int) -> None:
        self._app = app
        self._lease = lease
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
            plan = self._make(*key)
            if plan is not None and len(self._made) < 10_000:  # raw jobs may carry any name
                self._made[key] = plan
        if plan is not None:
            self._last = (queue, task, kept, plan)
        return plan

    def _make(self, queue: str, name: str, kept: bool) -> Plan | None:
        handler = self._app.handlers.get(queue)
        if handler is not None:
            around = self._app.middleware.attempts(queue, name)
            function = handler.function
            ref = (function.__module__, function.__qualname__)
            wanted = wants_result(self._app, queue, name, handler.result, kept)
            encode = handler.result.encode if wanted else None
            return Plan(name, function, handler.run_in, _raw, encode, around, handler.options, ref)
        task = self._app.tasks.get(name)
        if task is None:
            return None
        around = self._app.middleware.attempts(queue, task.name)
        function = task.function
        wanted = wants_result(self._app, queue, task.name, task.result, kept)
        encode = task.result.encode if wanted else None
        ref = (function.__module__, function.__qualname__)
        steps = StepAccess(
            lambda: self._app.store, task.options, task.run_in, self._lease, asyncio.get_running_loop()
        )
        decode = decoder(task.args.decode)
        return Plan(name, function, task.run_in, decode, encode, around, task.options, ref, steps)


def decoder(
    decode: Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]]],
) -> Callable[[Job], tuple[tuple[Any, ...], dict[str, Any]]]:
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


def raw_job(job: Job) -> RawJob:
    """The job as a raw handler sees it."""
    spec = job.spec
    return RawJob(spec.id, spec.queue, spec.task, spec.payload, job.attempt, spec.headers or {})


def _raw(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (raw_job(job),), {}
