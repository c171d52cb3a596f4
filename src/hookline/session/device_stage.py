"""The device stage of a run: values out of the store, through the program, and back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax

from hookline.errors import FailedPreconditionError
from hookline.graph.global_step import get_global_step
from hookline.graph.graph import ancestors
from hookline.graph.variable import Update
from hookline.session.buckets import Bucket
from hookline.session.getters import Getter, Run
from hookline.session.latches import Latched, Latches, copied
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.plan import Plan
from hookline.session.program import Program
from hookline.session.store import VariableStore

_value = operator.attrgetter("value")


class DeviceStage:
    """What the device does in the runs of an execution, with all that it needs at hand.

    Its methods start the program and exchange the values of its variables, without waiting for the device. Their caller
    holds the session's lock.

    Args:
        plan: What is run.
        program: Its program.
        inputs: For each input of the program a function that finds it in a run.
        mask: Of what hooks may watch in the program, which is wanted.
        store: Where its variables live.
        latches: What the latches of the session hold.
        pulled: The remote updates whose results somebody wants.
        step_gain: By how much a run advances the global step; None if only the device knows.
        last_step: The last global step that its dtype holds, where that is counted here.

    Attributes:
        program, inputs: As above.
        exchange: Where the values of its variables are kept.
        states: What its latches hold.
        last_step: The last global step from which a run can still count on.
    """

    __slots__ = (
        "_mask",
        "_plan",
        "_pulled",
        "_run",
        "_step_gain",
        "_store",
        "exchange",
        "inputs",
        "last_step",
        "program",
        "states",
    )

    def __init__(
        self,
        plan: Plan,
        program: Program,
        inputs: Sequence[Getter],
        mask: tuple[jax.Array, ...],
        store: VariableStore,
        latches: Latches,
        *,
        pulled: Sequence[Update],
        step_gain: int | None,
        last_step: int | None,
    ) -> None:
        self._plan, self.program, self._run, self._store = plan, program, program.run, store
        self.inputs, self._mask, self._pulled = inputs, mask, pulled
        self._step_gain = step_gain
        self.last_step = None if last_step is None else last_step - (step_gain or 0)
        written = program.written
        gains = [
            None if isinstance(c, Bucket) or plan.is_guarded(c) or not plan.is_host_known(c) else plan.gain(c)
            for c in written
        ]
        hosted = {variable: plan.gain(variable) or 0 for variable in program.hosted}
        self.exchange = store.exchange((program.taken, program.counted, program.read), written, gains, hosted)
        self.states = latches.of(program.latches)

    def launch(self, run: Run) -> None:
        """Starts a run of which nothing is recorded or held back."""
        # The steps of `_arguments` and `_keep` in line: this is what a training loop does, and calls take time. What is
        # changed here is to be changed in `Repeat.make`, too.
        program, exchange, states = self.program, self.exchange, self.states
        try:
            taken, counted, read = exchange.take()
        except FailedPreconditionError as error:
            raise explained(self._plan, error) from None
        step = exchange.step
        if self.last_step is not None and (step is None or step > self.last_step):
            self._check_countable(self.last_step)
        inputs = [get(run) for get in self.inputs] if self.inputs else ()
        latched = tuple(map(_value, states)) if states else ()  # A comprehension would be one call more.
        new, run.outputs, _, latched = self._run(taken, counted, read, inputs, latched, self._mask)
        # The latches first: where a Ctrl-C comes in between, the session is lost with its variables.
        if step is None or self._step_gain is None:
            exchange.put(new, program.structures_out)
            self._keep(latched)
        else:
            step += self._step_gain
            for state, value in zip(states, latched, strict=True):
                state.put(value, step)
            exchange.put(new, program.structures_out)
        run.applied = True
        if program.compilations.untold:
            program.compilations.end()

    def launch_with(self, run: Run, options: RunOptions | None, metadata: RunMetadata | None) -> None:
        """Starts a run with options, or one whose updates happen elsewhere."""
        arguments, program = self._arguments(run), self.program
        if options is not None and options.output_partition_graphs and metadata is not None:
            metadata.partition_graphs.append(str(program.lower(*arguments).compile().as_text()))
        last_step = None if options is None else options.last_step
        if self._plan.remote:
            self._submit(run, arguments, last_step)
        elif last_step is not None and self._step_gain != 0 and self._store.step() >= last_step:
            # Nothing is applied; the fetches are computed all the same.
            _, run.outputs, _, latched = program.dry(*arguments)
            self._keep(latched)
        else:
            new, run.outputs, _, latched = self._run(*arguments)
            self.exchange.put(new, program.structures_out)
            run.applied = True
            self._keep(latched)
        if metadata is not None and (self._plan.remote or not run.applied):
            metadata.applied = run.applied
        if options is not None and options.trace_level and metadata is not None:
            jax.block_until_ready((self._store.take(program.written), run.outputs))
        if program.compilations.untold:
            program.compilations.end()

    def _submit(self, run: Run, arguments: tuple[Any, ...], last_step: int | None) -> None:
        """Runs the program and has the updates of its variables applied where these live."""
        program, store = self.program, self._store
        # A run that is refused changes nothing here either; values that were given away could not be kept.
        refusable = last_step is not None and bool(program.written)
        new, run.outputs, sent, latched = (program.dry if refusable else program.run)(*arguments)
        if not refusable:
            self.exchange.put(new, program.structures_out)
        inputs = [list(given) for given in jax.device_get(sent)]
        run.applied = store.submit(list(zip(self._plan.remote, inputs, strict=True)), last_step)
        if run.applied and refusable:
            self.exchange.put(new, program.structures_out)
        self._keep(latched)
        for update in self._pulled:
            run.hosts[update] = _result(store, update)

    def token(self, run: Run, is_there: Callable[[jax.Array], bool]) -> jax.Array | None:
        """Returns an array that is there once a run is computed, and is given to no later run; None if it is there.

        Args:
            run: The run.
            is_there: Says whether an array is there.
        """
        held = jax.tree.leaves(run.outputs) if run.outputs else []
        if not held and self.program.counted:
            held = jax.tree.leaves(self._store.take(self.program.counted[:1]))
        if held:
            least = min(held, key=lambda leaf: leaf.size)
            return None if is_there(least) else least
        if self.states:
            return None if is_there(self.states[0].value) else self.states[0].copy()
        held = jax.tree.leaves(self.exchange.take()[0]) or jax.tree.leaves(self._store.take(self.program.written))
        if not held or is_there(held[0]):  # One run returns them all.
            return None
        return copied(min(held, key=lambda leaf: leaf.size))

    def _arguments(self, run: Run) -> tuple[Any, ...]:
        if self.last_step is not None:
            self._check_countable(self.last_step)
        try:
            taken, counted, read = self.exchange.take()
        except FailedPreconditionError as error:
            raise explained(self._plan, error) from None
        inputs = [get(run) for get in self.inputs] if self.inputs else ()
        latched = tuple(map(_value, self.states))
        return taken, counted, read, inputs, latched, self._mask

    def _keep(self, latched: tuple[Latched, ...]) -> None:
        if not latched:
            return
        step = self._store.known_step()
        if step is None:
            try:
                step = self._store.step()
            except (RuntimeError, TypeError, ValueError):  # The graph has none that counts.
                step = None
        for state, value in zip(self.states, latched, strict=True):
            state.put(value, step)

    def _check_countable(self, last_step: int) -> None:
        step = self._store.known_step()
        if (self._store.step() if step is None else step) > last_step:
            raise self._uncountable()

    def _uncountable(self) -> FailedPreconditionError:
        """Returns the error of a global step that cannot count on."""
        step = next(v for v in self._plan.updates if v is get_global_step(v.graph))
        return FailedPreconditionError(
            step.op.node_def,
            step.op,
            f"The global step {step.op.name!r} cannot count to {self._store.step() + (self._step_gain or 0)}: "
            f"its dtype is {step.dtype}. Set jax_enable_x64 before the graph is built; it is then one of int64, also "
            f"when this model is restored.",
        )


def explained(plan: Plan, error: FailedPreconditionError) -> FailedPreconditionError:
    """Returns the error of a variable without a value, with other advice if it is a variable's initial value's."""
    for operation in plan.operations:
        if isinstance(operation, Update) and operation.initialises and error.op in ancestors(operation.inputs):
            name = error.op.name
            return FailedPreconditionError(
                operation.node_def,
                operation,
                f"The initial value of {operation.variables[0].op.name!r} reads variable {name!r}, which has no value "
                f"before this run is over. Compute it from the initial value, `{name}.initialized_value()` in place of "
                f"`{name}`, or initialise {name!r} in an earlier run.",
            )
    return error


def _result(store: VariableStore, update: Update) -> Any:
    """Returns the values that the variables of an update have now, in its structure."""
    leaves = store.take(update.variables)
    values = [jax.tree.unflatten(store.structure(v), taken) for v, taken in zip(update.variables, leaves, strict=True)]
    return jax.tree.unflatten(update.structure, values)
