"""What goes to other processes: errors as they are, tasks by name; live objects refuse.

`multiprocessing` and `concurrent.futures` pickle what they send, and hang or break on an object that
cannot be made again there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


class PortableError(BaseException):
    """An error that pickles and copies with its text and its attributes, whatever its `__init__` takes."""

    def __reduce__(self) -> Any:
        return made_again, (type(self), self.args, self.__dict__.copy())


def made_again(kind: type[BaseException], args: tuple[Any, ...], facts: dict[str, Any]) -> BaseException:
    """Return an error of this class without calling its `__init__`, which takes other arguments."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


def in_process(instead: str) -> Callable[[T], T]:
    """Decorate a class whose objects belong to their process: a copy is the object, and pickle refuses.

    `instead`: what to send to another process. An object that is a name of its module is pickled by it.
    """

    def reduce(self: Any) -> str:
        module, name = getattr(self, "__module__", ""), getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(module)
        for part in name.split(".") if name else ():
            found = getattr(found, part, None)
        if name and found is self:
            return str(name)
        raise TypeError(f"{_said(self)} belongs to its process and cannot be pickled: {instead}")

    def decorate(cls: T) -> T:
        for name, method in {
            "__reduce__": reduce,
            "__copy__": lambda self: self,
            "__deepcopy__": lambda self, memo: self,
        }.items():
            setattr(cls, name, method)
        return cls

    return decorate


def _said(one: Any) -> str:
    text = repr(one)
    return text if len(text) <= 100 else f"a {type(one).__name__}"
