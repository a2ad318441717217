"""Runs attempts: admission, start, interruption, end."""

from penstock.worker.executor.executor import Executor

__all__ = ["Executor"]
