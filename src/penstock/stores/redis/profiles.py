"""Profiles: the fields that all jobs of one task share, stored once per queue under a digest."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.core.job import NewJob, State
from penstock.core.lifecycle import kept
from penstock.core.relations import FlowMember, Partition, Tenant
from penstock.core.retry import RetryPolicy
from penstock.core.unique import UniqueKey


class Profile(msgspec.Struct, frozen=True, array_like=True):
    """The fields that the jobs of one task share."""

    task: str
    timeout: int | None
    max_attempts: int
    retry: RetryPolicy | None
    retention: int
    at_most_once: bool
    keep_dead: int | None = None
    fetch_starts: bool = False


class Extra(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Fields that only some jobs have."""

    delay: int = 0
    run_at: int | None = None
    expires_in: int | None = None
    expires_at: int | None = None
    deadline: int | None = None
    unique: UniqueKey | None = None
    headers: dict[str, str] | None = None
    partition: Partition | None = None
    tenant: Tenant | None = None
    flow: FlowMember | None = None


NO_EXTRA = Extra()


def extra_of(job: NewJob) -> Extra | None:
    """Return the fields that this job has besides those of its profile; None for a plain job."""
    if (
        job.delay == 0
        and job.run_at is None
        and job.expires_in is None
        and job.expires_at is None
        and job.deadline is None
        and job.unique is None
        and job.headers is None
        and job.partition is None
        and job.tenant is None
        and job.flow is None
    ):
        return None
    return Extra(
        job.delay,
        job.run_at,
        job.expires_in,
        job.expires_at,
        job.deadline,
        job.unique,
        job.headers,
        job.partition,
        job.tenant,
        job.flow,
    )


_encode = msgspec.msgpack.Encoder().encode
_decode_profile = msgspec.msgpack.Decoder(Profile).decode


class UnknownProfile(Exception):
    """A record names a profile that this process has not read yet."""

    def __init__(self, queue: str, digest: bytes) -> None:
        super().__init__(f"queue {queue!r} has a profile {digest.hex()} that was not read yet")
        self.queue = queue
        self.digest = digest


class Profiles:
    """A cache of profiles, for writing and reading jobs."""

    _MOST = 4_096  # a full cache is cleared, and profiles are read again

    def __init__(self) -> None:
        self._written: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
        self._read: dict[tuple[str, bytes], Profile] = {}

    def write(self, job: NewJob) -> tuple[bytes, bytes]:
        """Return the digest and the bytes of the profile of this job."""
        facts = (
            job.task,
            job.timeout,
            job.max_attempts,
            job.retry,
            job.retention,
            job.at_most_once,
            job.keep_dead,
            job.fetch_starts,
        )
        key = (*facts, job.flow is not None)
        found = self._written.get(key)
        if found is None:
            if len(self._written) >= self._MOST:
                self._written.clear()
            task = job.task.encode()
            keep = float(kept(job, State.CANCELLED))
            text = struct.pack("<dH", keep, len(task)) + task + _encode(Profile(*facts))
            found = self._written[key] = blake2b(text, digest_size=4).digest(), text
        return found

    def get(self, queue: str, digest: bytes) -> Profile:
        """Return the profile. Raises UnknownProfile: then the caller reads it and calls `learn`."""
        try:
            return self._read[queue, digest]
        except KeyError:
            raise UnknownProfile(queue, digest) from None

    def fields(self, queue: str, digest: bytes) -> tuple[Any, ...]:
        """Return the fields of the profile, in its order. Raises UnknownProfile."""
        return msgspec.structs.astuple(self.get(queue, digest))

    def learn(self, queue: str, digest: bytes, text: bytes) -> None:
        if len(self._read) >= self._MOST:
            self._read.clear()
        self._read[queue, digest] = profile_of(text)


def profile_of(text: bytes) -> Profile:
    (size,) = struct.unpack_from("<H", text, 8)
    return _decode_profile(text[10 + size :])
