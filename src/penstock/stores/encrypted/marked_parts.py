"""Finds the marked parts of a type, and compiles what an encrypted store does with its values.

`change_of(Fetched, {Job: decrypt_job})` returns a function that decrypts the jobs of a `Fetched` and keeps
the rest of it. A type is read once, and its function is as fast as a loop written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from penstock.core.security import Secret
from penstock.stores.encrypted.field_cipher import FieldCipher

#: Encrypts or decrypts a value.
Change = Callable[[FieldCipher, Any], Any]
#: How values are changed, by their types: those with marked fields, or types around them.
Rules = Mapping[Any, Change]


def change_of(kind: Any, rules: Rules) -> Change | None:
    """The function that changes a value of this type; None: no part of it is marked or has a rule.

    Raises LookupError for a marked field in a type without a rule, so that none stays clear by oversight.
    """
    if isinstance(kind, list):  # the parameters of a callable
        kind = tuple[*kind]
    if (rule := rules.get(kind)) is not None:
        return rule
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _of_struct(kind, rules)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated and any(isinstance(one, Secret) for one in inside):
        raise LookupError(f"a marked value has no rule: {kind}")
    found = [change for one in inside if (change := change_of(one, rules)) is not None]
    if not found:
        return None
    if origin in (Union, UnionType) and NoneType in inside and len(inside) == 2:
        return _of_optional(found[0])
    if origin is tuple and inside[1:] == (...,):
        return _of_items(found[0], tuple)
    if origin in (list, Sequence):
        return _of_items(found[0], list)
    raise LookupError(f"marked values in {kind}: give the type around them a rule")


def _of_struct(kind: type[msgspec.Struct], rules: Rules) -> Change | None:
    hints = get_type_hints(kind, include_extras=True)
    parts = [(name, _of_field(kind, name, hints[name], rules)) for name in kind.__struct_fields__]
    marked = [(name, change) for name, change in parts if change is not None]
    if not marked:
        return None

    def change_fields(cipher: FieldCipher, value: Any) -> Any:
        changes: dict[str, Any] = {}
        for name, change in marked:
            old = getattr(value, name)
            if (new := change(cipher, old)) is not old:
                changes[name] = new
        return replace(value, **changes) if changes else value

    return change_fields


def _of_field(kind: type, name: str, hint: Any, rules: Rules) -> Change | None:
    try:
        return change_of(hint, rules)
    except LookupError as error:
        raise LookupError(f"{kind.__name__}.{name}: {error.args[0]}") from None


def _of_optional(change: Change) -> Change:
    return lambda cipher, value: None if value is None else change(cipher, value)


def _of_items(change: Change, made: type[list[Any] | tuple[Any, ...]]) -> Change:
    def change_items(cipher: FieldCipher, values: Any) -> Any:
        return made([change(cipher, value) for value in values]) if values else values

    return change_items
