"""Many cases of one property in one test, which is cheaper than a test for each: a failure names its case."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["case", "each"]

_numbers = itertools.count(1)


@contextlib.contextmanager
def case(*facts: object) -> Iterator[None]:
    """What fails in this block is said to have failed in the case with these facts."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case: {', '.join(map(str, facts))}")
        raise


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call this test with each value, in one test; `names` and `values` are those of a parametrization.

    A test that takes a `store` has it in a namespace of its own for each value.
    """
    table, wanted = list(values), [name.strip() for name in names.split(",")]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def calls(given: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
            for value in table:
                row = (value,) if len(wanted) == 1 else tuple(value)
                alone = (
                    {"store": given["store"].in_namespace(f"case-{next(_numbers)}")}
                    if "store" in given
                    else {}
                )
                yield row, {**given, **alone, **dict(zip(wanted, row, strict=True))}

        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def call_each(**given: Any) -> None:
                for row, facts in calls(given):
                    with case(*row):
                        await test(**facts)

        else:

            @functools.wraps(test)
            def call_each(**given: Any) -> None:
                for row, facts in calls(given):
                    with case(*row):
                        test(**facts)

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in wanted]
        call_each.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return call_each

    return decorate
