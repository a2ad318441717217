"""Penstock: background jobs for Python that do not get lost.

The public names. Each is imported when it is first used, so that `import penstock` costs almost nothing.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import config as config
    from penstock import errors as errors
    from penstock import events as events
    from penstock import logs as logs
    from penstock import retry as retry
    from penstock import testing as testing
    from penstock.app.app import App as App
    from penstock.app.attempt import Attempt as Attempt
    from penstock.app.attempt import NoCurrentJob as NoCurrentJob
    from penstock.app.attempt import current_job as current_job
    from penstock.app.queue import QueueDefaults as QueueDefaults
    from penstock.app.taken import Taken as Taken
    from penstock.app.task import Task as Task
    from penstock.client.handle import Handle as Handle
    from penstock.client.job_call import JobCall as JobCall
    from penstock.core.errors import ArgumentError as ArgumentError
    from penstock.core.errors import AttemptCancelled as AttemptCancelled
    from penstock.core.errors import AttemptLost as AttemptLost
    from penstock.core.errors import AttemptTimeout as AttemptTimeout
    from penstock.core.errors import BlockingCallWarning as BlockingCallWarning
    from penstock.core.errors import Cancel as Cancel
    from penstock.core.errors import ConfigError as ConfigError
    from penstock.core.errors import Discard as Discard
    from penstock.core.errors import DuplicateJob as DuplicateJob
    from penstock.core.errors import EnqueueError as EnqueueError
    from penstock.core.errors import EnqueueManyError as EnqueueManyError
    from penstock.core.errors import EnqueueUnknown as EnqueueUnknown
    from penstock.core.errors import FlowError as FlowError
    from penstock.core.errors import FlowMismatch as FlowMismatch
    from penstock.core.errors import FlowSuspended as FlowSuspended
    from penstock.core.errors import FlowVersionMismatch as FlowVersionMismatch
    from penstock.core.errors import Interrupted as Interrupted
    from penstock.core.errors import JobDead as JobDead
    from penstock.core.errors import JobExists as JobExists
    from penstock.core.errors import JobNotFound as JobNotFound
    from penstock.core.errors import MemberFailed as MemberFailed
    from penstock.core.errors import MissingExtra as MissingExtra
    from penstock.core.errors import NotReplicated as NotReplicated
    from penstock.core.errors import OutboxFull as OutboxFull
    from penstock.core.errors import PenstockError as PenstockError
    from penstock.core.errors import QueueClosed as QueueClosed
    from penstock.core.errors import QueueFull as QueueFull
    from penstock.core.errors import RateLimited as RateLimited
    from penstock.core.errors import ResultCancelled as ResultCancelled
    from penstock.core.errors import ResultError as ResultError
    from penstock.core.errors import ResultNotKept as ResultNotKept
    from penstock.core.errors import ResultTimeout as ResultTimeout
    from penstock.core.errors import Retry as Retry
    from penstock.core.errors import SignatureMismatch as SignatureMismatch
    from penstock.core.errors import Snooze as Snooze
    from penstock.core.errors import Steering as Steering
    from penstock.core.errors import StepFailed as StepFailed
    from penstock.core.errors import StoreBusy as StoreBusy
    from penstock.core.errors import StoreCorrupt as StoreCorrupt
    from penstock.core.errors import StoreError as StoreError
    from penstock.core.errors import StoreFull as StoreFull
    from penstock.core.errors import StoreReadOnly as StoreReadOnly
    from penstock.core.errors import StoreReentered as StoreReentered
    from penstock.core.errors import StoreTooNew as StoreTooNew
    from penstock.core.errors import StoreTooOld as StoreTooOld
    from penstock.core.errors import StoreUnavailable as StoreUnavailable
    from penstock.core.errors import TooManySignals as TooManySignals
    from penstock.core.errors import Undecodable as Undecodable
    from penstock.core.errors import UnknownScheme as UnknownScheme
    from penstock.core.errors import Unsupported as Unsupported
    from penstock.core.events import Event as Event
    from penstock.core.events import Health as Health
    from penstock.core.events import JobCancelled as JobCancelled
    from penstock.core.events import JobCompleted as JobCompleted
    from penstock.core.events import JobDied as JobDied
    from penstock.core.events import JobEnqueued as JobEnqueued
    from penstock.core.events import JobFailed as JobFailed
    from penstock.core.events import JobNotEnqueued as JobNotEnqueued
    from penstock.core.events import JobParked as JobParked
    from penstock.core.events import JobReleased as JobReleased
    from penstock.core.events import JobSnoozed as JobSnoozed
    from penstock.core.events import JobStarted as JobStarted
    from penstock.core.events import LateResultRefused as LateResultRefused
    from penstock.core.events import LoopBlocked as LoopBlocked
    from penstock.core.events import RecordSetAside as RecordSetAside
    from penstock.core.events import TaskUnknown as TaskUnknown
    from penstock.core.events import WorkerLost as WorkerLost
    from penstock.core.events import WorkerStarted as WorkerStarted
    from penstock.core.events import WorkerStopped as WorkerStopped
    from penstock.core.job import AttemptError as AttemptError
    from penstock.core.job import Job as Job
    from penstock.core.job import NewJob as NewJob
    from penstock.core.job import Progress as Progress
    from penstock.core.job import RawJob as RawJob
    from penstock.core.job import Ref as Ref
    from penstock.core.job import State as State
    from penstock.core.job import Unkept as Unkept
    from penstock.core.limits import QueueLimits as QueueLimits
    from penstock.core.limits import Rate as Rate
    from penstock.core.relations import Batch as Batch
    from penstock.core.retry import exponential as exponential
    from penstock.core.retry import fibonacci as fibonacci
    from penstock.core.retry import fixed as fixed
    from penstock.core.retry import linear as linear
    from penstock.core.retry import polynomial as polynomial
    from penstock.core.retry import steps as steps
    from penstock.core.unique import Unique as Unique
    from penstock.worker.queues import Queue as Queue
    from penstock.worker.worker import Worker as Worker

#: The module of each public name; the same list as above, at run time.
_HOMES = {
    "penstock.app.app": "App",
    "penstock.app.attempt": "Attempt NoCurrentJob current_job",
    "penstock.app.queue": "QueueDefaults",
    "penstock.core.relations": "Batch",
    "penstock.client.job_call": "JobCall",
    "penstock.core.errors": (
        "ArgumentError AttemptCancelled AttemptLost AttemptTimeout BlockingCallWarning Cancel "
        "ConfigError Discard DuplicateJob EnqueueError EnqueueManyError EnqueueUnknown FlowError "
        "FlowMismatch FlowSuspended FlowVersionMismatch MemberFailed StepFailed TooManySignals "
        "Interrupted JobDead JobExists JobNotFound MissingExtra NotReplicated OutboxFull "
        "PenstockError QueueClosed QueueFull RateLimited ResultCancelled ResultError "
        "ResultNotKept ResultTimeout Retry SignatureMismatch Snooze Steering StoreBusy "
        "StoreCorrupt StoreError StoreFull StoreReadOnly StoreReentered StoreTooNew StoreTooOld "
        "StoreUnavailable Undecodable UnknownScheme Unsupported"
    ),
    "penstock.core.events": (
        "Event Health JobCancelled JobCompleted JobDied JobEnqueued JobFailed JobNotEnqueued JobParked "
        "JobReleased JobSnoozed JobStarted LateResultRefused LoopBlocked RecordSetAside TaskUnknown "
        "WorkerLost WorkerStarted WorkerStopped"
    ),
    "penstock.client.handle": "Handle",
    "penstock.core.job": "AttemptError Job NewJob Progress RawJob Ref State Unkept",
    "penstock.core.limits": "QueueLimits Rate",
    "penstock.core.retry": "exponential fibonacci fixed linear polynomial steps",
    "penstock.app.taken": "Taken",
    "penstock.app.task": "Task",
    "penstock.core.unique": "Unique",
    "penstock.worker.queues": "Queue",
    "penstock.worker.worker": "Worker",
}

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

#: Public modules, so that `import penstock` is enough for `penstock.errors.StoreFull`.
_MODULES = ("config", "errors", "events", "logs", "retry", "testing")

__all__ = sorted([*_HOME_OF, *_MODULES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _imported("penstock.core.installation").__version__
    elif name in _HOME_OF:
        value = getattr(_imported(_HOME_OF[name]), name)
    elif name in _MODULES:
        value = _imported(f"penstock.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next access finds it directly
    return value


def _imported(module: str) -> ModuleType:
    from penstock.core.forks import importing

    with importing():
        return import_module(module)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
