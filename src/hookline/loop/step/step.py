"""Step: calls a train step in an operation, with values and metrics; and counts its examples and FLOPs."""

from __future__ import annotations

import contextlib
import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax

from hookline import log
from hookline.graph import placement
from hookline.graph.nodes import spec as specs
from hookline.hooks.reporting.step_counter import FLOPS, checked_per_step
from hookline.loop.metrics import Accumulator, find_accumulators, flatten_metrics, reset_where
from hookline.loop.step.leaf_types import InvalidStep
from hookline.loop.step.state_forms import NnxState, PytreeState
from hookline.loop.step.step_result import returned_names
from hookline.loop.step_call import StepCall, function_name, pmap_axis_error, pmap_hint
from hookline.signals import notebooks

_logger = log.get_logger(__name__)


# JAX's errors for Python code that reads a traced value.
_TRACER_READ_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_DICT_FORM = (
    "hookline: the parts of a tuple are the first arguments. If these are others, give the state as a dict by "
    'parameters, such as {"model": model, "opt_state": opt_state}.'
)
_MAX_TRACES = 3
_LIBRARY_MODULES = ("hookline", "jax", "jaxlib", "flax", "equinox", "optax", "numpy", "functools", "contextlib")


class Step:
    """Calls a train step as a function of the variable's values and a batch.

    Args:
        owner: The caller, for messages.
        function: The train step.
        form: The form of the state, with its parameters.
        reset_steps: The number of steps after which metrics in the state are reset; None for never.
        reset_at: The step after which they are reset first.

    Attributes:
        left_out: The returned values of the last trace that are no metrics, with the reasons.
        result_spec: The spec of its results for any batch, known after `spec`; None if a metric is an array, because
            its size may depend on the batch.

    Raises:
        TypeError: The step is not a function, or has required keyword-only parameters.
    """

    def __init__(
        self,
        owner: str,
        function: Any,
        form: PytreeState | NnxState,
        reset_steps: int | None = None,
        reset_at: int = 1,
    ) -> None:
        self.name = self.__name__ = function_name(function)
        self._owner, self._function, self._form = owner, function, form
        self._call = StepCall(owner, function, form.parts)
        self._labels = returned_names(function)
        self._reset_steps, self._reset_at = reset_steps if form.accumulates else None, reset_at
        self.left_out: dict[str, str] = {}
        self.result_spec: Any = None

    # The part of the result with the new state: fetching metrics must not change its rounding.
    main_parts: ClassVar = ((("item", 0),),)

    @property
    def takes_key(self) -> bool:
        """Whether one of its parameters gets a random key; known after `spec`."""
        return self._call.key is not None

    @property
    def call_summary(self) -> str:
        """The call in words, if a state or batch is passed as several arguments by position; else empty."""
        by_place = isinstance(self._form, PytreeState) and any(
            isinstance(key, int) for key in self._form.parts.values()
        )
        return str(self._call) if by_place or not self._call.is_plain else ""

    @property
    def takes_step(self) -> bool:
        """Whether it gets the global step before the step; known after `spec`."""
        return self._reset_steps is not None or self._call.step is not None

    def extra_specs(self) -> list[Any]:
        """Returns the specs of its arguments after the state and the batch."""
        step = [jax.ShapeDtypeStruct((), "int32")] if self.takes_step else []
        return step + ([jax.eval_shape(lambda: jax.random.key(0))] if self.takes_key else [])

    def __call__(self, values: Any, batch: Any, *more: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the values after the step, and its metrics by name; `more` are the global step and a random key."""
        state = self._form.to_state(values)
        step: Any = None
        if self.takes_step:
            step, *more = more  # type: ignore[assignment]
        if self._reset_steps is not None:
            with step_errors(self._owner, self.name):
                # After steps 1, 101, 201, ..., when hooks with first_then_every(100) fire; or after an epoch.
                state = reset_where(state, step % self._reset_steps == self._reset_at % self._reset_steps)
        returned = self._call(self._form.step_arguments(state), batch, *more, step=step)
        with step_errors(self._owner, self.name):
            after, rest = self._form.read_result(state, returned, self._labels)
            accumulated: list[Accumulator] = []
            if self._form.accumulates:  # If a part of the state is a metric, it has the name of its parameter.
                parts = zip(self._form.parts, self._form.step_arguments(self._form.to_state(after)), strict=True)
                accumulated = find_accumulators(dict(parts))
            found, self.left_out = flatten_metrics(rest, accumulated)
            return after, found

    def spec(self, batch: Any, add_sharding: Callable[[Any], Any] = lambda spec: spec) -> tuple[Any, dict[str, Any]]:
        """Returns the specs of its results for a batch of this spec, without running it.

        The form finds which Python numbers and which weak types the step changes. `add_sharding` adds the shardings of
        the state to its specs.

        Raises:
            TypeError: It reads traced values, or its results do not fit.
            ValueError: It returns a state of another structure, shape or dtype, or of other types in each trace.
            Exception: The function raised it.
        """
        self._call.bind_batch(batch)
        changed: list[str] = []
        for _ in range(_MAX_TRACES):
            values = add_sharding(specs.of_value(self._form.values))
            try:
                found = trace_spec(self._owner, self.name, self, values, batch, *self.extra_specs())
            except Exception as error:
                how = f"{self._owner} called {self._call.called_as}" if self._call.called_as else f"{self._call}"
                error.add_note(f"hookline: {how}")
                if self.call_summary and any(isinstance(key, int) for key in self._form.parts.values()):
                    error.add_note(_DICT_FORM)
                if note := pmap_hint(self._function, values, batch):
                    error.add_note(note)
                raise
            with step_errors(self._owner, self.name):
                changed = self._form.refine_leaf_types()
                if not changed:
                    has_arrays = any(metric.shape for metric in found[1].values())
                    self.result_spec = None if has_arrays else found
                    return found
        raise ValueError(
            f"{self._owner}: {self.name} returns {', '.join(changed)} of the state with another dtype or weak type in "
            f"each of {_MAX_TRACES} traces; a hand-written loop would compile as many steps. Give them the dtype that "
            f"the step returns, such as jnp.zeros((), 'float32')."
        )


@contextlib.contextmanager
def step_errors(who: str, name: str) -> Iterator[None]:
    """Converts an `InvalidStep` raised in a block into an error of its `kind`, with the name of the function."""
    try:
        yield
    except InvalidStep as error:
        raise error.kind(f"{who}: {name}: {error}.") from None


def trace_spec(who: str, name: str, function: Callable[..., Any], *given: Any) -> Any:
    """Returns the spec of a function's result.

    Raises:
        TypeError: The function reads a traced value (the message names the line), or uses an axis of `jax.pmap`.
        Exception: The function raised it.
    """
    try:
        return jax.eval_shape(function, *given)
    except _TRACER_READ_ERRORS as error:
        raise TypeError(
            f"{who}: {name} reads a value{_user_line(error)}, but it is compiled, and has values only when it runs. "
            "Return the value as a metric to see it; branch with jnp.where or jax.lax.cond; print with jax.debug.print."
        ) from error
    except Exception as error:
        if (refusal := pmap_axis_error(who, name, error)) is not None:
            raise refusal from error
        error.add_note(f"hookline: while {who} traced {name}")
        if axes := _refused_axes(error):
            error.add_note(
                f"hookline: the mesh has explicit axes, {', '.join(axes)}, as jax.make_mesh makes them by default, so "
                f"the step must say how this operation is sharded. To leave that to XLA, give automatic axes: "
                f"jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto,) * {len(axes)})."
            )
        raise


def _refused_axes(error: Exception) -> tuple[str, ...]:
    """Returns the explicit axes of the mesh, if an error is about shardings; else none."""
    is_about = re.search("[Ss]hard|axis specs", f"{type(error).__name__}: {error}")
    return tuple(jax.sharding.get_abstract_mesh().explicit_axes) if is_about else ()


def _user_line(error: BaseException) -> str:
    """Returns the location and text of the user's line that read a value; empty if it is not known."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARY_MODULES:
            text = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name).line
            return f" at {notebooks.describe_location(frame.f_code.co_filename, line)}" + (
                f" (`{text}`)" if text else ""
            )
    return ""


