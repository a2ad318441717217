"""The log of a worker process: text for people, JSON lines for machines.

What a task logs, by whatever logger, says for which job.
"""

from __future__ import annotations

import datetime
import logging
import sys

import msgspec

from penstock.attempt import running
from penstock.config import Config

__all__ = ["configure_logs"]

_FACTS = ("job_id", "task", "queue", "attempt", "worker")


class _JsonLines(logging.Formatter):
    """One object a line, with the job's facts as keys of their own."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "at": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        line.update(_job_that_spoke(record))
        for fact in _FACTS:
            if (value := getattr(record, fact, None)) is not None:
                line[fact] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class _Text(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        if job := _job_that_spoke(record):
            record.message = (
                f"job {job['job_id']} ({job['task']}, attempt {job['attempt']}): {record.message}"
            )
        return super().formatMessage(record)


def _job_that_spoke(record: logging.LogRecord) -> dict[str, object]:
    """The facts of the attempt that runs where this was logged. Our own lines name their job themselves."""
    if record.name.partition(".")[0] == "penstock":
        return {}
    attempt = running.get(None)
    if attempt is None:
        return {}
    return {
        "job_id": attempt.id,
        "task": attempt.task,
        "queue": attempt.queue,
        "attempt": attempt.attempt,
    }


def configure_logs(config: Config) -> None:
    """Send the log of this process to stderr, as the configuration says."""
    handler = logging.StreamHandler(sys.stderr)
    if config.log_format == "json":
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(_Text("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.log_level.upper())
