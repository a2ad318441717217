"""The app as worker processes import it: `penstock worker benchmarks.served:app`, on BENCH_URL."""

import os

from benchmarks.tasks import Tasks

app = Tasks(os.environ["BENCH_URL"]).app
