"""Help for tests: run everything now, steer the clock, ask what was enqueued.

    from penstock.testing import inline

    def test_a_new_user_is_welcomed():
        with inline(app) as box:
            sign_up("ada@example.com")
            box.assert_enqueued(send_welcome, "ada@example.com", delay="5m")
            box.advance("5m")
            assert outbox == ["Welcome, Ada"]

`penstock.testing.ledger` keeps an account outside of the store, for tests that kill workers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pytest loads the plugin beside this in every run of every project
    from penstock.testing.asking import EnqueuedJob as EnqueuedJob
    from penstock.testing.asking import assert_enqueued as assert_enqueued
    from penstock.testing.asking import assert_not_enqueued as assert_not_enqueued
    from penstock.testing.asking import enqueued as enqueued
    from penstock.testing.box import AttemptFailed as AttemptFailed
    from penstock.testing.box import Inline as Inline
    from penstock.testing.box import Ran as Ran
    from penstock.testing.box import StillRunning as StillRunning
    from penstock.testing.box import arun_all as arun_all
    from penstock.testing.box import inline as inline
    from penstock.testing.box import run_all as run_all
    from penstock.testing.faults import FaultyStore as FaultyStore
    from penstock.testing.recorder import NothingRuns as NothingRuns
    from penstock.verify.crash_points import CrashPoints as CrashPoints
    from penstock.verify.crash_points import Point as Point

#: Where each name lives; the same as above, for the interpreter.
_HOMES = {
    "penstock.testing.asking": "EnqueuedJob assert_enqueued assert_not_enqueued enqueued",
    "penstock.verify.crash_points": "CrashPoints Point",
    "penstock.testing.faults": "FaultyStore",
    "penstock.testing.recorder": "NothingRuns",
    "penstock.testing.box": "AttemptFailed Inline Ran StillRunning arun_all inline run_all",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
