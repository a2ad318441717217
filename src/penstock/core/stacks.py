"""The stacks of threads and asyncio tasks as text, for a person who looks for what hangs."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

#: The innermost frames that are shown of one stack.
_DEEPEST = 30


def thread_frames() -> dict[int, tuple[str, list[FrameType]]]:
    """The name and the frames of each thread of this process by its ident, outermost frame first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        ident: (names.get(ident, f"thread {ident}"), [one for one, _ in traceback.walk_stack(frame)][::-1])
        for ident, frame in sys._current_frames().items()
    }


def task_frames(
    task: asyncio.Task[Any], driven_by: Callable[[FrameType], object] = lambda _: None
) -> list[FrameType]:
    """The frames of a task, outermost first, also while it waits: `Task.get_stack` shows only one then.

    `driven_by` returns the coroutine that the code of a frame drives by itself, without `await`; else None.
    """
    found: list[FrameType] = []
    awaited: object = task.get_coro()
    while awaited is not None:
        frame, awaited = _step(awaited)
        if frame is not None:
            found.append(frame)
            awaited = awaited or driven_by(frame)
    return found


def _step(awaited: object) -> tuple[FrameType | None, object]:
    """The frame of a coroutine or generator, and what it waits for."""
    if isinstance(awaited, CoroutineType):
        return awaited.cr_frame, awaited.cr_await
    if isinstance(awaited, GeneratorType):
        return awaited.gi_frame, awaited.gi_yieldfrom
    if isinstance(awaited, AsyncGeneratorType):
        return awaited.ag_frame, awaited.ag_await
    return None, None


def frames_text(frames: list[FrameType]) -> str:
    """Frames as a traceback shows them, the innermost last; without the values of variables."""
    shown = frames[-_DEEPEST:]
    left_out = len(frames) - len(shown)
    lines = [f"  … {left_out} outer frames\n"] if left_out else []
    for frame in shown:
        summary = traceback.StackSummary.extract([(frame, frame.f_lineno)])
        lines += summary.format()
    return "".join(lines)
