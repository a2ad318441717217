"""The formatter of a worker's JSON log, for other processes. It is defined in `penstock.worker.logs`."""

from penstock.worker.logs import JsonFormatter as JsonFormatter

__all__ = ["JsonFormatter"]
