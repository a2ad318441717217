"""Runs attempts: admission, start, interruption, end."""

from penstock.worker.executor.admission import Admission
from penstock.worker.executor.executor import Executor
from penstock.worker.executor.slots import Slots

__all__ = ["Admission", "Executor", "Slots"]
