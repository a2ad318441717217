"""Encodes arguments and results, checked against the task's signature.

A job's arguments are one JSON object, {"user_id": 42, "lang": "de"}: each passed argument under its
parameter's name. docs/payloads.md describes the format for other languages.

The modules, lowest first: `tags` (types that JSON lacks), `collisions` (numbers chosen to be slow), `shape`
(one annotation), `signature` (all annotations of a function), `arguments` and `results`; `schema` describes a
type.
"""

from penstock.codec.arguments import ArgsCodec, ElementCodec, Upgrade, UpgradingCodec, canonical_bytes
from penstock.codec.results import ANY_RESULT, ResultCodec, result_codec_of
from penstock.codec.shape import MAX_BYTES

__all__ = [
    "ANY_RESULT",
    "MAX_BYTES",
    "ArgsCodec",
    "ElementCodec",
    "ResultCodec",
    "Upgrade",
    "UpgradingCodec",
    "canonical_bytes",
    "result_codec_of",
]
