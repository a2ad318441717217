"""Test support: run jobs now, control the clock, assert what was enqueued.

    from penstock.testing import inline

    def test_a_new_user_is_welcomed():
        with inline(app) as box:
            sign_up("ada@example.com")
            box.assert_enqueued(send_welcome, "ada@example.com", delay="5m")
            box.advance("5m")
            assert outbox == ["Welcome, Ada"]

`penstock.testing.ledger` records what happens outside the store, for tests that kill workers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # lazy: pytest loads this package in every run of every project
    from penstock.testing.assertions import EnqueuedJob as EnqueuedJob
    from penstock.testing.assertions import assert_enqueued as assert_enqueued
    from penstock.testing.assertions import assert_not_enqueued as assert_not_enqueued
    from penstock.testing.assertions import enqueued as enqueued
    from penstock.testing.faults import FaultyStore as FaultyStore
    from penstock.testing.inline_app import AttemptFailed as AttemptFailed
    from penstock.testing.inline_app import Inline as Inline
    from penstock.testing.inline_app import Ran as Ran
    from penstock.testing.inline_app import StillRunning as StillRunning
    from penstock.testing.inline_app import arun_all as arun_all
    from penstock.testing.inline_app import inline as inline
    from penstock.testing.inline_app import run_all as run_all
    from penstock.testing.recorder import NothingRuns as NothingRuns
    from penstock.verify.crash_points import CrashPoints as CrashPoints
    from penstock.verify.crash_points import Point as Point

#: The module of each public name; the same list as above, for the interpreter.
_HOMES = {
    "penstock.testing.assertions": "EnqueuedJob assert_enqueued assert_not_enqueued enqueued",
    "penstock.verify.crash_points": "CrashPoints Point",
    "penstock.testing.faults": "FaultyStore",
    "penstock.testing.recorder": "NothingRuns",
    "penstock.testing.inline_app": "AttemptFailed Inline Ran StillRunning arun_all inline run_all",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
