"""ShortRuns: the log line about hooks because of which no run holds several steps."""

from __future__ import annotations

from collections.abc import Sequence

from hookline import log
from hookline.monitored.callbacks import describe
from hookline.monitored.hook_record import HookRecord

_logger = log.of(__name__)

_MANY_SHORT_RUNS = 8


class ShortRuns:
    """Logs the hooks that are called so often that no run holds several steps, each once.

    Args:
        records: The hooks.
        steps_per_run: The largest number of steps of a run.
        logged: Marks of the hooks that have been logged; more are added here.

    Attributes:
        count: The number of short runs in a row.
    """

    def __init__(self, records: Sequence[HookRecord], steps_per_run: int, logged: set[str]) -> None:
        self._records, self._steps_per_run, self._logged = records, steps_per_run, logged
        self._called = self.count = 0

    def note(self, called: int, *, is_short: bool) -> None:
        """Counts a run on which these hooks are called, and logs those that were called on all of many short runs."""
        self._called = called & (self._called if self.count else called) if is_short else 0
        self.count = self.count + 1 if self._called else 0
        if self.count <= _MANY_SHORT_RUNS:
            return
        for record in self._records:
            if record.bit & self._called and _mark(record) not in self._logged:
                self._logged.add(_mark(record))
                _logger.info(
                    "steps_per_run=%d: each run holds one step, for the %s is called on each. Let it fire less often: "
                    "declare trigger and fetches in place of before_run and after_run. Or declare stacked = True, and "
                    "it is called once a run, with the values of all steps.",
                    self._steps_per_run,
                    describe(record.hook),
                )


def _mark(record: HookRecord) -> str:
    return f"short runs {record.bit}"
