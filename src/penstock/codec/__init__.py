"""Arguments to bytes and back, checked against the signature; results likewise.

A job's arguments are one JSON object, {"user_id": 42, "lang": "de"}: every parameter under its own
name, those that were not passed left out. docs/payloads.md is the format for other languages.

From the ground up: `tags` (what JSON lacks), `alike` (did it come back?), `shape` (one annotation),
`signature` (all of a function's), `arguments` (and `upgrading` of old ones, `elements` of batches) and
`results`.
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
