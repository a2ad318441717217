"""An app whose start-up hook fails, or never ends."""

import os
import time

from penstock import App

app = App("memory://")


@app.on_startup
def fail() -> None:
    if os.environ.get("TEST_SLOW_START"):
        time.sleep(60)
    raise RuntimeError("out of order")
