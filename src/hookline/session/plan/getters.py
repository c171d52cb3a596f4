"""Getters: functions that find the values of a run in its feeds, host counters, program outputs and host results.

Also the values of a run that come later, as `DeferredResults`.
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
from hookline.graph.nodes.views import take_path
from hookline.graph.variable import Variable, VariableRead
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.plan.feeds import CompiledIn
from hookline.session.plan.plan import Key, Plan, input_tensors
from hookline.session.running import launches


class Run:
    """The values of one run while it is under way.

    Attributes:
        feeds: The fed values, checked.
        applied: Whether its updates are applied. It is set at once, for later parts of the run may fail.
        outputs: The outputs of the program.
        counters: The values of the host's counters before the run; in a run of several steps, before the last one.
        hosts: The results of host operations.
        pulled: The values that host operations take from the device, by their index in `Plan.pulled`.
        most, least: The number of steps that it may have, and that it must have.
        count: The number of its steps, if it may have several.
        starts: The index of each source's first batch in its block, if it may have several steps.
        options, metadata: The options of a staged run, and its metadata to be filled in.
        begun: The time when the device stage of a run with metadata began.
    """

    # No constructor: there is one of these in each run of a training loop, and a call takes time.
    # fmt: off
    __slots__ = (
        "applied", "begun", "count", "counters", "feeds", "hosts", "least", "metadata", "most", "options", "outputs",
        "pulled", "starts",
    )
    # fmt: on

    feeds: Sequence[Any]
    applied: bool
    outputs: Sequence[Any]
    counters: dict[Variable, int]
    hosts: dict[Operation, Any]
    pulled: dict[int, Any]
    most: int
    least: int
    count: int
    starts: dict[Operation, int]
    options: RunOptions | None
    metadata: RunMetadata | None
    begun: float

    def begin(self) -> None:
        """Makes room for counters and host results."""
        self.counters, self.hosts, self.pulled = {}, {}, {}


class DeferredResults:
    """The deferred results of a `late` hook's fetches.

    Reading them waits for the device, and runs the host operations of the fetches, which no run has waited for.

    Args:
        compute: Returns the results, in the structure of the fetches.
        arrays: The arrays that must arrive first.

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
        """Returns the result of a function on these results, applied when they are read."""
        return DeferredResults(lambda: function(self.get()), self._arrays)

    def is_ready(self) -> bool:
        """Returns whether the results can be read without waiting for the device."""
        # Not `all`: a generator costs more than the arrays, of which there are few.
        for array in self._arrays:  # noqa: SIM110
            if not array.is_ready():
                return False
        return True

    def get(self) -> Any:
        """Returns the results; called once.

        Raises:
            BaseException: The error of a host operation, or of the run on the device.
        """
        # Raises the error of the run: a failed array is ready, too. Others with these arrays need not wait again.
        for array in self._arrays:
            array.block_until_ready()
        self._arrays.clear()
        return self._compute()


Getter = Callable[[Run], Any]


def counter(plan: Plan, tensor: Tensor) -> Variable | None:
    """Returns the variable that `tensor` reads if the host knows its value in this run."""
    if not isinstance(tensor.op, VariableRead) or plan.fed_place(tensor) is not None:
        return None
    return tensor.op.variable if plan.is_host_known(tensor.op.variable) else None


def counters(plan: Plan, elements: Iterable[Tensor | Operation]) -> list[Variable]:
    """Returns the counters that a result or a host operation reads."""
    arguments = input_tensors((*plan.before, *plan.after), lambda tensor: True)
    tensors = [*arguments, *(element for element in elements if isinstance(element, Tensor))]
    found = (counter(plan, tensor) for tensor in tensors)
    return list(dict.fromkeys(variable for variable in found if variable is not None))


def fetch_getter(plan: Plan, element: Tensor | Operation, places: Mapping[Key, int]) -> Getter:
    """Returns a function that finds the value of a fetch; `places` gives the index of each output of the program."""
    if isinstance(element, Tensor) and isinstance(element.op, Constant) and plan.fed_place(element) is None:
        # The caller gets a JAX array, which it cannot change.
        value = take_path(element.op.on_device(), element.path)
        return lambda run: value
    get = _getter(plan, element, places)
    return _of_jax(get) if isinstance(element, Tensor) and _is_read(plan, element) else get


def _is_read(plan: Plan, tensor: Tensor) -> bool:
    return isinstance(tensor.op, Source) and plan.fed_place(tensor) is None


def _of_jax(get: Getter) -> Getter:
    """Returns a getter of the same value in JAX arrays, which are immutable: the program may still read it."""
    return lambda run: jax.tree.map(_array, get(run))


