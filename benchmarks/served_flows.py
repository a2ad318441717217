"""The app of the measurement of flows, as worker processes import it."""

import os

from benchmarks.flow_tasks import FlowTasks

app = FlowTasks(os.environ["BENCH_URL"]).app
