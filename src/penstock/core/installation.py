"""The installed Penstock: its version, and whether the packages of an extra, as `penstock[web]`, are there.

`pyproject.toml` reads the version from here, and workers announce it. Reading it from the installed metadata
instead imports `email` and `csv`: 2 MB.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.errors import MissingExtra

__version__ = "0.1.0"

#: Packages of the extra `web` for the dashboard in another web app, the dashboard on its own, and the server.
DASHBOARD = ("starlette", "jinja2", "markupsafe")
DASHBOARD_SERVER = ("httptools", *DASHBOARD, "uvicorn")
HTTP_SERVER = ("httptools",)


def require_extra(extra: str, packages: Sequence[str], who: str) -> None:
    """Raise MissingExtra if one of these packages is missing; `who` needs them."""
    for name in packages:
        if not is_installed(name):
            raise MissingExtra(
                f"{who} needs the package {name!r}, which is not installed: pip install 'penstock[{extra}]'"
            )


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    from importlib.util import find_spec  # a worker without extras does not need it

    return find_spec(package) is not None
