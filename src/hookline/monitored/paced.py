"""Paced: a hook that says when it must be seen next."""

from __future__ import annotations

import math
from typing import Any

from hookline import clock
from hookline.hooks.when import bare
from hookline.monitored.hook_list import describe, override
from hookline.session import LateResults

SAYS_WHEN = ("steps_until_trigger", "secs_until_trigger", "runs_until_trigger")


def _speaks_for_all(hook: Any) -> bool:
    """Whether what a hook says of its next firing was written for the run callbacks that it has.

    One that a subclass has overridden further down knows nothing of it, and must not be left out.
    """
    hook = bare(hook)

    def depth(name: str) -> int:
        if name in getattr(hook, "__dict__", ()):
            return -1
        return next((i for i, kind in enumerate(type(hook).__mro__) if name in vars(kind)), len(type(hook).__mro__))

    return min(map(depth, SAYS_WHEN)) <= min(depth("before_run"), depth("after_run"))


def _asks_on_some_runs(hook: Any) -> bool:
    """Whether it must be called on all runs that it is bound to: it counts them, or asks for something on each."""
    needs = (override(hook, name) for name in ("standing_operations", "runs_until_trigger"))
    return bare(hook) is not hook and any(needs)


def may_be_left_out(hook: Any) -> bool:
    """Whether a hook says when it must be seen next, and speaks for all that it does."""
    says = any(override(hook, name) for name in SAYS_WHEN)
    return says and _speaks_for_all(hook) and not _asks_on_some_runs(hook)


class Paced:
    """A hook that says when it must be seen next.

    Args:
        hook: The hook.
        bit: Which it is: 1, 2, 4, 8 and so on.

    Attributes:
        bit: As above.
        always: Whether it must be seen on each run; so it is until it was asked.
        at_step: Else the global step at which it must be seen.
        at_secs: Or the reading of the clock.
        at_run: Or the run, from 1 on.
        results: Or what must have arrived.
    """

    __slots__ = (
        "_hook",
        "_runs",
        "_secs",
        "_steps",
        "_waits_for",
        "always",
        "at_run",
        "at_secs",
        "at_step",
        "bit",
        "results",
    )

    def __init__(self, hook: Any, bit: int) -> None:
        self._hook, self.bit = hook, bit
        self._steps, self._secs, self._runs = (override(hook, name) for name in SAYS_WHEN)
        self._waits_for = override(hook, "waits_for")
        self.always = True
        self.at_step: float = math.inf
        self.at_secs: float = math.inf
        self.at_run: float = math.inf
        self.results: LateResults | None = None

    def ask(self, step: int, run: int) -> None:
        """Asks it when it must be seen next. If it raises, it stays due when it was.

        Args:
            step: The global step to which the latest run led.
            run: The number of that run.

        Raises:
            TypeError: It did not answer with numbers, or with something else than a `LateResults` from `waits_for`.
        """
        steps = self._steps(step) if self._steps else math.inf
        secs = self._secs() if self._secs else math.inf
        runs = self._runs() if self._runs else math.inf
        results = self._waits_for() if self._waits_for else None
        if results is not None and not isinstance(results, LateResults):
            raise TypeError(
                f"The {describe(self._hook)} must return a LateResults (or None) from waits_for, got {results!r}."
            )
        try:
            always = steps <= 1 or secs <= 0 or runs <= 1
            at_step = math.inf if always else step + steps
            at_secs = clock.monotonic() + secs if secs < math.inf and not always else math.inf
            at_run = run + int(runs) if runs < math.inf and not always else math.inf
        except TypeError:
            raise TypeError(
                f"The {describe(self._hook)} must return numbers from {', '.join(SAYS_WHEN)}, got {steps!r}, {secs!r} "
                f"and {runs!r}."
            ) from None
        self.at_step, self.at_secs, self.at_run = at_step, at_secs, at_run
        self.always, self.results = always, None if always else results
