"""Headers that jobs inherit from the job that enqueues them, such as a tenant or a trace context."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.client.job_checks import check_headers
from penstock.core.job import NewJob
from penstock.core.running import running_attempt

__all__ = ["with_inherited_headers"]


def with_inherited_headers(new: NewJob) -> NewJob:
    """The job with the headers of the running job added to its own, which win.

    Raises ConfigError if they are too large together.
    """
    attempt = running_attempt.get(None)
    inherited = None if attempt is None else attempt.inherited_headers
    if not inherited or inherited == new.headers:
        return new
    if not new.headers:
        return replace(new, headers=inherited)
    return replace(new, headers=check_headers({**inherited, **new.headers}))
