"""An app whose start-up hook fails."""

from penstock import App

app = App("memory://")


@app.on_startup
def fail() -> None:
    raise RuntimeError("out of order")
