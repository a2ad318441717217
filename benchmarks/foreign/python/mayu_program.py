"""No-ops with mayu: `python -m mayu worker mayu_program:app`, and `python mayu_program.py COMMAND`."""

import counts
from mayu import App

app = App(counts.URL)


@app.task(name="noop")
def noop() -> None:
    counts.count()


@app.task(name="stamp")
def stamp(sent: int) -> None:
    counts.instant(sent)


if __name__ == "__main__":
    counts.produce("mayu", noop.send, stamp.send)
