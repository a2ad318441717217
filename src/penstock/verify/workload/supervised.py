"""Runs `penstock worker` and records the syncs of its supervisor, for power cuts.

Usage: `python -m penstock.verify.workload.supervised worker …`.
"""

from __future__ import annotations

import runpy

from penstock.verify.servers import power

if __name__ == "__main__":
    power.track_syncs()
    runpy.run_module("penstock", run_name="__main__", alter_sys=True)
