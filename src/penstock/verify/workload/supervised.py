"""Runs `penstock worker`, and records what its supervisor alone knows: syncs, and workers that it kills.

Usage: `python -m penstock.verify.workload.supervised worker …`.
"""

from __future__ import annotations

import os
import runpy

from penstock.verify.ledger import Ledger
from penstock.verify.ledger.rules.faults import SUPERVISOR_KILL
from penstock.verify.run_folder import LEDGER
from penstock.verify.servers import disks
from penstock.worker.supervisor import supervisor
from penstock.worker.supervisor.worker_process import WorkerProcess

_ledger = Ledger(os.environ.get(LEDGER, os.devnull), note="a supervisor")


class RecordedWorkerProcess(WorkerProcess):
    """A worker process whose kill by its supervisor is recorded first, with the reason."""

    def kill(self, cause: str) -> None:
        if self.cause is None:
            _ledger.fault(SUPERVISOR_KILL, self.pid, cause)
        super().kill(cause)


if __name__ == "__main__":
    disks.track_syncs()
    supervisor.process_class = RecordedWorkerProcess
    runpy.run_module("penstock", run_name="__main__", alter_sys=True)
