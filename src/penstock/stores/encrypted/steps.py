"""The verbs of an encrypted store for durable steps: values and data are encrypted, names are clear."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.job import Ref
from penstock.encryption import clear_size, encrypted_size
from penstock.stores.contract import (
    RecordedStep,
    Signal,
    SignalStatus,
    SignalWait,
    StepRecord,
    StoredStep,
)
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.facade import Operation

__all__ = ["AwaitSignals", "ReadSteps", "RecordSteps", "SendSignals"]


def _clear(
    cipher: FieldCipher, job: Ref, step: str, value: bytes | None, signal: tuple[str, str] | None
) -> bytes | None:
    if value is None:
        return None
    return cipher.decrypt_signal(value, *signal) if signal else cipher.decrypt_step(value, job, step)


class RecordSteps:
    """Record steps, with values encrypted."""

    def __init__(
        self, inner: Operation[[Sequence[StepRecord]], list[RecordedStep]], cipher: FieldCipher
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, records: Sequence[StepRecord], /) -> list[RecordedStep]:
        return self._answers(records, await self._inner.run(self._encrypted(records)))

    def run_sync(self, records: Sequence[StepRecord], /) -> list[RecordedStep]:
        return self._answers(records, self._inner.run_sync(self._encrypted(records)))

    def _encrypted(self, records: Sequence[StepRecord]) -> list[StepRecord]:
        encrypt = self._cipher.encrypt_step
        return [replace(one, value=encrypt(one.value, one.lease.ref, one.name)) for one in records]

    def _answers(self, records: Sequence[StepRecord], answers: list[RecordedStep]) -> list[RecordedStep]:
        return [
            replace(got, value=_clear(self._cipher, one.lease.ref, one.name, got.value, got.signal))
            for one, got in zip(records, answers, strict=True)
        ]


class AwaitSignals:
    """Wait for signals, with the data that has come decrypted."""

    def __init__(
        self, inner: Operation[[Sequence[SignalWait]], list[RecordedStep]], cipher: FieldCipher
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, waits: Sequence[SignalWait], /) -> list[RecordedStep]:
        return self._answers(waits, await self._inner.run(waits))

    def run_sync(self, waits: Sequence[SignalWait], /) -> list[RecordedStep]:
        return self._answers(waits, self._inner.run_sync(waits))

    def _answers(self, waits: Sequence[SignalWait], answers: list[RecordedStep]) -> list[RecordedStep]:
        return [
            replace(got, value=_clear(self._cipher, one.lease.ref, one.step, got.value, got.signal))
            for one, got in zip(waits, answers, strict=True)
        ]


class ReadSteps:
    """Read the steps of a job, decrypted. More may be read than is answered: encrypted values are longer."""

    def __init__(
        self, inner: Operation[[Ref, Sequence[str] | None, int | None], list[StoredStep]], cipher: FieldCipher
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, ref: Ref, names: Sequence[str] | None, largest: int | None, /) -> list[StoredStep]:
        return self._decrypted(ref, await self._inner.run(ref, names, _stored(largest)), largest)

    def run_sync(self, ref: Ref, names: Sequence[str] | None, largest: int | None, /) -> list[StoredStep]:
        return self._decrypted(ref, self._inner.run_sync(ref, names, _stored(largest)), largest)

    def _decrypted(self, ref: Ref, steps: list[StoredStep], largest: int | None) -> list[StoredStep]:
        found = []
        for step in steps:
            if step.left_out:
                found.append(replace(step, left_out=clear_size(step.left_out)))
                continue
            value = _clear(self._cipher, ref, step.name, step.value, step.signal)
            clear = replace(step, value=value)
            found.append(clear if largest is None else clear.within(largest))
        return found


def _stored(largest: int | None) -> int | None:
    """The most bytes of an encrypted value that has at most `largest`; 0 for a list without values."""
    return largest and encrypted_size(largest)


class SendSignals:
    """Send signals, with data encrypted."""

    def __init__(self, inner: Operation[[Sequence[Signal]], list[SignalStatus]], cipher: FieldCipher) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, signals: Sequence[Signal], /) -> list[SignalStatus]:
        return await self._inner.run(self._encrypted(signals))

    def run_sync(self, signals: Sequence[Signal], /) -> list[SignalStatus]:
        return self._inner.run_sync(self._encrypted(signals))

    def _encrypted(self, signals: Sequence[Signal]) -> list[Signal]:
        encrypt = self._cipher.encrypt_signal
        return [replace(one, data=encrypt(one.data, one.name, one.key)) for one in signals]
