"""The clocks of leased jobs, moved by tests at the moments that they mean: no test waits for its luck."""

from __future__ import annotations

import time

import pytest

from penstock.worker.leased_jobs import LeasedJob


class LeaseClock:
    """The store's clock as a worker reckons it from its leases, which a test can move ahead."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._ahead = 0
        reckoned = LeasedJob.store_now
        patch.setattr(LeasedJob, "store_now", lambda leased: reckoned(leased) + self._ahead)

    def pass_deadline(self, leased: LeasedJob) -> None:
        """Move past the deadline of this job. If its function runs, its time is over now."""
        deadline = leased.job.spec.deadline
        assert deadline is not None
        self._ahead += max(0, deadline + 1 - leased.store_now())
        if leased.started:
            leased.ends = leased.times_out_at()


def time_out(leased: LeasedJob) -> None:
    """The timeout of this job, whose function runs, is over now."""
    leased.ends = time.monotonic()
