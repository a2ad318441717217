"""The log of a worker process: text for people, JSON lines for machines."""

from __future__ import annotations

import datetime
import logging
import sys

import msgspec

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
        for fact in _FACTS:
            if (value := getattr(record, fact, None)) is not None:
                line[fact] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure_logs(config: Config) -> None:
    """Send the log of this process to stderr, as the configuration says."""
    handler = logging.StreamHandler(sys.stderr)
    if config.log_format == "json":
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.log_level.upper())
