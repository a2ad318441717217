"""Documents and forms that are nested deeply, or whose text would be far larger than they are."""

from __future__ import annotations

import pytest

from penstock.core.job import NewJob
from penstock.web.dashboard.json_tree import Redaction, json_text
from tests.web.dashboard.conftest import Site

_DEEP = "[" * 5_000 + "]" * 5_000


def test_the_text_of_a_document_is_not_larger_for_being_nested_deeply() -> None:
    text = json_text(b"[" * 900 + b"1," * 10_000 + b"1" + b"]" * 900, Redaction(()))
    assert len(text) < 600_000
    assert text.count("1") == 10_001


@pytest.mark.parametrize("deep", [_DEEP, _DEEP[:5_000]], ids=["whole", "half"])
def test_json_that_is_nested_too_deeply_is_refused_at_its_field(deep: str, site: Site) -> None:
    answer = site.post(site.client, "/enqueue", task=next(iter(site.app.tasks)), **{"a.options": deep})
    assert answer.status_code == 200
    assert "This JSON is nested too deeply." in answer.text
    site.app.store.sync.enqueue([NewJob("j", "unknown", b"{}", "mail")])
    answer = site.post(site.client, "/jobs/mail/j/edit", arguments=deep, then="save")
    assert "the arguments are nested too deeply" in answer.text
