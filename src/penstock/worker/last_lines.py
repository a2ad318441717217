"""Stores the lines that attempts have logged: neither a heartbeat nor the settler waits for them for long.

Lines are best effort: an error is logged, and affects no lease and no outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from penstock.core.errors import StoreError
from penstock.core.job import Lease
from penstock.maintenance.service import ProblemLog
from penstock.stores.contract import Store
from penstock.stores.job_log import JobLog, store_logs

__all__ = ["store_lines"]

_log = logging.getLogger("penstock.worker")


async def store_lines(
    store: Store, logs: Sequence[tuple[Lease, JobLog]], by: int, *, within: float, problem_log: ProblemLog
) -> None:
    """Try once to store the lines that wait, for `within` seconds; `by` extends the leases.

    Lines that could not be stored still wait. Raises nothing.
    """
    if not logs:
        return
    what = f"log lines of {len(logs)} job(s) could not be stored"
    try:
        async with asyncio.timeout(within):
            await store_logs(store, logs, by)
    except TimeoutError:
        problem_log.report(what, TimeoutError(f"no answer within {within:g} s"))
    except StoreError as error:
        problem_log.report(what, error)
    except Exception:  # noqa: BLE001  # boundary: lines that cannot be stored must not cost a lease or an outcome
        _log.exception("%s", what)
