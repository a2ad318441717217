"""Encodes arguments and results, checked against the task's signature.

A job's arguments are one JSON object, {"user_id": 42, "lang": "de"}: each passed argument under its
parameter's name. docs/payloads.md describes the format for other languages.

The modules, lowest first: `tags` (types that JSON lacks), `alike` (comparison after a round trip), `shape`
(one annotation), `signature` (all annotations of a function), `arguments` (with `upgrading` for old arguments
and `elements` for batches) and `results`.
"""

from penstock.codec.arguments import ArgsCodec
from penstock.codec.elements import ElementCodec
from penstock.codec.results import ANY_RESULT, ResultCodec, result_codec_of
from penstock.codec.shape import MAX_BYTES
from penstock.codec.upgrading import Upgrade, UpgradingCodec

__all__ = [
    "ANY_RESULT",
    "MAX_BYTES",
    "ArgsCodec",
    "ElementCodec",
    "ResultCodec",
    "Upgrade",
    "UpgradingCodec",
    "result_codec_of",
]
