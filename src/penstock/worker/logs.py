"""The log of a worker process, as text or as JSON lines.

Lines that a task logs name the job, with any logger. Every line has a bounded length and no control
characters. In text only tracebacks span several lines, and these are indented.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import Any

import msgspec

from penstock.app.attempt import running
from penstock.config import Config
from penstock.core.formats import instant
from penstock.core.text import block, json_escaped, one_line, storable, text_of

#: Maximum characters of a message, of a traceback (its end is kept), and of a value given by `extra=`.
_MESSAGE, _TRACEBACK, _VALUE = 10_000, 20_000, 4_000
#: Maximum number of `extra=` values per line.
_VALUES = 50
#: Attributes that every record has; all others come from `extra=`.
_STANDARD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON, with the job's facts and the `extra=` values as keys.

    For processes that are no worker, such as a web server: `handler.setFormatter(JsonFormatter())`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": instant(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": storable(record.name),
            "message": storable(_cut(_message(record), _MESSAGE)),
            "pid": record.process,
        }
        if traceback := _traceback(self, record):
            line["traceback"] = storable(traceback)
        for name, value in _job_facts(record).items():
            line[name] = _value(value)
        for name, value in _extra(record):
            line[f"{name}_" if name in _LINE else name] = _value(value)
        return json_escaped(msgspec.json.encode(line).decode())


def configure_logs(config: Config) -> None:
    """Send the log of this process to stderr, in the configured format and level."""
    handler = logging.StreamHandler(sys.stderr)
    if config.log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(_Text("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.log_level.upper())


def report_refusal(config: Config, why: str) -> None:
    """Print why a worker cannot work, like every command's errors, or log it if the log is JSON."""
    for line in why.split("\n"):
        if config.log_format == "json":
            logging.getLogger("penstock.worker").error("%s", line)
        elif sys.stderr is not None:
            sys.stderr.write(f"penstock: error: {one_line(line, _VALUE)}\n")


def log_with_traceback(
    logger: logging.Logger,
    level: int,
    traceback: str,
    message: str,
    *args: object,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Log a message with the traceback of an error, given as text."""
    if logger.isEnabledFor(level):
        file, line, function, _ = logger.findCaller(stacklevel=2)
        record = logger.makeRecord(
            logger.name, level, file, line, message, args, None, function, dict(extra) if extra else None
        )
        record.exc_text = traceback or None  # any formatter shows it
        logger.handle(record)


# ── private ──────────────────────────────────────────────────────────────────────────────────────


class _Text(logging.Formatter):
    """One line per message, followed by its traceback, if any."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = _cut(_message(record), _MESSAGE)
        if job := _job_facts(record):
            record.message = (
                f"job {job['job_id']} ({job['task']}, attempt {job['attempt']}): {record.message}"
            )
        record.asctime = self.formatTime(record)
        line = one_line(self.formatMessage(record))
        traceback = _traceback(self, record)
        return f"{line}\n{indent(block(traceback), '  ')}" if traceback else line


#: Keys of a JSON line that `extra=` must not change; the keys of the job it may change.
_LINE = frozenset({"at", "level", "logger", "message", "pid", "traceback"})


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  # boundary: arguments that do not fit the message, or cannot be formatted
        return f"{text_of(record.msg)} {_repr(record.args)}"


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The record's traceback; if it is too long, its end, where the error is."""
    parts = [record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")]
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    text = "\n".join(part for part in parts if part)
    return text if len(text) <= _TRACEBACK else "…" + text[-_TRACEBACK:]


def _job_facts(record: logging.LogRecord) -> dict[str, object]:
    """The facts of the attempt that logged this; empty for Penstock's own lines, which name their job."""
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


def _extra(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    named = [(name, value) for name, value in record.__dict__.items() if name not in _STANDARD_ATTRIBUTES]
    for name, value in named[:_VALUES]:
        yield _cut(text_of(name), 200), value


def _value(value: object) -> Any:
    """The value as JSON if that is possible and short, else its `repr`."""
    if type(value) is str:
        return storable(_cut(value, _VALUE))
    try:
        encoded = msgspec.json.encode(value, enc_hook=_repr)
    except Exception:  # noqa: BLE001  # boundary: a user's value that is not JSON, or whose code raises
        return _repr(value)
    return msgspec.Raw(encoded) if len(encoded) <= _VALUE else storable(_cut(encoded.decode(), _VALUE))


def _repr(value: object) -> str:
    try:
        return text_of(repr(value), most=_VALUE)
    except Exception:  # noqa: BLE001  # boundary: a user's value whose __repr__ raises
        return f"({type(value).__name__})"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"
