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

from penstock.testing.enqueued import (
    EnqueuedJob,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
)
from penstock.testing.inline import AttemptFailed, Inline, Ran, StillRunning, arun_all, inline, run_all

__all__ = [
    "AttemptFailed",
    "EnqueuedJob",
    "Inline",
    "Ran",
    "StillRunning",
    "arun_all",
    "assert_enqueued",
    "assert_not_enqueued",
    "enqueued",
    "inline",
    "run_all",
]
