"""Runs attempts: admission, start, interruption, end."""

from penstock.worker.executor.admission import Admission
from penstock.worker.executor.executor import AttemptWatch, Executor
from penstock.worker.executor.slots import Slots

__all__ = ["Admission", "AttemptWatch", "Executor", "Slots"]
