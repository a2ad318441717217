"""Takes jobs from a store and runs them."""

from penstock.worker.queues import Queue
from penstock.worker.worker import Worker

__all__ = ["Queue", "Worker"]
