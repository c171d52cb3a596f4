"""Repeats: a step that a loop makes again and again, in one call of a function, because calls take time."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import jax

from hookline.session.execution import Execution
from hookline.session.fetches import called
from hookline.session.local_exchange import LocalExchange

CHANGED = object()
"""In place of results: nothing was run, for something is not as the last step has left it."""

_value = operator.attrgetter("value")


class Repeat:
    """A step that returns nothing, and is nothing but a program of variables that live here.

    It does what `Session.run_prepared`, `DeviceStage.launch` and `LocalExchange` do with such a step, as long as nobody
    else has written the variables since the last one.

    Args:
        lock: The session's lock.
        execution: The step, which has run.
        exchange: Its exchange of variables.
        results: What it returns, to its caller and to hooks.
    """

    __slots__ = (
        "_exchange",
        "_execution",
        "_feeders",
        "_gain",
        "_inputs",
        "_last_step",
        "_latch",
        "_lock",
        "_others",
        "_program",
        "_results",
        "_slot",
        "_sources",
        "_states",
        "_store",
        "_take_step",
    )

    def __init__(self, lock: Any, execution: Execution, exchange: LocalExchange, results: Any) -> None:
        device = execution.device
        assert device is not None
        self._lock, self._execution, self._results = lock, execution, results
        self._exchange, self._store = exchange, exchange.store
        self._program, self._take_step = device.program, device.program.run
        self._states = device.states
        self._latch = device.states[0] if len(device.states) == 1 else None
        self._feeders, self._sources = execution.feeders, execution.sources()
        self._inputs: Any = [constant for _, constant in self._sources] or ()
        (self._slot, _, gain), *self._others = exchange.counters
        assert gain is not None
        assert device.last_step is not None
        self._gain, self._last_step = gain, device.last_step

    @classmethod
    def of(cls, lock: Any, execution: Execution, results: Any) -> Repeat | None:
        """Returns what repeats an execution that has run; None where there is more to it."""
        device = execution.device
        if execution.launch is None or device is None or device.program.outputs:
            return None
        exchange = device.exchange
        if not isinstance(exchange, LocalExchange) or not exchange.is_cycle():
            return None
        computed = device.program.plan.operations
        if any(tensor.graph.dialect.is_compiled_in(tensor.op, computed) for tensor in device.program.inputs):
            return None
        return cls(lock, execution, exchange, results)

    def make(self, session: Any, values: Iterable[Any] = (), expected: int | None = None) -> Any:
        """Makes the step once more.

        Args:
            session: The session. It looks how far the device has come; this only counts.
            values: What is fed, in the order of the plan.
            expected: The global step from which it is to start; None for any.

        Returns:
            The results; or `CHANGED`.
        """
        exchange, store, latch, states, inputs = self._exchange, self._store, self._latch, self._states, self._inputs
        feeds: Any = ()
        if values:
            feeds = [*map(called, self._feeders, values)]
            inputs = [constant if place is None else feeds[place] for place, constant in self._sources]
        try:
            with self._lock:
                step = self._slot.mirror
                if store.latest is not exchange or step is None or step > self._last_step or not session.usable:
                    return CHANGED
                if expected is not None and step != expected:
                    return CHANGED
                latched: Any = ()
                if latch is not None:  # There is seldom more than one.
                    latched = (latch.value,)
                elif states:
                    latched = tuple(map(_value, states))
                taken, counted, _ = exchange.new
                read = [slot.leaves for slot in exchange.read] if exchange.read else []
                try:
                    new, _, _, latched = self._take_step(taken, counted, read, inputs, latched, ())
                except Exception as error:
                    session.explain(error, self._execution, feeds)
                    raise
                step += self._gain
                # Where a Ctrl-C comes from here on, values that were given away are gone, and the session with them.
                if latch is not None:
                    latch.put(latched[0], step)
                elif states:
                    for state, value in zip(states, latched, strict=True):
                        state.put(value, step)
                self._slot.mirror = step
                if self._others:
                    for slot, variable, gain in self._others:
                        slot.count(variable, gain)
                exchange.new, exchange.structures = new, self._program.structures_out
                store.unwritten = exchange
                store.step_changes += 1
                if store.waiting:
                    store.tell()
                session.writes += 1
                if self._program.compilations.untold:
                    self._program.compilations.end()
            ahead = session.ahead
            ahead.left -= 1
            ahead.latest = self._execution
        except jax.errors.JaxRuntimeError as error:
            raise session.map_error(error) from error
        if session.checks_runs:
            session.graph.dialect.check_run(session.graph)
        return self._results
