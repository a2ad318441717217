"""Cron expressions that go by elapsed time, on days on which clocks change by any amount.

`cronsim` steps by whole hours and assumes that a step ends on a whole hour. In Australia/Lord_Howe (a change
by half an hour) and Pacific/Chatham (a change at a quarter to three) it passes matching times over. Here a
step that meets a change goes minute by minute. Expressions of fixed times keep the rules of Debian's cron,
which cronsim computes without a time zone.
"""

from __future__ import annotations

from datetime import UTC, datetime

from cronsim import CronSim


class Cron(CronSim):
    """The instants of a cron expression in a time zone, forward."""

    def advance_minute(self) -> bool:
        if self.dt.minute in self.minutes:
            return False
        self.dt = self.dt.replace(second=0)
        if len(self.minutes) == 1:
            (target,) = self.minutes
            self._jump((target - self.dt.minute) % 60)
        while self.dt.minute not in self.minutes:
            self.tick(60)
            if self.dt.minute == 0:  # an hour that may not match
                break
        return True

    def advance_hour(self) -> bool:
        if self.dt.hour in self.hours:
            return False
        self.dt = self.dt.replace(second=0)
        while self.dt.hour not in self.hours:
            hour = self.dt.hour
            if not self._jump(60 - self.dt.minute):
                while self.dt.hour == hour:
                    self.tick(60)
            if self.dt.hour == 0:  # a day that may not match
                break
        return True

    def advance_day(self) -> bool:
        moved = super().advance_day()
        if moved:
            self._leave_gap()
        return moved

    def advance_month(self) -> None:
        before = self.dt
        super().advance_month()
        if self.dt is not before:
            self._leave_gap()

    def _jump(self, minutes: int) -> bool:
        """Go on by this many minutes if the clock does not change meanwhile; otherwise stay."""
        before = self.dt
        self.tick(minutes * 60)
        if self.dt.utcoffset() == before.utcoffset():
            return True
        self.dt = before
        return False

    def _leave_gap(self) -> None:
        """Go from a midnight that is left out to the end of the gap."""
        if self.dt.tzinfo is not None:
            self.dt = _real(self.dt)


def _real(moment: datetime) -> datetime:
    return moment.astimezone(UTC).astimezone(moment.tzinfo)
