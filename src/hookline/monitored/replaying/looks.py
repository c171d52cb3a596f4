"""Looks: computes what is looked at, by programs of its own, from the state before each step, its batch and its key."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hookline.coordination import Coordinator
from hookline.graph import Tensor, control_dependencies, get_or_create_global_step
from hookline.graph.conditions import is_run_counter
from hookline.graph.global_step import find_global_step
from hookline.hooks import Firing, SessionRunContext, SessionRunHook, Trigger, every
from hookline.hooks.base import SessionRunArgs, instance_trigger
from hookline.hooks.lookup import require_global_step
from hookline.monitored.hooked.callbacks import checked_hooks, describe, overridden_callback
from hookline.monitored.hooked.multi_step import BEFORE_STEP, as_single_row
from hookline.session import RunMetadata, RunOptions, Session

_NOT_FOR_LOOKS = ("before_run", "after_run", "save_on_failure")


class TableLook(SessionRunHook):
    """Looks at tensors by name, and keeps their values by step.

    Args:
        tensors: The tensors.
        every_steps: The global steps from one row to the next.

    Attributes:
        rows: For each step, the values by name: numbers, and NumPy arrays.
    """

    def __init__(self, tensors: Mapping[str, Tensor], every_steps: int) -> None:
        self.fetches, self.trigger = dict(tensors), every(every_steps)
        self.rows: dict[int, dict[str, Any]] = {}

    def on_trigger(self, firing: Firing) -> None:
        """Keeps the values."""
        assert firing.global_step is not None
        self.rows[firing.global_step] = {name: np.asarray(value)[()] for name, value in firing.values.items()}


class LookContext(SessionRunContext):
    """The context of a look, which cannot stop the training."""

    def request_stop(self, *, final: str | None = None) -> None:
        """Raises `ValueError`."""
        raise ValueError("A look of a replay only reads, and this one calls request_stop(). Leave that out.")


class Looks(SessionRunHook):
    """Calls looks, which are hooks with `fetches`, before each step of a replay.

    Their fetches are computed by a program of their own. It takes the state before the step, and the batch and the key
    of the step, and writes nothing: its run has the step limit of `RunOptions(last_step=...)`, so the updates are
    refused, and the step gets the same batch.

    Args:
        looks: The looks.
        first: The step before the first one that they see.
        last: The last step that they see.
        shown: Returns a context in which the output of looks is shown.

    Raises:
        TypeError: One is no hook.
        ValueError: One does not only read: it has callbacks around runs, or no `fetches` and `trigger`.
    """

    def __init__(
        self,
        looks: Iterable[Any],
        first: int,
        last: int,
        shown: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._looks, self._first, self._last, self._shown = checked_hooks(looks, "look"), first, last, shown
        self._session: Session | None = None
        self._seen = first
        for look in self._looks:
            for name in _NOT_FOR_LOOKS:
                if overridden_callback(look, name) is not None:
                    raise ValueError(
                        f"A look of a replay only reads, and the {describe(look)} has {name}. Declare its fetches and "
                        f"trigger, and act in on_trigger."
                    )

    def begin(self) -> None:
        """Calls every `begin`, and makes an operation that counts, so that its run has a step limit.

        Raises:
            ValueError: The run counts its steps by another number than 1.
        """
        step = require_global_step(self)
        for operation in step.graph.get_operations():
            counts = find_global_step(step.graph) in getattr(operation, "variables", ())
            if counts and (increment := getattr(operation, "increment", None)) not in (None, 1):
                raise ValueError(
                    f"A replay needs a global step that each step increments by 1, and {operation.name!r} increments "
                    f"it by {increment}."
                )
        with control_dependencies(None):
            self._count = get_or_create_global_step().assign_add(1, name="look/count")
        for look in self._calls("begin"):
            look()

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Calls every `after_create_session`, and checks the fetches."""
        self._session = session
        for look in self._calls("after_create_session"):
            look(session, coord)
        self._triggers: list[Trigger] = []
        for look in self._looks:
            trigger = instance_trigger(look)
            has_fetches = getattr(look, "fetches", None) is not None or overridden_callback(look, "before_trigger")
            if not isinstance(trigger, Trigger) or not has_fetches:
                raise ValueError(
                    f"A look of a replay is a hook with fetches and a trigger, and the {describe(look)} lacks "
                    f"{'fetches' if isinstance(trigger, Trigger) else 'a trigger'}."
                )
            trigger.reset()
            trigger.start(self._first)
            trigger.on_new_session(session)
            self._triggers.append(trigger)
        if self._looks:
            session.hook_data[BEFORE_STEP] = self._before_step

    def close(self) -> None:
        """Calls every `end`, after the last step."""
        if self._session is not None:
            for look in self._calls("end"):
                look(self._session)

    def _calls(self, name: str) -> Iterator[Callable[..., Any]]:
        with self._shown():
            yield from (call for look in self._looks if (call := overridden_callback(look, name)) is not None)

    def _before_step(self, feeds: Mapping[Any, Any] | None) -> None:
        session = self._session
        assert session is not None, "It is called in a run."
        step = session.global_step + 1
        if not self._seen < step <= self._last:
            return
        self._seen = step
        context = LookContext(SessionRunArgs(None), session, step - self._first - 1)
        due: list[tuple[Any, Trigger, Any]] = []
        for look, trigger in zip(self._looks, self._triggers, strict=True):
            trigger.count_runs(step - self._first)
            if trigger.should_trigger_for_step(step):
                due.append((look, trigger, self._request(look, context)))
        if not due:
            return
        values = self._compute(session, [fetches for _, _, fetches in due], feeds)
        writes = session.backend.write_count
        with self._shown():
            for (look, trigger, _), own in zip(due, values, strict=True):
                elapsed_secs, elapsed_steps = trigger.update_last_triggered_step(step)
                own = as_single_row(own) if getattr(look, "stacked", False) else own
                if (call := overridden_callback(look, "on_trigger")) is not None:
                    call(Firing(own, step, elapsed_steps, elapsed_secs, RunOptions(), RunMetadata(), context))
                if session.backend.write_count != writes:
                    raise ValueError(
                        f"A look of a replay only reads, and the {describe(look)} has changed variables at step {step}."
                    )

    def _request(self, look: Any, context: SessionRunContext) -> Any:
        """Returns the fetches of a look."""
        if (ask := overridden_callback(look, "before_trigger")) is None:
            return look.fetches
        args = ask(context)
        if args is not None and (args.feed_dict or args.options is not None):
            raise ValueError(f"A look of a replay only reads, and the {describe(look)} feeds tensors or sets options.")
        return None if args is None else args.fetches

    def _compute(self, session: Session, fetches: Sequence[Any], feeds: Mapping[Any, Any] | None) -> Sequence[Any]:
        """Computes fetches from the state before the step, the batch and the key of the step; updates nothing."""
        known = tuple(each for each in fetches if each is not None)
        plan = session.backend.find_step(known, feeds).plan
        if written := [variable for variable in plan.updates if not is_run_counter(variable)]:
            raise ValueError(
                f"A look of a replay only reads, and the fetches of one update {written[0].op.name!r}. Fetch values "
                f"that no update of the graph computes."
            )
        options = RunOptions(last_step=session.global_step)
        values = iter(session.run((*known, self._count), feeds, options))
        return jax.block_until_ready([None if each is None else next(values) for each in fetches])
