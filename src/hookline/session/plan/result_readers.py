"""Result readers: functions that read a run's values from its feeds, host counters, program outputs and host results.

And `DeferredResults`, which are read later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph import placement
from hookline.graph.graph import Operation, Tensor
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import Constant, Group, Source
from hookline.graph.nodes.views import get_at_path
from hookline.graph.variable import Variable, VariableRead
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.plan.feeds import StaticArray
from hookline.session.plan.plan import Plan, TensorKey, input_tensors
from hookline.session.running import launch_log


class RunState:
    """The values of one run while it is under way.

    Attributes:
        feeds: The fed values, checked.
        applied: Whether its updates were applied; set at once, because later parts of the run may fail.
        outputs: The outputs of the program.
        counters: The values of the host's counters before the run; in a run of several steps, before the last one.
        host_results: The results of host operations.
        host_inputs: The device inputs of host operations, by their index in `Plan.pulled`.
        max_steps, min_steps: The largest and the smallest number of its steps.
        num_steps: The number of its steps, if it may have several.
        block_starts: The index of each source's first batch in its block, if it may have several steps.
        options, metadata: The options of a staged run, and its metadata to be filled in.
        device_start: The time when the device stage of a run with metadata began.
    """

    # No constructor: there is one of these in each run of a training loop, and a call takes time.
    # fmt: off
    __slots__ = (
        "applied",
        "block_starts",
        "counters",
        "device_start",
        "feeds",
        "host_inputs",
        "host_results",
        "max_steps",
        "metadata",
        "min_steps",
        "num_steps",
        "options",
        "outputs",
    )
    # fmt: on

    feeds: Sequence[Any]
    applied: bool
    outputs: Sequence[Any]
    counters: dict[Variable, int]
    host_results: dict[Operation, Any]
    host_inputs: dict[int, Any]
    max_steps: int
    min_steps: int
    num_steps: int
    block_starts: dict[Operation, int]
    options: RunOptions | None
    metadata: RunMetadata | None
    device_start: float

    def reset(self) -> None:
        """Creates empty counters and host results."""
        self.counters, self.host_results, self.host_inputs = {}, {}, {}


class DeferredResults:
    """The results of a deferred hook's fetches.

    Reading them waits for the device, and runs the host operations of the fetches, for which no run waits.

    Args:
        compute: Returns the results, in the structure of the fetches.
        arrays: The arrays that must be computed first.

    Example:
        >>> import jax.numpy as jnp
        >>> results = DeferredResults.of({"loss": jnp.asarray(0.5)})
        >>> results.get()
        {'loss': Array(0.5, dtype=float32, weak_type=True)}
    """

    __slots__ = ("_arrays", "_compute")

    def __init__(self, compute: Callable[[], Any], arrays: list[Any]) -> None:
        self._compute, self._arrays = compute, arrays

    @classmethod
    def of(cls, results: Any) -> DeferredResults:
        """Wraps results that need no host operation; they are ready when the arrays in them are."""
        return cls(lambda: results, [leaf for leaf in jax.tree.leaves(results) if isinstance(leaf, jax.Array)])

    def then(self, function: Callable[[Any], Any]) -> DeferredResults:
        """Returns the deferred result of a function on these results."""
        return DeferredResults(lambda: function(self.get()), self._arrays)

    def is_ready(self) -> bool:
        """Returns whether the results can be read without waiting for the device."""
        # Not `all`: a generator costs more than the few arrays.
        for array in self._arrays:  # noqa: SIM110
            if not array.is_ready():
                return False
        return True

    def get(self) -> Any:
        """Returns the results; call it once.

        Raises:
            BaseException: The error of a host operation, or of the run on the device.
        """
        # This raises the error of the run: a failed array is ready, too. Other results of these arrays need not wait.
        for array in self._arrays:
            array.block_until_ready()
        self._arrays.clear()
        return self._compute()


ResultReader = Callable[[RunState], Any]


def host_counter(plan: Plan, tensor: Tensor) -> Variable | None:
    """Returns the variable that `tensor` reads if the host knows its value in this run."""
    if not isinstance(tensor.op, VariableRead) or plan.find_feed(tensor) is not None:
        return None
    return tensor.op.variable if plan.is_host_known(tensor.op.variable) else None


def host_counters(plan: Plan, elements: Iterable[Tensor | Operation]) -> list[Variable]:
    """Returns the host counters that fetches or host operations read."""
    arguments = input_tensors((*plan.before, *plan.after), lambda tensor: True)
    tensors = [*arguments, *(element for element in elements if isinstance(element, Tensor))]
    found = (host_counter(plan, tensor) for tensor in tensors)
    return list(dict.fromkeys(variable for variable in found if variable is not None))


def make_fetch_reader(plan: Plan, element: Tensor | Operation, output_indices: Mapping[TensorKey, int]) -> ResultReader:
    """Returns a function that reads the value of a fetch; `output_indices` has the index of each program output."""
    if isinstance(element, Tensor) and isinstance(element.op, Constant) and plan.find_feed(element) is None:
        # As a JAX array, which the caller cannot change.
        value = get_at_path(element.op.device_value(), element.path)
        return lambda run: value
    get = _make_reader(plan, element, output_indices)
    return _as_jax_arrays(get) if isinstance(element, Tensor) and _is_source_read(plan, element) else get


def _is_source_read(plan: Plan, tensor: Tensor) -> bool:
    return isinstance(tensor.op, Source) and plan.find_feed(tensor) is None


def _as_jax_arrays(get: ResultReader) -> ResultReader:
    """Returns a reader of the same value in JAX arrays, which are immutable: the program may still read it."""
    return lambda run: jax.tree.map(_to_jax_array, get(run))


def _to_jax_array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf if leaf.is_fully_addressable else _gather(leaf)
    return jax.device_put(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "OSU" else leaf


_gather_fingerprints: dict[Any, int] = {}


def _gather(leaf: jax.Array) -> jax.Array:
    """Gathers an array that is sharded over several processes, with a program that all of them launch."""
    sharding = jax.NamedSharding(getattr(leaf.sharding, "mesh", placement.global_mesh()), jax.P())
    if (launches := launch_log.current()) is not None:
        kind = leaf.shape, leaf.dtype, leaf.sharding
        launches.record(_gather_fingerprints, "the reading of a batch", kind, lambda: f"whole {kind}")
    return placement.addressable_data(placement.device_put(leaf, sharding))


def make_stacked_reader(
    plan: Plan, element: Tensor | Operation, output_indices: Mapping[TensorKey, int], *, on_host: bool = False
) -> ResultReader:
    """Returns a function that reads the values of a fetch in each of several steps, as rows; None for an operation.

    With `on_host` they are copied to the host: faster than slicing on the device, but it waits for the device.
    """
    get = make_fetch_reader(plan, element, output_indices)
    if isinstance(element, Operation) or isinstance(element.op, Group):
        return get
    variable = host_counter(plan, element)
    if variable is not None:
        step_delta = np.dtype(variable.dtype).type(plan.counter_delta(variable) or 0)
        # `run.counters` has the value from before the last step.
        return lambda run: get(run) + np.arange(1 - run.num_steps, 1, dtype=variable.dtype) * step_delta
    if element.key in output_indices:
        read = np.asarray if on_host and _is_numeric(element.spec) else lambda rows: rows
        return lambda run: jax.tree.map(lambda rows: read(rows)[: run.num_steps], get(run))
    if isinstance(element.op, Source):
        op, block = element.op, _make_reader(plan, element, output_indices)
        part = lambda run: slice(run.block_starts[op], run.block_starts[op] + run.num_steps)  # noqa: E731
        return lambda run: jax.tree.map(lambda rows: _slice_rows(rows, part(run)), block(run))
    return lambda run: jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (run.num_steps, *np.shape(leaf))), get(run))


def _slice_rows(rows: Any, part: slice) -> Any:
    return _to_jax_array(rows)[part] if isinstance(rows, jax.Array) else _to_jax_array(rows[part])


def _is_numeric(spec: Any) -> bool:
    """Returns whether a spec holds only arrays of numbers, no random keys."""
    return spec is not specs.UNKNOWN and all(isinstance(leaf.dtype, np.dtype) for leaf in jax.tree.leaves(spec))


def make_input_reader(
    plan: Plan, tensor: Tensor, constants: MutableMapping[Constant, Any], computed: Collection[Operation]
) -> ResultReader:
    """Returns a function that reads an input of the program, which computes these operations.

    A fed number is static if one of these operations needs that. Large constants are put on the device once, instead of
    transferred from the host in every run.
    """
    if not isinstance(tensor.op, Constant) or plan.find_feed(tensor) is not None:
        get = _make_reader(plan, tensor, {})
        is_known = plan.find_feed(tensor) is not None and tensor.graph.front_end.is_static(tensor.op, computed)
        return (lambda run: StaticArray(get(run))) if is_known else get
    if tensor.op not in constants:
        constants[tensor.op] = placement.device_put_uncommitted(tensor.op.device_value(), tensor.graph.default_sharding)
    value = get_at_path(constants[tensor.op], tensor.path)
    return lambda run: value


def make_argument_reader(
    plan: Plan, tensor: Tensor, reader: Operation, host_inputs: Sequence[TensorKey]
) -> ResultReader:
    """Returns a function that reads an argument of a host operation; `host_inputs` are keys of device values."""
    if tensor.key in host_inputs:
        index = host_inputs.index(tensor.key)
        return lambda run: run.host_inputs[index]
    get = _make_reader(plan, tensor, {}, reader)
    return _as_jax_arrays(get) if _is_source_read(plan, tensor) else get


def _make_reader(
    plan: Plan, element: Tensor | Operation, output_indices: Mapping[TensorKey, int], reader: Operation | None = None
) -> ResultReader:
    if isinstance(element, Operation) or isinstance(element.op, Group):
        return lambda run: None
    op, path = element.op, element.path
    fed = plan.find_feed(element)
    if fed is not None:
        index, rest = fed[0], path[fed[1] :]
        return (lambda run: get_at_path(run.feeds[index], rest)) if rest else lambda run: run.feeds[index]
    variable = host_counter(plan, element)
    if variable is not None:
        offset = plan.counter_delta(variable, plan.version(variable, reader)) or 0
        scalar = np.dtype(variable.dtype).type
        return lambda run: scalar(run.counters[variable] + offset)
    if element.key in output_indices:
        index = output_indices[element.key]
        return lambda run: run.outputs[index]
    if isinstance(op, Constant):
        constant = get_at_path(op.value, path)
        return lambda run: constant
    return (lambda run: get_at_path(run.host_results[op], path)) if path else lambda run: run.host_results[op]
