"""Database connections of tasks."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from django.db import close_old_connections

P = ParamSpec("P")
R = TypeVar("R")


def with_database(function: Callable[P, R]) -> Callable[P, R]:
    """Close connections that are broken or older than CONN_MAX_AGE, before and after the function.

    Django does this around each request. A task that uses the ORM needs it too: Django has one connection per
    thread, and the threads of a worker stay.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return run