def per_step_counts(
    step: Step, values: Any, batch: Any, context: Any, given: Mapping[str, float] | None, peak_flops: float | None
) -> dict[str, float]:
    """Returns the counts per step from which rates are computed.

    These are the given ones, else the examples; with `peak_flops` also the FLOPs.

    Args:
        step: The step.
        values: The specs of its state.
        batch: The spec of a batch.
        context: The mesh context in which it is traced.
        given: `LoggingOptions.per_step`.
        peak_flops: `LoggingOptions.peak_flops`.
    """
    count = num_examples(batch)
    rates = checked_per_step("Loop", {"examples": count} if given is None and count else given)
    if peak_flops is not None and FLOPS not in rates:
        flops = flops_of(step, values, batch, context)
        rates |= {} if flops is None else {FLOPS: flops}
    return rates


def num_examples(batch: Any) -> int | None:
    """Returns the number of examples in a batch of this spec: the common length of its arrays, if known."""
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(batch) if leaf.shape}
    length = lengths.pop() if len(lengths) == 1 else None
    return length if isinstance(length, int) and length else None


def flops_of(step: Step, values: Any, batch: Any, context: Any) -> float | None:
    """Returns and logs XLA's count of the floating point operations of a step.

    The step is traced and not compiled. The body of a loop counts once, recomputation (`jax.checkpoint`) counts again.
    For a sharded state the count covers all devices.
    """
    flops = 0.0
    if all(isinstance(size, int) for leaf in jax.tree.leaves(batch) for size in leaf.shape):
        with placement.enter_mesh(context):
            flops = _xla_flops(step, specs.of_value(values), batch, *step.extra_specs())
    if not flops > 0 or not math.isfinite(flops):
        _logger.warning(
            "Loop: XLA does not report the floating point operations of a step, so no share of peak_flops is shown. "
            "Give them: per_step={'flops': ...}."
        )
        return None
    _logger.info(
        "Loop: XLA counts %.4g floating point operations a step, with the body of a loop (jax.lax.scan) once.", flops
    )
    return flops


def _xla_flops(step: Step, *given: Any) -> float:
    """Returns XLA's count of the operations; 0 if there is none, as for a step that is bound to a mesh of GPUs."""
    found = jax.jit(step).lower(*given).cost_analysis()
    if found is None:  # XLA has a count for the CPU, but not for devices behind a plugin, such as a GPU or TPU.
        with contextlib.suppress(Exception), jax.default_device(jax.local_devices(backend="cpu")[0]):
            found = jax.jit(step).lower(*given).cost_analysis()
    return (found or {}).get("flops", 0.0)
