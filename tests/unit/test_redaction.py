"""What of a document a search may look at, if some of its values are hidden."""

from __future__ import annotations

import pytest

from penstock.core.security import Redaction


@pytest.mark.parametrize(
    ("raw", "visible"),
    [
        (b'{"a":1}', [b'{"a":1}']),
        (b'{"pin":1}', [b'{"pin":', b"}"]),
        (b'{ "PIN" : [1, {"b": "}"}] , "c":2}', [b'{ "PIN" :', b' , "c":2}']),
        (b'{"p\\u0069n":"x\\"y","pin":-1e5,"pin":{}}', [b'{"p\\u0069n":', b',"pin":', b',"pin":', b"}"]),
        (b'["pin",":","pin:1"]', [b'["pin",":","pin:1"]']),
        (b'{"a\\\\":"pin","\\"pin":":"}', [b'{"a\\\\":"pin","\\"pin":":"}']),
        (b'{"pin":"\xc3\xa9"}', [b'{"pin":', b"}"]),
        (b'"pin"', [b'"pin"']),
        (b"", []),
        (b'{"pin":1', []),
        ('{"pin":1}'.encode("utf-16"), []),
        (b"[" * 100_000, []),
        (b'{"pin":NaN}', []),
    ],
)
def test_hidden_values_are_cut_out_byte_by_byte(raw: bytes, visible: list[bytes]) -> None:
    assert Redaction(["PIN"]).visible_parts(raw) == visible
