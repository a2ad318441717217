"""Encode and decode packed columns: error histories, progress, limits, workers, periodic entries.

An unreadable value never fails a verb: it counts as absent, or is shown as unreadable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from penstock.core.job import AttemptError, Progress, Ref
from penstock.core.limit_layers import NO_LAYERS, LimitLayers
from penstock.core.limits import NO_LIMITS, LimitChange, QueueLimits
from penstock.core.schedule import Entry, NewEntry, unreadable_entry
from penstock.stores.contract import WorkerInfo
from penstock.stores.text_encoding import storable_error, storable_progress

__all__ = [
    "CANNOT_DECODE",
    "entry_of",
    "errors_blob",
    "errors_of",
    "layers_blob",
    "layers_of",
    "limits_of",
    "progress_blob",
    "progress_of",
    "why_no_limits",
    "worker_blob",
    "worker_of",
]

#: The exceptions of a decoder for bytes that another program has written.
CANNOT_DECODE = (msgspec.MsgspecError, ValueError, RecursionError)
_CANNOT_ENCODE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, AttributeError)
#: Shown instead of an error history that cannot be read.
_NO_HISTORY = (AttemptError(0, 0, "Unreadable", "the errors of earlier attempts cannot be read"),)

_log = logging.getLogger("penstock.stores")
_blob = msgspec.msgpack.Encoder().encode
_errors_of = msgspec.msgpack.Decoder(tuple[AttemptError, ...]).decode
_progress_of = msgspec.msgpack.Decoder(Progress).decode
_limits_of = msgspec.msgpack.Decoder(QueueLimits).decode
_layers_of = msgspec.msgpack.Decoder(tuple[LimitChange, LimitChange]).decode
worker_blob = _blob
_worker_of = msgspec.msgpack.Decoder(WorkerInfo).decode
_entry_of = msgspec.msgpack.Decoder(NewEntry).decode
_said: set[bytes] = set()  # unreadable limits that were already logged


def errors_of(blob: bytes | None) -> tuple[AttemptError, ...]:
    if blob is None:
        return ()
    try:
        return _errors_of(blob)
    except CANNOT_DECODE:
        return _NO_HISTORY


def errors_blob(errors: Iterable[AttemptError]) -> bytes:
    return _blob([storable_error(error) for error in errors])


def progress_of(blob: bytes | None) -> Progress | None:
    if blob is None:
        return None
    try:
        return _progress_of(blob)
    except CANNOT_DECODE:
        return None


def progress_blob(progress: Progress) -> bytes | None:
    """Encode progress; None if it could not be decoded again. The heartbeat itself still counts."""
    try:
        try:
            blob = _blob(progress)
        except UnicodeEncodeError:
            blob = _blob(storable_progress(progress))
        _progress_of(blob)
    except _CANNOT_ENCODE:
        return None
    return blob


def limits_of(blob: bytes | None) -> QueueLimits:
    """Decode the limits of a queue; no limits for NULL or an unreadable value."""
    if blob is None:
        return NO_LIMITS
    try:
        return _limits_of(blob)
    except CANNOT_DECODE as error:
        if blob not in _said and len(_said) < 100:
            _said.add(blob)
            _log.warning("the settings of a queue cannot be read and count as not set: %s", error)
        return NO_LIMITS


def layers_of(blob: bytes | None, limits: QueueLimits) -> LimitLayers:
    """Decode who has set these limits; an operator, for NULL or an unreadable value."""
    try:
        if blob is not None:
            return LimitLayers(*_layers_of(blob))
    except CANNOT_DECODE:
        pass
    return LimitLayers.by_operator(limits)


def layers_blob(layers: LimitLayers) -> bytes | None:
    return None if layers == NO_LAYERS else _blob(layers.to_dicts())


def why_no_limits(blob: bytes | None) -> str | None:
    """Return why these limits cannot be read; None if they can."""
    try:
        if blob is not None:
            _limits_of(blob)
    except CANNOT_DECODE as error:
        return str(error)
    return None


def worker_of(id: str, seen_at: int, blob: bytes) -> WorkerInfo:
    try:
        return _worker_of(blob)
    except CANNOT_DECODE:
        return WorkerInfo.unreadable(id, seen_at)


def entry_of(ref: Ref, row: Sequence[Any]) -> Entry:
    spec, revision, watermark, paused, last, enqueued, skipped = row
    try:
        return Entry(_entry_of(spec), revision, watermark, paused == 1, last, enqueued, skipped)
    except CANNOT_DECODE as error:
        return unreadable_entry(ref, spec, str(error))
