"""Steps, timers, waits for signals, and undoing, as plans of a run of a flow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from penstock.app.deciding import STEP_FAILED, UNDO_AFTER, can_be_undone, decided, failure_of
from penstock.app.outcome import outcome_of, returned_by
from penstock.codec import ResultCodec, result_codec_of
from penstock.core import errors
from penstock.core.formats import Duration, milliseconds
from penstock.core.job import State
from penstock.core.step_names import Identity, checked_name
from penstock.core.text import text_of
from penstock.stores.contract import StoredStep
from penstock.workflows.asked import UNKNOWN, asked_of
from penstock.workflows.scopes import Use
from penstock.workflows.step_memory import Pause, StepPlan, UserCall
from penstock.workflows.step_run import StepRun, StepsFailed

#: The largest result of one step (bytes).
LARGEST_STEP = 1024 * 1024


class _Aside(msgspec.Struct):
    """A signal that was set aside: its data, the reason, and when it was received."""

    data: msgspec.Raw
    why: str
    at: int


class StepOptions(NamedTuple):
    """The options of a step."""

    undo: Callable[..., Any] | None
    attempts: int
    retry_delay: Duration


_log = logging.getLogger("penstock")
#: Follows the reason in the step STEP_FAILED if the flow has cancelled itself.
_CANCELS = b"\x00cancelled"
#: Codecs of functions, each for the step of this name.
_codecs: WeakKeyDictionary[Callable[..., Any], tuple[str, ResultCodec]] = WeakKeyDictionary()


class StepPlans:
    """The operations of one flow, and its undo functions."""

    def __init__(self, run: StepRun) -> None:
        self._run = run
        self._memory = run.memory
        self._undo: dict[str, tuple[Callable[..., Any], Any]] = {}
        self._ended_with: BaseException | None = None

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    def step(
        self, name: str, call: UserCall, key: str | None, changing: bool, options: StepOptions
    ) -> StepPlan[Any]:
        """Run a function once and remember its result."""
        name = checked_name(name, "the name of a step")
        codec = _codec_of(call.function, name)
        asked = asked_of(call.function, call.args, call.kwargs, changing)

        def body(use: Use) -> StepPlan[Any]:
            run, memory = self._run, self._memory
            run.active.add(use.key)
            try:
                found = memory.stored(use.key)
                if found is None:
                    yield from run.reach()
                    if options.undo is not None:
                        yield from memory.note_undo()
                    found = yield from self._called(use, asked, call, codec, options)
                value = self._decoded(use, found, codec)
                if options.undo is not None:
                    self._undo[use.key] = (options.undo, value)
                if memory.undoing and not run.unreached():  # the code behind it does not run again
                    raise StepsFailed
                return value
            finally:
                run.active.discard(use.key)

        return (yield from self._run.operate(Identity("step", name, key, name), body, asked))

    def _called(
        self, use: Use, asked: str, call: UserCall, codec: ResultCodec, options: StepOptions
    ) -> StepPlan[StoredStep]:
        run, memory, key = self._run, self._memory, use.key
        failed = memory.count(f"{key}!")
        while True:
            if failed:  # the failed try has stored when the next one is due
                due = memory.stored(f"{key}!{failed}")
                assert due is not None
                yield from run.wait_until(int(due.value or b"0"))
            run.check()
            try:
                value = yield call
                break
            except (errors.Steering, errors.FlowError):  # meant for the job
                raise
            except Exception as error:  # boundary: a user's function; its own retry decides
                failed += 1
                if failed >= options.attempts:
                    yield from run.failures.record(use, asked, error)
                    raise
            due_at = memory.now() + milliseconds(options.retry_delay, what="retry_delay")
            yield from memory.record(f"{key}!{failed}", b"%d" % due_at)
        return (yield from memory.record_answer(key, asked, _encoded(codec, value, use.operation)))

    def _decoded(self, use: Use, found: StoredStep, codec: ResultCodec) -> Any:
        """The stored result. Ends the run with FlowMismatch if this release cannot read it."""
        try:
            return codec.decode(self._memory.answer(found) or b"null")
        except errors.Undecodable as error:
            self._run.end_unreadable(use, error)

    # ── waits ────────────────────────────────────────────────────────────────────────────────────

    def sleep(self, duration: Duration, key: str | None, changing: bool) -> StepPlan[None]:
        """Wait, over any number of restarts."""
        ms = milliseconds(duration, what="sleep(duration)")
        asked = f"sleep {UNKNOWN if changing else ms}"

        def body(use: Use) -> StepPlan[None]:
            run, memory = self._run, self._memory
            found = memory.stored(use.key)
            if found is None:
                yield from run.reach()
                found = yield from memory.record_answer(use.key, asked, b"%d" % (memory.now() + ms))
            if not memory.undoing:  # for which it is over
                yield from run.wait_until(int(memory.answer(found) or b"0"))

        yield from self._run.operate(Identity("sleep", "", key, "sleep!"), body, asked)

    def wait_for(self, signal: str, key: str, timeout: Duration | None, codec: ResultCodec) -> StepPlan[Any]:
        """Wait for a signal and return its data; None after the timeout."""
        signal = checked_name(signal, "the name of a signal")
        ms = None if timeout is None else milliseconds(timeout, what="wait_for(timeout=)")

        def body(use: Use) -> StepPlan[Any]:
            run, memory = self._run, self._memory
            while True:
                found = memory.stored(use.key)
                if found is None:
                    yield from run.reach()
                    with run.waiting_for(use.key):
                        found = yield from self._await(use.key, signal, key, ms, codec)
                if found.signal is None:
                    return None
                try:
                    return codec.decode(found.value or b"null")
                except errors.Undecodable as error:
                    if memory.older or memory.stored_since(found):  # the code has gone on with it
                        run.end_unreadable(use, error)
                    yield from self._set_aside(use, found, error)

        own_key = key or None
        return (yield from self._run.operate(Identity("wait", signal, own_key, f"wait!{signal}"), body))

    def _await(
        self, step: str, signal: str, key: str, timeout: int | None, codec: ResultCodec
    ) -> StepPlan[StoredStep]:
        run, memory, until = self._run, self._memory, None
        if timeout is not None:
            limit = memory.stored(f"{step}!until")
            if limit is None:
                limit = yield from memory.record(f"{step}!until", b"%d" % (memory.now() + timeout))
            until = int(limit.value or b"0")
        if until is not None and until <= memory.now():
            return (yield from memory.record(step, b""))  # or the signal that came first
        found = yield from memory.await_signal(step, signal, key)
        if found is None:
            schema = None if memory.older or memory.stored(f"{step}!of") else codec.schema
            if schema is not None:  # for those who send the signal
                yield from memory.record(f"{step}!of", schema)
            look = memory.next_look(step)
            yield from run.suspend(look if until is None else min(look, until - memory.now()))
        assert found is not None
        return found

    def _set_aside(self, use: Use, found: StoredStep, error: errors.Undecodable) -> StepPlan[None]:
        """Set aside a signal whose data does not fit; the wait goes on."""
        memory, key = self._memory, use.key
        n = memory.count(f"{key}!aside") + 1
        last = memory.stored(f"{key}!aside{n - 1}")
        aside = _Aside(msgspec.Raw(found.value or b"null"), text_of(error)[:500], found.at)
        if last is None or msgspec.json.decode(last.value or b"", type=_Aside).at != found.at:
            yield from memory.record(f"{key}!aside{n}", msgspec.json.encode(aside))
        yield from memory.forget([key])
        _log.warning("job %s: %s: a signal was set aside: %s", self._run.attempt.id, use.operation, aside.why)

    # ── the end of the attempt ───────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        """Check the end of a function that has returned: it may have swallowed what ends the attempt."""
        run = self._run
        run.over = True
        left = run.left_over()
        if run.ending is not None:
            raise run.ending
        if self._memory.stored(STEP_FAILED) is not None:
            raise StepsFailed
        if left is not None:
            raise errors.FlowError(left)

    def error_to_end_with(self, error: BaseException) -> BaseException:
        """The error with which an attempt ends after `failed`, if middleware has raised this one."""
        run = self._run
        run.over = True
        if run.ending is not None and not _is_misuse(run.ending):
            return run.ending
        return self._ended_with or errors.Discard("undone") if isinstance(error, StepsFailed) else error

    def failed(self, error: BaseException) -> StepPlan[BaseException]:
        """Undo the steps if the flow has failed for good; returns the error with which the attempt ends."""
        try:
            self._ended_with = yield from self._failed(error)
        except BaseException as wrong:  # boundary: a user's undo function
            self._ended_with = wrong
            raise
        return self._ended_with

    def _failed(self, error: BaseException) -> StepPlan[BaseException]:
        run, memory = self._run, self._memory
        run.over = True
        run.left_over()
        if run.ending is not None:
            if not _is_misuse(run.ending):
                return run.ending
            error = run.ending
        if run.interrupted or isinstance(error, (errors.FlowSuspended, errors.Interrupted)):
            return error
        if returned_by(run.attempt.job, error):
            return error
        while run.busy:  # branches: their steps must not run beside the undos or the next attempt
            yield Pause(None)
        yield from run.read()  # the function may have failed before its first step
        marked = memory.stored(STEP_FAILED)
        was_marked = marked is not None
        if marked is None:
            yield from run.failures.forget(error)
            if not self._is_final(error):
                return error
            early = can_be_undone(memory.checkpoint) and run.unreached()
            if not self._undo and not early:
                return error
            reason = text_of(error, "the flow failed")[:300].encode()
            reason += _CANCELS if isinstance(error, errors.Cancel) else b""
            marked = yield from memory.record(STEP_FAILED, reason)
            if early:  # one more run tells how the steps that this one did not reach are undone
                run.ending = errors.FlowSuspended(UNDO_AFTER)
                return run.ending
        if run.unreached() and not isinstance(error, StepsFailed) and not self._is_final(error):
            return error  # the next attempt reaches more: the last step is undone first
        order = (yield from memory.order_in_store()) if len(self._undo) > 1 else memory.order()
        for key in sorted(self._undo, key=order.__getitem__, reverse=True):
            name = f"undo!{key}" if memory.older else f"{key}!undone"
            if memory.stored(name) is None:
                undo, value = self._undo[key]
                yield UserCall(undo, (value,), {}, "an undo function")
                yield from memory.record(name, b"null")
        why = failure_of(marked.value)
        if isinstance(error, StepsFailed) and run.unreached():
            return errors.Discard(f"not undone, as the function did not reach its stored steps: {why}")
        if isinstance(error, StepsFailed) or (was_marked and not run.unreached()):
            asked = run.attempt.job.cancel_asked and why == run.undoes
            cancelled = asked or (marked.value or b"").endswith(_CANCELS)
            return errors.Cancel(why) if cancelled else errors.Discard(f"undone after: {why}")
        if run.unreached() and self._is_final(error):
            return errors.Discard(
                f"not undone, as the function did not reach its stored steps: {text_of(error)[:300]}"
            )
        return error

    def _is_final(self, error: BaseException) -> bool:
        job, now = self._run.attempt.job, self._memory.now()
        outcome = outcome_of(job, now, error, self._run.access.options)
        move = decided(job, outcome, now, undoes=self._run.undoes is not None)
        return move.state in (State.DEAD, State.CANCELLED)


def _is_misuse(ending: BaseException) -> bool:
    """Whether the job dies of this ending; others suspend it, or park it for another release."""
    return not isinstance(ending, (errors.FlowSuspended, errors.FlowMismatch, errors.FlowVersionMismatch))


def _codec_of(function: Callable[..., Any], name: str) -> ResultCodec:
    """The codec of a step's result, by the function's annotation."""
    known, made = _codecs.get(function, ("", None)) if type(function) is FunctionType else ("", None)
    if made is None or known != name:
        made = _new_codec_of(function, name)
        if type(function) is FunctionType and function.__closure__ is None:  # else its annotation may differ
            _codecs[function] = (name, made)
    return made


def _new_codec_of(function: Callable[..., Any], name: str) -> ResultCodec:
    own = getattr(function, "function", function)  # that of a task
    try:
        codec = result_codec_of(own, name=f"step {name}", max_bytes=LARGEST_STEP, setting="")
    except (ValueError, TypeError, errors.ConfigError):  # a builtin without a signature
        return ResultCodec(Any, name=f"step {name}", max_bytes=LARGEST_STEP, setting="")
    try:
        codec.prepare()
    except errors.ConfigError as error:  # before the function runs: its result could not be remembered
        raise errors.FlowError(str(error)) from None
    return codec


def _encoded(codec: ResultCodec, value: Any, operation: Identity) -> bytes:
    try:
        return codec.encode(value)
    except errors.ResultError as error:
        raise errors.FlowError(f"the result of {operation} cannot be remembered: {error}") from error
