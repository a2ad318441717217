"""The app of the measurement of features, as worker processes import it."""

import os

from benchmarks.feature_tasks import FeatureTasks

app = FeatureTasks(os.environ["BENCH_URL"], periodic=int(os.environ.get("BENCH_PERIODIC", "0"))).app
