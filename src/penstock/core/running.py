"""The attempt that runs here: set around a task's function, read by `current_job()` and by enqueues."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

__all__ = ["running_attempt"]

#: The running attempt of this task, thread or process (`app.attempt.Attempt`).
running_attempt: ContextVar[Any] = ContextVar("penstock_attempt")
