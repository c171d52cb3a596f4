"""Costs: measures the time of a session by part.

Measured functions get a wrapper when they are looked up; without a report there is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax

from hookline import clock, log
from hookline.hooks.base import Firing, SessionRunContext, SessionRunValues
from hookline.hooks.when import bare
from hookline.monitored.callbacks import Callback, override
from hookline.monitored.cost_report import ABOUT, CostReport, HookCost
from hookline.session import DeferredResults, Session
from hookline.session.compilation import Compiled

logger = log.of(__name__)

_PARTS = [*ABOUT]
_STEP, _INPUT, _WAITING, _COMPILING, _STARTING, _ENDING, _OUTSIDE = (
    _PARTS.index(part) for part in ("step", "input", "waiting", "compiling", "starting", "ending", "outside")
)


class _Accounts:
    """The time of a session by account. Each moment is on exactly one, so the accounts add up to the wall time.

    The wrappers are called on each run, so the body of `enter` is written out in each of them, and what they share are
    the variables of a function: these are reached faster than attributes.

    Args:
        read: Reads the clock.
        account: The account of the time from now on.

    Attributes:
        secs: The seconds by account.
        enter: Switches to another account; returns the previous one.
        last: Returns the current account and the time of the last switch.
        of_run: Wraps a session's `run`, whose time is on the account of the step; counts its calls in a list of one.
        of_before_run: Wraps a hook's `before_run` in the same way; takes its account as well.
        of_after_run: Wraps a hook's `after_run`; takes its account, and a function for the values that it gets as well.
    """

    def __init__(self, read: Callable[[], float], account: int) -> None:
        at = read()
        secs = self.secs = [0.0] * len(_PARTS)

        def enter(own: int) -> int:
            nonlocal at, account
            now, before = read(), account
            secs[before] += now - at
            at, account = now, own
            return before

        def of_run(run: Callback, calls: list[int]) -> Callback:
            # Python collects no arguments for it.
            def measured(fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
                nonlocal at, account
                now, before = read(), account
                secs[before] += now - at
                at, account = now, _STEP
                calls[0] += 1
                try:
                    return run(fetches, feed_dict, options, run_metadata)
                finally:
                    now = read()
                    secs[account] += now - at
                    at, account = now, before

            return measured

        def of_before_run(before_run: Callback, calls: list[int], own: int) -> Callback:
            def measured(run_context: SessionRunContext) -> Any:
                nonlocal at, account
                now, before = read(), account
                secs[before] += now - at
                at, account = now, own
                calls[0] += 1
                try:
                    return before_run(run_context)
                finally:
                    now = read()
                    secs[account] += now - at
                    at, account = now, before

            return measured

        def of_after_run(after_run: Callback, calls: list[int], own: int, given: Callable[[Any], Any]) -> Callback:
            def measured(run_context: SessionRunContext, run_values: SessionRunValues) -> Any:
                nonlocal at, account
                now, before = read(), account
                secs[before] += now - at
                at, account = now, own
                calls[0] += 1
                try:
                    if run_values.results is not None:
                        given(run_values.results)
                    return after_run(run_context, run_values)
                finally:
                    now = read()
                    secs[account] += now - at
                    at, account = now, before

            return measured

        self.enter, self.last = enter, lambda: (account, at)
        self.of_run, self.of_before_run, self.of_after_run = of_run, of_before_run, of_after_run


class Costs:
    """The measurements of a session, which begin with its constructor."""

    def __init__(self) -> None:
        self._read = clock.reader()
        self._accounts = _Accounts(self._read, _STARTING)
        self.enter, self._secs = self._accounts.enter, self._accounts.secs
        _, self._begun = self._accounts.last()
        self._hooks: dict[int, _HookCosts] = {}
        self._compiled: list[Compiled] = []
        self._raw: Any = None
        self._first_step: int | None = None
        self._last_step: int | None = None
        self._is_over = False
        self._runs = [0]

    def _measured(self, function: Callback, account: int) -> Callback:
        """Wraps a function, and puts its time on an account."""

        def measured(*args: Any, **named: Any) -> Any:
            before = self.enter(account)
            try:
                return function(*args, **named)
            finally:
                self.enter(before)

        return measured

    # Wrappers ---------------------------------------------------------------------------------------------------

    def of_runs(self, run: Callback, run_in_step: Callback) -> tuple[Callback, Callback]:
        """Returns a session's `run`, and its run inside a step function, measured; the start of the session is over."""
        self.enter(_OUTSIDE)
        runs, in_step = self._runs, self._measured(run_in_step, _STEP)

        def counted(*args: Any, **named: Any) -> Any:
            account, _ = self._accounts.last()
            runs[0] += account != _STEP  # Else `run` has called this.
            return in_step(*args, **named)

        return self._accounts.of_run(run, runs), counted

    def watch(self, raw: Session) -> None:
        """Measures a raw session: its waits for the device and for batches, and its compilations."""
        low = raw.lowlevel
        self._raw = raw
        with contextlib.suppress(RuntimeError):  # Without a global step.
            self._last_step = raw.global_step
            self._first_step = self._last_step if self._first_step is None else self._first_step
        for made in low.compilations.so_far:
            self._has_compiled(made)
        low.compilations.heard = self._has_compiled
        low.measure(partial(self._measured, account=_WAITING), partial(self._measured, account=_INPUT))

    def _has_compiled(self, made: Compiled) -> None:
        self._compiled.append(made)
        # Its time was on the account under which the program was started.
        account, since = self._accounts.last()
        secs = min(made.secs, self._secs[account] + self._read() - since)
        self._secs[account] -= secs
        self._secs[_COMPILING] += secs

    def timed(self, hook: Any, name: str, callback: Callback) -> Callback:
        """Returns a callback of a hook, measured; the callback "values" waits for the values of a deferred firing."""
        found = self._account_of(hook)
        if name == "values":
            return self._measured_values(found, callback)
        if name == "on_trigger":
            return self._measured_firing(found, callback)
        if name == "before_run":
            return self._accounts.of_before_run(callback, found.before_runs, found.account)
        if name == "after_run":
            return self._accounts.of_after_run(callback, found.after_runs, found.account, found.given)
        return self._measured(callback, found.account)

    def _account_of(self, hook: Any) -> _HookCosts:
        found = self._hooks.get(id(bare(hook)))
        if found is None:
            found = self._hooks[id(bare(hook))] = _HookCosts(bare(hook), len(self._secs))
            self._secs.append(0.0)
        return found

    def _measured_values(self, hook_costs: _HookCosts, get: Callback) -> Callback:
        def measured(deferred: Any) -> Any:
            if deferred.results.is_ready():
                return get(deferred)
            return self._wait(hook_costs, lambda: get(deferred))

        return measured

    def _measured_firing(self, hook_costs: _HookCosts, on_trigger: Callback) -> Callback:
        def measured(firing: Firing) -> Any:
            hook_costs.firings += 1
            if (values := hook_costs.given(firing.values)) and not DeferredResults.of(values).is_ready():
                self._wait(hook_costs, lambda: jax.block_until_ready(values))
            before = self.enter(hook_costs.account)
            try:
                return on_trigger(firing)
            finally:
                self.enter(before)

        return measured

    def _wait(self, hook_costs: _HookCosts, wait: Callable[[], Any]) -> Any:
        before, start = self.enter(_WAITING), self._read()
        try:
            return wait()
        finally:
            hook_costs.waits += 1
            hook_costs.wait_secs += self._read() - start
            self.enter(before)

    # The report -------------------------------------------------------------------------------------------------

    def _note_step(self) -> None:
        try:
            step = None if self._raw is None or self._raw.closed else self._raw.lowlevel.known_step
        except Exception:  # The session is lost, or has no value for it.
            return
        self._last_step = self._last_step if step is None else step

    def end(self) -> None:
        """Switches to the account of the session's end."""
        self._note_step()
        self.enter(_ENDING)

    def close(self, hooks: Iterable[Any]) -> None:
        """Stops the measurement of a closed session, and logs the report."""
        self.enter(_ENDING)
        self._is_over, self._raw = True, None
        logger.info("%s", self.report(hooks))

    def report(self, hooks: Iterable[Any]) -> CostReport:
        """Returns the costs so far; `hooks` are the hooks of the session, in calling order."""
        account, until = self._accounts.last()
        if not self._is_over:
            self._note_step()
            self.enter(account)
            _, until = self._accounts.last()
        secs = dict(zip(_PARTS, self._secs, strict=False))
        for hook_costs in self._hooks.values():
            secs["saving" if hook_costs.saves else "hooks"] += self._secs[hook_costs.account]
        first, last = self._first_step, self._last_step
        return CostReport(
            wall_secs=until - self._begun,
            secs=secs,
            runs=self._runs[0],
            steps=None if first is None or last is None else last - first,
            hooks=tuple(hook_costs.cost(self._secs[hook_costs.account]) for hook_costs in map(self._account_of, hooks)),
            compilations=tuple(self._compiled),
        )


class _HookCosts:
    """Counts the calls, values and waits of one hook."""

    def __init__(self, hook: Any, account: int) -> None:
        self._hook, self.account = hook, account
        self.saves = override(hook, "save_last") is not None
        self.before_runs, self.after_runs = [0], [0]
        self.firings = self.waits = self.values = self.bytes = 0
        self.wait_secs = 0.0

    def given(self, results: Any) -> list[Any]:
        """Counts values that it gets; returns their arrays and numbers."""
        if results is None:
            return []
        values = jax.tree.leaves(results)
        self.values += len(values)
        for value in values:
            self.bytes += getattr(value, "nbytes", 0)
        return values

    def cost(self, secs: float) -> HookCost:
        """Returns its costs, with this time."""
        return HookCost(
            type(self._hook).__name__,
            self.firings,
            max(*self.before_runs, *self.after_runs),
            secs,
            self.waits,
            self.wait_secs,
            self.values,
            self.bytes,
        )
