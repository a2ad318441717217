"""Thumbnails of a folder of pictures: a group of jobs, and a body that makes an index page of their results.

    python examples/thumbnails.py [FOLDER]

Pictures are binary PPM files, so that the example needs no library; without FOLDER it makes some.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from penstock import App, Worker
from penstock.workflows import chord

logging.getLogger("penstock").setLevel(logging.CRITICAL)  # the broken picture is no surprise
app = App("memory://thumbnails")
_SIZE = 16


@app.task(max_attempts=3)
def shrink(path: str) -> str:
    """Make a thumbnail of at most 16 x 16 pixels beside the picture."""
    source = Path(path)
    width, height, pixels = read_ppm(source.read_bytes())
    step = max(1, width // _SIZE, height // _SIZE)
    rows = [
        b"".join(pixels[3 * (y * width + x) :][:3] for x in range(0, width, step))
        for y in range(0, height, step)
    ]
    thumbnail = source.with_name(f"{source.stem}.small.ppm")
    thumbnail.write_bytes(b"P6 %d %d 255\n" % (len(rows[0]) // 3, len(rows)) + b"".join(rows))
    return thumbnail.name


@app.task
def index(names: list[str | None], folder: str) -> str:
    """Write a page that lists the thumbnails; None stands for a picture that could not be read."""
    made = [name for name in names if name is not None]
    page = Path(folder) / "index.html"
    page.write_text("\n".join(f"<img src={name!r}>" for name in made))
    return f"{len(made)} thumbnails, {len(names) - len(made)} broken pictures"


def read_ppm(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and pixels of a binary PPM file. Raises ValueError for anything else."""
    head, _, pixels = data.partition(b"\n")
    kind, width, height, _ = head.split()
    if kind != b"P6" or len(pixels) != 3 * int(width) * int(height):
        raise ValueError("this is not a binary PPM picture")
    return int(width), int(height), pixels


def make_pictures(folder: Path) -> None:
    """Make 20 pictures, one of which is broken."""
    for n in range(20):
        size = 32 + 4 * n
        (folder / f"picture-{n:02}.ppm").write_bytes(
            b"P6 %d %d 255\n" % (size, size) + bytes(3 * size * size)
        )
    (folder / "picture-07.ppm").write_bytes(b"broken")


def pictures_of(folder: Path, pattern: str) -> list[Path]:
    """The pictures of a folder, in order."""
    return sorted(folder.glob(pattern))


async def main(folder: Path) -> None:
    """Enqueue one flow for the folder, run it, and print its result."""
    pictures = pictures_of(folder, "picture-??.ppm")
    shrinking = [shrink.using(max_attempts=1).job(str(path)) for path in pictures]
    flow = chord(shrinking, then=index.partial(folder=str(folder)))
    handle = await flow.aenqueue(name="thumbnails", policy="ignore")
    print(f"{len(pictures)} pictures, one flow of {(await handle.ainfo()).total} nodes")
    await Worker(app, burst=True).run()
    print(await handle.aresult(60))
    made = len(pictures_of(folder, "*.small.ppm"))
    print(f"the flow is {await handle.astatus()}; the page has {made} files to show")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as made:
            make_pictures(Path(made))
            asyncio.run(main(Path(made)))