def _array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf if leaf.is_fully_addressable else _whole(leaf)
    return jax.device_put(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "OSU" else leaf


_known: dict[Any, int] = {}


def _whole(leaf: jax.Array) -> jax.Array:
    """Gathers an array that is spread over several processes, with a program that all of them launch."""
    place = jax.NamedSharding(getattr(leaf.sharding, "mesh", placement.everywhere()), jax.P())
    if (launched := launches.current()) is not None:
        kind = leaf.shape, leaf.dtype, leaf.sharding
        launched.note(_known, "the reading of a batch", kind, lambda: f"whole {kind}")
    return placement.here(placement.put(leaf, place))


def rows_getter(plan: Plan, element: Tensor | Operation, places: Mapping[Key, int], *, on_host: bool = False) -> Getter:
    """Returns a function that finds the values of a fetch in each of several steps, as rows; None for an operation.

    With `on_host` they are copied to the host: that is faster than to slice rows on the device, but waits for it.
    """
    get = fetch_getter(plan, element, places)
    if isinstance(element, Operation) or isinstance(element.op, Group):
        return get
    variable = counter(plan, element)
    if variable is not None:
        gain = np.dtype(variable.dtype).type(plan.gain(variable) or 0)
        # The run has the value from before its last step.
        return lambda run: get(run) + np.arange(1 - run.count, 1, dtype=variable.dtype) * gain
    if element.key in places:
        read = np.asarray if on_host and _is_plain(element.spec) else lambda rows: rows
        return lambda run: jax.tree.map(lambda rows: read(rows)[: run.count], get(run))
    if isinstance(element.op, Source):
        op, block = element.op, _getter(plan, element, places)
        part = lambda run: slice(run.starts[op], run.starts[op] + run.count)  # noqa: E731
        return lambda run: jax.tree.map(lambda rows: _cut(rows, part(run)), block(run))
    return lambda run: jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (run.count, *np.shape(leaf))), get(run))


def _cut(rows: Any, part: slice) -> Any:
    return _array(rows)[part] if isinstance(rows, jax.Array) else _array(rows[part])


def _is_plain(spec: Any) -> bool:
    """Returns whether a spec holds arrays of numbers alone, no random keys."""
    return spec is not specs.UNKNOWN and all(isinstance(leaf.dtype, np.dtype) for leaf in jax.tree.leaves(spec))


def input_getter(
    plan: Plan, tensor: Tensor, constants: MutableMapping[Constant, Any], computed: Collection[Operation]
) -> Getter:
    """Returns a function that finds an input of the program, which computes these operations.

    A fed number is compiled in if one of these operations needs that. Large constants are put on the device once: they
    would travel from the host on every run.
    """
    if not isinstance(tensor.op, Constant) or plan.fed_place(tensor) is not None:
        get = _getter(plan, tensor, {})
        is_known = plan.fed_place(tensor) is not None and tensor.graph.front_end.is_compiled_in(tensor.op, computed)
        return (lambda run: CompiledIn(get(run))) if is_known else get
    if tensor.op not in constants:
        constants[tensor.op] = placement.put_all(tensor.op.on_device(), tensor.graph.home)
    value = take_path(constants[tensor.op], tensor.path)
    return lambda run: value


def argument_getter(plan: Plan, tensor: Tensor, reader: Operation, pulled: Sequence[Key]) -> Getter:
    """Returns a function that finds an argument of a host operation; `pulled` are the keys of those from the device."""
    if tensor.key in pulled:
        place = pulled.index(tensor.key)
        return lambda run: run.pulled[place]
    get = _getter(plan, tensor, {}, reader)
    return _of_jax(get) if _is_read(plan, tensor) else get


def _getter(
    plan: Plan, element: Tensor | Operation, places: Mapping[Key, int], reader: Operation | None = None
) -> Getter:
    if isinstance(element, Operation) or isinstance(element.op, Group):
        return lambda run: None
    op, path = element.op, element.path
    fed = plan.fed_place(element)
    if fed is not None:
        place, rest = fed[0], path[fed[1] :]
        return (lambda run: take_path(run.feeds[place], rest)) if rest else lambda run: run.feeds[place]
    variable = counter(plan, element)
    if variable is not None:
        offset = plan.gain(variable, plan.version(variable, reader)) or 0
        scalar = np.dtype(variable.dtype).type
        return lambda run: scalar(run.counters[variable] + offset)
    if element.key in places:
        place = places[element.key]
        return lambda run: run.outputs[place]
    if isinstance(op, Constant):
        constant = take_path(op.value, path)
        return lambda run: constant
    return (lambda run: take_path(run.hosts[op], path)) if path else lambda run: run.hosts[op]
