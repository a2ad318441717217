"""A small disk that can be filled, for a SQLite file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from io import FileIO
from pathlib import Path
from typing import Self

from penstock.core.errors import ConfigError

__all__ = ["SmallDisk"]

# Unmounts when its input ends: when this process closes the pipe, or ends for any reason.
_KEEPER = 'cat >/dev/null; exec umount -l "$1"'


class SmallDisk:
    """A small file system in this folder: a tmpfs, which only root on Linux can mount.

    Raises ConfigError if it cannot be mounted. It is removed with its contents when it is closed or when this
    process ends.
    """

    def __init__(self, folder: Path, megabytes: int = 64) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"
        if sys.platform != "linux" or os.geteuid() != 0:
            raise ConfigError(
                "a disk that can be filled has to be mounted, and only root on Linux can do that"
            )
        folder.mkdir(parents=True, exist_ok=True)
        options = f"size={megabytes}m,mode=700"
        mount = ["mount", "-t", "tmpfs", "-o", options, "penstock-verify", str(folder)]
        try:
            done = subprocess.run(mount, capture_output=True, text=True, check=False)  # noqa: S603 (a program of ours, in words of ours)
        except OSError as error:  # a small container may have no `mount` program
            raise ConfigError(f"a disk that can be filled cannot be mounted here: {error}") from None
        if done.returncode:
            raise ConfigError(f"a disk that can be filled cannot be mounted here: {done.stderr.strip()}")
        self._keeper = subprocess.Popen(  # noqa: S603 (a program of ours, in words of ours)
            ["sh", "-c", _KEEPER, "sh", str(folder)],  # noqa: S607 (found on the path, as a shell would)
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def fill_disk(self, seconds: float) -> str:
        """Fill the disk for this many seconds. Returns a description."""
        ends = time.monotonic() + seconds
        try:
            with FileIO(self._ballast, "wb") as ballast:
                while time.monotonic() < ends:
                    _take_all_room(ballast)  # again: a checkpoint frees space
                    time.sleep(0.02)
                size = ballast.tell()
        finally:
            self._ballast.unlink(missing_ok=True)
        return f"the last {size / 2**20:.1f} MB of its disk were taken"

    def close(self) -> None:
        """Unmount the disk; a second call does nothing."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _take_all_room(ballast: FileIO) -> None:
    for size in (1 << 20, 4_096, 1):
        try:
            while True:
                ballast.write(bytes(size))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
