"""search_jobs of an encrypted store: a text is compared with what the jobs say once they are decrypted."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.stores.contract import MOST_FOUND, JobFilter, JobOrder, SearchHit, SearchPage
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.facade import AsyncOperation
from penstock.stores.job_matcher import JobMatcher

__all__ = ["SearchJobs"]


class SearchJobs:
    """The store inside finds what matches all but the text; the text is then looked for in the clear jobs."""

    def __init__(
        self,
        inner: AsyncOperation[[JobFilter, JobOrder, bool, str | None, int], SearchPage],
        cipher: FieldCipher,
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(
        self, filter: JobFilter, order: JobOrder, descending: bool, after: str | None, limit: int, /
    ) -> SearchPage:
        asked = MOST_FOUND if filter.text else limit
        page = await self._inner.run(replace(filter, text=""), order, descending, after, asked)
        jobs = self._cipher.decrypt_jobs(page.jobs)
        hits = [SearchHit(job, hit.after) for job, hit in zip(jobs, page.hits, strict=True)]
        if not filter.text:
            return replace(page, hits=hits)
        matcher = JobMatcher(filter)
        hits = [hit for hit in hits if matcher.matches(hit.job)]
        if len(hits) <= (limit := max(1, limit)):
            return replace(page, hits=hits)
        return replace(page, hits=hits[:limit], next=hits[limit - 1].after)
