"""Whether the result of a node fits the parameter that it is passed to, as far as annotations tell."""

from __future__ import annotations

import types
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

__all__ = ["ListOf", "fits"]

_LISTS = (list, tuple, set, frozenset)
_NUMBERS = {bool: (int, float, complex), int: (float, complex), float: (complex,)}


class ListOf:
    """The type of a join: the list of the values of its inputs."""

    def __init__(self, elements: tuple[Any, ...]) -> None:
        self.elements = elements


def fits(result: Any, parameter: Any) -> bool:
    """False if no value of the type `result` fits the type `parameter`; True if some do, or if unknown."""
    parameter = _bare(parameter)
    if parameter is Any or parameter is object or isinstance(parameter, TypeVar):
        return True
    if _is_union(parameter):
        return any(fits(result, one) for one in get_args(parameter))
    if isinstance(result, ListOf):
        return _list_fits(result, parameter)
    result = _bare(result)
    if result is Any or result is object or isinstance(result, TypeVar):
        return True
    if _is_union(result):
        return any(fits(one, parameter) for one in get_args(result))
    return _classes_fit(result, parameter)


def _classes_fit(result: Any, parameter: Any) -> bool:
    of, into = get_origin(result) or result, get_origin(parameter) or parameter
    if result is None or parameter is None or of is type(None) or into is type(None):
        return (result is None or of is type(None)) and (parameter is None or into is type(None))
    if not isinstance(of, type) or not isinstance(into, type):
        return True  # a Literal, say: the worker will check the value
    if of in _LISTS and into in _LISTS:
        mine, wanted = get_args(result), get_args(parameter)
        return not mine or not wanted or fits(mine[0], wanted[0])
    if into in _NUMBERS.get(of, ()):
        return True
    return _may_be(of, into)


def _may_be(of: type, into: type) -> bool:
    if issubclass(of, into) or issubclass(into, of):
        return True
    plain = (bool, int, float, str, bytes, list, tuple, set, frozenset, dict)
    return of not in plain or into not in plain  # structs and dicts, enums and texts look alike when stored


def _list_fits(result: ListOf, parameter: Any) -> bool:
    into = get_origin(parameter) or parameter
    if not isinstance(into, type):
        return True
    if into in (bool, int, float, str, bytes, dict, type(None)):
        return False
    wanted = get_args(parameter)
    if into in _LISTS and wanted and not (into is tuple and len(wanted) != 2):
        return all(fits(one, wanted[0]) for one in result.elements)
    return True


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)
