"""Penstock: background jobs for Python that do not get lost.

The front door. Each name is looked up when it is first asked for, so that `import penstock` costs next
to nothing, whatever is used of it afterwards.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import config as config
    from penstock import errors as errors
    from penstock import events as events
    from penstock import retry as retry
    from penstock import testing as testing
    from penstock.app import App as App
    from penstock.attempt import Attempt as Attempt
    from penstock.attempt import NoCurrentJob as NoCurrentJob
    from penstock.attempt import current_job as current_job
    from penstock.batch import Batch as Batch
    from penstock.draft import Draft as Draft
    from penstock.errors import ArgumentError as ArgumentError
    from penstock.errors import AttemptCancelled as AttemptCancelled
    from penstock.errors import AttemptLost as AttemptLost
    from penstock.errors import AttemptTimeout as AttemptTimeout
    from penstock.errors import BlockingCallWarning as BlockingCallWarning
    from penstock.errors import Cancel as Cancel
    from penstock.errors import ConfigError as ConfigError
    from penstock.errors import Discard as Discard
    from penstock.errors import DuplicateJob as DuplicateJob
    from penstock.errors import EnqueueError as EnqueueError
    from penstock.errors import EnqueueManyError as EnqueueManyError
    from penstock.errors import EnqueueUnknown as EnqueueUnknown
    from penstock.errors import Interrupted as Interrupted
    from penstock.errors import JobCancelled as JobCancelled
    from penstock.errors import JobDead as JobDead
    from penstock.errors import JobExists as JobExists
    from penstock.errors import JobNotFound as JobNotFound
    from penstock.errors import MissingExtra as MissingExtra
    from penstock.errors import NotReplicated as NotReplicated
    from penstock.errors import OutboxFull as OutboxFull
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import QueueClosed as QueueClosed
    from penstock.errors import QueueFull as QueueFull
    from penstock.errors import RateLimited as RateLimited
    from penstock.errors import ResultError as ResultError
    from penstock.errors import ResultNotKept as ResultNotKept
    from penstock.errors import ResultTimeout as ResultTimeout
    from penstock.errors import Retry as Retry
    from penstock.errors import SignatureMismatch as SignatureMismatch
    from penstock.errors import Snooze as Snooze
    from penstock.errors import Steering as Steering
    from penstock.errors import StoreBusy as StoreBusy
    from penstock.errors import StoreCorrupt as StoreCorrupt
    from penstock.errors import StoreError as StoreError
    from penstock.errors import StoreFull as StoreFull
    from penstock.errors import StoreReadOnly as StoreReadOnly
    from penstock.errors import StoreTooNew as StoreTooNew
    from penstock.errors import StoreUnavailable as StoreUnavailable
    from penstock.errors import Undecodable as Undecodable
    from penstock.errors import UnknownScheme as UnknownScheme
    from penstock.errors import Unsupported as Unsupported
    from penstock.events import Event as Event
    from penstock.events import JobCancelledEvent as JobCancelledEvent
    from penstock.events import JobCompleted as JobCompleted
    from penstock.events import JobDied as JobDied
    from penstock.events import JobEnqueued as JobEnqueued
    from penstock.events import JobFailed as JobFailed
    from penstock.events import JobNotEnqueued as JobNotEnqueued
    from penstock.events import JobParked as JobParked
    from penstock.events import JobReleased as JobReleased
    from penstock.events import JobSnoozed as JobSnoozed
    from penstock.events import JobStarted as JobStarted
    from penstock.events import LateResultRefused as LateResultRefused
    from penstock.events import LoopBlocked as LoopBlocked
    from penstock.events import RecordSetAside as RecordSetAside
    from penstock.events import TaskUnknown as TaskUnknown
    from penstock.events import WorkerLost as WorkerLost
    from penstock.events import WorkerStarted as WorkerStarted
    from penstock.events import WorkerStopped as WorkerStopped
    from penstock.handle import Handle as Handle
    from penstock.health import Health as Health
    from penstock.job import AttemptError as AttemptError
    from penstock.job import Job as Job
    from penstock.job import NewJob as NewJob
    from penstock.job import Progress as Progress
    from penstock.job import RawJob as RawJob
    from penstock.job import Ref as Ref
    from penstock.job import State as State
    from penstock.job import Unkept as Unkept
    from penstock.limits import QueueLimits as QueueLimits
    from penstock.limits import Rate as Rate
    from penstock.retry import exponential as exponential
    from penstock.retry import fibonacci as fibonacci
    from penstock.retry import fixed as fixed
    from penstock.retry import linear as linear
    from penstock.retry import polynomial as polynomial
    from penstock.retry import steps as steps
    from penstock.take import Taken as Taken
    from penstock.task import Task as Task
    from penstock.unique import Unique as Unique
    from penstock.worker import Queue as Queue
    from penstock.worker import Worker as Worker

#: Where each name lives; the same as above, for the interpreter.
_HOMES = {
    "penstock.app": "App",
    "penstock.attempt": "Attempt NoCurrentJob current_job",
    "penstock.batch": "Batch",
    "penstock.draft": "Draft",
    "penstock.errors": (
        "ArgumentError AttemptCancelled AttemptLost AttemptTimeout BlockingCallWarning Cancel "
        "ConfigError Discard "
        "DuplicateJob EnqueueError EnqueueManyError EnqueueUnknown Interrupted JobCancelled JobDead "
        "JobExists "
        "JobNotFound MissingExtra NotReplicated OutboxFull PenstockError QueueClosed QueueFull "
        "RateLimited ResultError ResultNotKept ResultTimeout Retry SignatureMismatch Snooze Steering "
        "StoreBusy StoreCorrupt StoreError StoreFull StoreReadOnly StoreTooNew StoreUnavailable Undecodable "
        "UnknownScheme Unsupported"
    ),
    "penstock.events": (
        "Event JobCancelledEvent JobCompleted JobDied JobEnqueued JobFailed JobNotEnqueued JobParked "
        "JobReleased JobSnoozed JobStarted LateResultRefused LoopBlocked RecordSetAside TaskUnknown "
        "WorkerLost WorkerStarted WorkerStopped"
    ),
    "penstock.handle": "Handle",
    "penstock.health": "Health",
    "penstock.job": "AttemptError Job NewJob Progress RawJob Ref State Unkept",
    "penstock.limits": "QueueLimits Rate",
    "penstock.retry": "exponential fibonacci fixed linear polynomial steps",
    "penstock.take": "Taken",
    "penstock.task": "Task",
    "penstock.unique": "Unique",
    "penstock.worker": "Queue Worker",
}

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

#: Whole modules, so that `import penstock` is enough for `penstock.errors.StoreFull`.
_MODULES = ("config", "errors", "events", "retry", "testing")

__all__ = sorted([*_HOME_OF, *_MODULES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("penstock")
    elif name in _HOME_OF:
        value = getattr(_imported(_HOME_OF[name]), name)
    elif name in _MODULES:
        value = _imported(f"penstock.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next one finds it without asking
    return value


def _imported(module: str) -> ModuleType:
    from penstock.forks import importing

    with importing():
        return import_module(module)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
