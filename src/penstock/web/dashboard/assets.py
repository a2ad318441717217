"""Scripts and style sheets, under a path with their version. An older version has the current ones."""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from penstock.core.version import __version__

__all__ = ["Assets"]

_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"


class Assets:
    """The files of `assets/`, in memory, also compressed."""

    def __init__(self) -> None:
        found = (one for one in files("penstock.web.dashboard").joinpath("assets").iterdir() if one.is_file())
        bodies = {one.name: one.read_bytes() for one in found if _kind(one.name)}
        self._plain = bodies
        self._small = {name: gzip.compress(body, 9, mtime=0) for name, body in bodies.items()}
        digest = hashlib.sha256(b"".join(bodies[name] for name in sorted(bodies))).hexdigest()
        #: The version in the path: of the package, and of the files themselves.
        self.version = f"{__version__}-{digest[:8]}"

    def size(self, ending: str) -> int:
        """The compressed size of all files with this ending (bytes)."""
        return sum(len(body) for name, body in self._small.items() if name.endswith(ending))

    async def answer(self, request: Request) -> Response:
        """The file that a path names."""
        name = request.path_params["name"]
        if name not in self._plain:
            return PlainTextResponse("there is no such file\n", 404)
        current = request.path_params["version"] == self.version
        headers = {
            "Cache-Control": _FOR_EVER if current else "no-cache",
            "Content-Type": _kind(name),
            "Vary": "Accept-Encoding",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._small[name], headers={**headers, "Content-Encoding": "gzip"})
        return Response(self._plain[name], headers=headers)


def _kind(name: str) -> str:
    return next((kind for ending, kind in _KINDS.items() if name.endswith(ending)), "")
