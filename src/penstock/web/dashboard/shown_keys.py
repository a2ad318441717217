"""The keys of a job, and why it waits, without what they would tell of hidden arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from penstock.inspector import JobView, WhyView
from penstock.web.dashboard.json_tree import HIDDEN, Redaction, hidden_texts, stored_bytes

__all__ = ["reasons_without", "shown_keys"]

#: A hidden value of this many characters is found also in a part of a key.
_LONG = 4


def shown_keys(job: JobView, redaction: Redaction) -> dict[str, str]:
    """The keys of a job by name. A key with a hidden argument is hidden."""
    known = {
        "Unique key": job.unique and job.unique.key,
        "Tenant": job.tenant,
        "Partition": job.partition and job.partition.key,
        "Batch key": job.batch_key,
    }
    keys = {name: key for name, key in known.items() if key}
    if not keys:
        return {}
    hidden = hidden_texts(stored_bytes(job.payload, job.payload_base64) or b"", redaction)
    return {name: HIDDEN if _tells(name, key, hidden) else key for name, key in keys.items()}


def _tells(name: str, key: str, hidden: Sequence[str] | None) -> bool:
    """Whether somebody who sees this key may find one of these values. None: they are unknown."""
    if hidden is None or not hidden:
        return hidden is None
    if name == "Unique key" or key.startswith("#"):  # a hash: somebody would try all values
        return True
    return any(one == key or (len(one) >= _LONG and one in key) for one in hidden)


def reasons_without(found: Sequence[WhyView], job: JobView, shown: Mapping[str, str]) -> list[WhyView]:
    """Why a job waits, without the key of its partition if that is hidden."""
    if job.partition is None or shown.get("Partition") == job.partition.key:
        return list(found)
    key = repr(job.partition.key)
    return [
        replace(one, reasons=[replace(it, says=it.says.replace(key, HIDDEN)) for it in one.reasons])
        for one in found
    ]
