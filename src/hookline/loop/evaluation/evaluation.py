"""Evaluation: computes the metrics of batches, and their means."""

from __future__ import annotations

import collections
import itertools
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments, log
from hookline.coordination import process_group, progress
from hookline.data.batch_sharding import BatchSharding, outline
from hookline.data.batches import BatchSpec, LastBatch, check_last_batch, stack
from hookline.data.from_arrays import ArraySource
from hookline.data.global_batch_check import GlobalBatchCheck
from hookline.data.lazy_gather import LazyGather
from hookline.data.sequences import START, ReadRequest, num_batches_of
from hookline.data.sources import is_plain_iterator, make_sequence
from hookline.errors import FailedPreconditionError
from hookline.graph import Graph, Tensor, get_default_graph, op, placeholder, placement
from hookline.graph.nodes import spec as specs
from hookline.loop.evaluation.eval_step import MEANS, MERGED, NO_BATCH, SUMS, EvalStep, MetricTotals
from hookline.loop.metrics import flatten_metrics, warn_left_out
from hookline.loop.passes import check_batches, check_mesh, refuse_text, sharding_for
from hookline.loop.step.leaf_types import InvalidStep
from hookline.loop.step.step import trace_spec
from hookline.loop.step.step_graph import StepGraph, loop_of
from hookline.loop.step_call import function_name, required_parameters
from hookline.session import Session
from hookline.session.plan.feeds import make_feed_converter
from hookline.signals import interrupts

# The largest number of runs whose values are not yet read; each keeps its arrays on the device.
_MAX_PENDING_RUNS = 8
# The number of batches on which SPMD processes agree at a time.
_BATCHES_PER_AGREEMENT = 8

_logger = log.get_logger(__name__)
T = TypeVar("T")


class Evaluation:
    """Computes metrics over batches: with a function of a loop's state and a batch, or with tensors and feeds.

    Args:
        who: The evaluation, for messages.
        what: The function, or the tensors.
        batches: The source.
        sharding: The argument `batch_sharding` of `Evaluate`.
        last_batch: As in `Evaluate`.
        steps_per_run: The largest number of batches of one run.
        averaged: Whether the function gets moving averages instead of the averaged leaves.
        batch_size: The argument `batch_size` of `Evaluate`.

    Raises:
        TypeError: `what` is neither a function nor tensors; or `batches` is not a source of batches.
        ValueError: `batches` can be read only once.
    """

    def __init__(
        self,
        who: str,
        what: Any,
        batches: Any,
        sharding: Any = None,
        last_batch: LastBatch = "keep",
        steps_per_run: int = 1,
        averaged: bool = False,
        batch_size: Callable[[Any], float] | None = None,
    ) -> None:
        self._batch_size = arguments.check_callable("Evaluate", "batch_size", batch_size, optional=True)
        self._who, self._target, self._averaged = who, what, averaged
        self._batches_per_run = arguments.check_int("Evaluate", "steps_per_run", steps_per_run, at_least=1)
        self._tensors = _named_tensors(what) if isinstance(what, Tensor | Mapping) else None
        self._evaluate: EvalStep | None = None
        self._is_explained = False
        if batches is None and self._tensors is None:
            batches = [NO_BATCH]
        if isinstance(batches, Tensor):
            raise TypeError(
                f"{who} reads a source in each evaluation, and {batches.name} is the tensor of an iterator."
            )
        if self._tensors is None:
            required_parameters(who, what)
            check_batches(who, batches)
        if is_plain_iterator(batches):
            raise ValueError(
                f"{who} reads its batches in each evaluation, and a {type(batches).__name__} gives each only once. "
                f"Give a function that makes it, a list, or hookline.data.from_arrays."
            )
        if num_batches_of(batches) == math.inf:
            raise ValueError(
                f"{who} evaluates all batches, and these have no end. Give data that end: "
                f"hookline.data.from_arrays(..., epochs=1), or a dataset that does not repeat."
            )
        if self._tensors is not None and averaged:
            raise ValueError(f"{who} takes averaged=True with a function only. Make tensors from loop.averaged.")
        if self._tensors is not None and (sharding is not None or last_batch != "keep" or self._batches_per_run > 1):
            raise ValueError(
                f"{who} takes batch_sharding, last_batch and steps_per_run with a function. With tensors its batches "
                f"are feed dicts, which are fed unchanged: put the arrays on their devices in the source."
            )
        check_last_batch(who, last_batch)
        self._source, self._sharding = batches, sharding
        self._last_batch: LastBatch = last_batch
        self._process_group = process_group.current()
        self._sequence = make_sequence(
            batches, who, None, is_lazy=self._process_group is not None and self._tensors is None
        )
        self._must_agree = self._process_group is not None and not isinstance(batches, ArraySource)
        self._has_warned = False
        self._batch_form: BatchSpec | None = None
        self._batch_placement = BatchSharding(who)
        self._graph: Graph | None = None
        self._fetches: dict[str, dict[str, Any]] = {}
        self.may_have_more_names = False
        self._batch_placeholders: list[Tensor] = []
        self._count: Tensor | None = None
        self._feed_checks: list[Callable[[Any], Any]] = []
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        self._initial_carry: list[Any] = []
        self._carry_placeholders: list[Tensor] = []
        self._carry_out: list[Tensor] = []
        self._structure: Any = None

    def build(self) -> list[str]:
        """Adds its operations to the default graph, once; returns the names of its metrics.

        If `may_have_more_names` is set, there may be more: the names from a `compute()` that reads values are known
        only after an evaluation.

        Raises:
            TypeError: The parameters of the function, or its results, do not fit.
            ValueError: There is no batch; or a function was given, and the graph has no loop.
        """
        graph = get_default_graph()
        if self._graph is not graph:
            if self._tensors is None:
                self._fetches = self._build_metrics(loop_of(graph))
            else:
                self._fetches = self._tensors
                found = self._tensors[MEANS] | {name: total for name, (total, _) in self._tensors[SUMS].items()}
                self.shapes = {name: specs.open_shape(tensor.spec) or () for name, tensor in found.items()}
            self._graph = graph
        return list(self.shapes)

    def run_dir(self, name: str) -> str | None:
        """Returns the directory of that name in the `logdir` of the graph's loop; `None` without one."""
        loop = loop_of(get_default_graph())
        return os.path.join(loop.logdir, name) if loop is not None and loop.logdir else None

    def compute(self, session: Session, max_batches: int | None = None) -> dict[str, Any]:
        """Computes each metric over all batches: a float, or an array of NumPy.

        Args:
            session: The raw session.
            max_batches: The largest number of batches; None for all.

        Raises:
            ValueError: There is no batch; or a metric has no value, as in `MetricTotals`.
        """
        weights: list[float] = []
        step = self._evaluate
        totals = MetricTotals(self._who, step.merged if step else {}, step.accumulated if step else ())
        pending: collections.deque[tuple[int, Any]] = collections.deque()
        carried = self._initial_carry

        def read() -> None:
            count, values = pending.popleft()
            values = jax.tree.map(np.asarray, values)
            progress.count += 1
            for index in range(count):
                totals.add(values if self._count is None else jax.tree.map(operator.itemgetter(index), values))

        for sizes, row in self._run_batches(max_batches):
            weights += sizes
            feeds = {**self._feeds(row), **dict(zip(self._carry_placeholders, carried, strict=True))}
            values, left = session.run((self._fetches, self._carry_out), feeds)
            carried = [np.False_, *left] if left else []
            pending.append((len(sizes), values))
            if len(pending) > _MAX_PENDING_RUNS:
                read()
        while pending:
            read()
        may_differ = self._last_batch == "pad" or self._batch_size is not None
        if self._process_group is not None and self._batch_placement.is_part and may_differ:
            weights = [
                sum(sizes)
                for sizes in zip(*self._process_group.all_gather(f"sizes of {self._who}", weights), strict=True)
            ]
        if not sum(weights):
            if weights and self._batch_size is not None:
                raise ValueError(f"{self._who}: batch_size returned 0 for each batch, so there are no means.")
            raise self._no_batch_error()
        found = totals.result(weights)
        if not self._is_explained and max_batches is None:
            self._is_explained = True
            totals.log_combinations()
        return found

    def _build_metrics(self, loop: StepGraph | None) -> dict[str, dict[str, Any]]:
        """Builds the metrics of a function, from the state of a loop and from placeholders for a batch."""
        if loop is None:
            raise ValueError(
                f"{self._who} was given the function {function_name(self._target)}, which needs the state of a "
                f"train.Loop. With a graph of your own, give tensors, and feed dicts as batches."
            )
        state = loop.averaged if self._averaged else loop.state
        if state is None:
            raise ValueError(
                f"{self._who} requires train.Loop(..., ema=0.999) for averaged=True, and this loop has no ema."
            )
        first = self._first_batch()
        self._batch_form = None if self._last_batch == "keep" else BatchSpec(self._who, first, self._last_batch)
        example = first if self._batch_form is None else self._batch_form.fit(first)
        self._batch_placement = BatchSharding(self._who, example, self._source, self._last_batch)
        self._batch_placement.set_sharding(
            sharding_for(self._who, self._sharding, loop.mesh), is_default=self._sharding is None
        )
        check_mesh(self._who, loop.mesh, self._batch_placement)
        self._check_first_batches(example, None)
        spec = self._batch_placement.typed_spec(specs.of_value(example))
        self._evaluate = evaluate = EvalStep(self._who, self._target, loop.form, spec, loop.mesh)
        self._initial_carry = evaluate.initial_carry()
        with placement.enter_mesh(loop.graph.mesh_context):
            try:
                found = trace_spec(self._who, evaluate.name, evaluate, state.spec, spec, *self._initial_carry)
            except Exception as error:
                error.add_note(f"hookline: {evaluate}")
                raise
        rows: dict[str, dict[str, Any]] = found["rows"]
        self.shapes, self.may_have_more_names = metric_shapes(rows, evaluate.merged)
        warn_left_out(self._who, evaluate.name, evaluate.left_out)
        leaves, self._structure = jax.tree.flatten(example)
        # They have no fixed shape, because evaluation batches differ in size, above all the last one.
        self._batch_placeholders = [placeholder(leaf.dtype, name="evaluated") for leaf in leaves]
        self._feed_checks = [make_feed_converter(tensor) for tensor in self._batch_placeholders]
        batch = jax.tree.unflatten(self._structure, self._batch_placeholders)
        self._carry_placeholders = [
            placeholder(leaf.dtype, leaf.shape, name="accumulated") for leaf in self._initial_carry
        ]
        if self._batches_per_run == 1:
            found = op(evaluate)(state, batch, *self._carry_placeholders)
        else:
            self._count = placeholder("int32", [], name="count")
            found = op(evaluate.looped(self._batches_per_run))(state, batch, self._count, *self._carry_placeholders)
        self._carry_out = [found["carried"][number] for number in range(len(self._initial_carry[1:]))]
        return {
            way: {name: _split_tensor(found["rows"][way][name], each[name]) for name in each}
            for way, each in rows.items()
        }

    def _first_batch(self) -> Any:
        """Reads the first batch; in SPMD, an error in one process is raised in all."""
        try:
            first = next(self._batches(), None)
            if first is None:
                raise self._no_batch_error()
            refuse_text(self._who, first)
        except Exception as error:
            self._check_first_batches(None, error)
            raise
        return first

    def _batches(self) -> Iterator[Any]:
        return (read.batch for read in self._sequence.read(START, ReadRequest()))

    def _sized_batches(self, most: int | None) -> Iterator[tuple[float, Any]]:
        """Yields the number of examples of each batch, and the batch, padded if `last_batch` says so."""
        for number, given in enumerate(itertools.islice(self._batches(), most), start=1):
            progress.count += 1
            batch = given if self._batch_form is None else self._batch_form.fit(given)
            if batch is not None:  # None: `last_batch` drops it.
                yield self._size(given, number), batch

    # In SPMD, each run is a collective, so all processes must make the same number. They agree on 8 batches at a time:
    #
    #     batches read    process 0   process 1   gathered   each evaluates
    #     first round     8           8           [8, 8]     8
    #     second round    8           3           [8, 3]     3, and this was the last round, because 3 < 8
    #
    # Process 0 leaves out 5 batches or more, with a warning. An error is gathered as -1: its process raises it, and the
    # others raise an error that names the process.
    def _agreed_batches(
        self, found: Iterator[tuple[float, Any]], others: process_group.ProcessGroup
    ) -> Iterator[tuple[float, Any]]:
        """Yields the same number of batches in all SPMD processes."""
        while True:
            row, error = _take_some(found)
            counts = [len(row)]
            if self._must_agree:
                counts = others.all_gather(f"batches of {self._who}", -1 if error else len(row))
            if error is not None:
                raise error
            if -1 in counts:
                raise FailedPreconditionError.from_message(
                    f"{self._who}: process {counts.index(-1)} could not read its batches."
                )
            yield from row[: min(counts)]
            if min(counts) < _BATCHES_PER_AGREEMENT:
                self._warn_left_out(counts)
                return

    def _check_first_batches(self, first: Any, error: Exception | None) -> None:
        """Checks that the first batches of the SPMD processes are parts of one global batch."""
        if self._process_group is None:
            return
        global_check = GlobalBatchCheck(
            self._process_group, self._who, self._source, self._batch_placement, lambda _: math.inf, check_disjoint=True
        )
        _, refused = global_check.agree(self._who, first, START, error if first is None else None)
        if refused is not None and error is None:
            raise refused

    def _warn_left_out(self, counts: list[int]) -> None:
        if len(set(counts)) > 1 and not self._has_warned and process_group.is_primary():
            self._has_warned = True
            _logger.warning(
                "%s: process %d has fewer batches than others; the last %d or more batches of those are left out.",
                self._who,
                counts.index(min(counts)),
                max(counts) - min(counts),
            )

    def _cast_leaves(self, leaves: list[Any]) -> list[Any]:
        """Returns the arrays of a batch, checked and cast for the placeholders."""
        return [
            leaf if isinstance(leaf, LazyGather) and leaf.dtype == tensor.dtype else check(leaf)
            for tensor, check, leaf in zip(self._batch_placeholders, self._feed_checks, leaves, strict=True)
        ]

    def _run_batches(self, most: int | None) -> Iterator[tuple[list[float], list[Any]]]:
        """Yields the batches of each run, all of the same shapes and dtypes, with their numbers of examples."""
        sizes: list[float] = []
        row: list[Any] = []
        shapes: Any = None
        found = self._sized_batches(most)
        for size, batch in found if self._process_group is None else self._agreed_batches(found, self._process_group):
            if self._tensors is None and (structure := jax.tree.structure(batch)) != self._structure:
                raise ValueError(
                    f"{self._who} requires batches of one structure: the first is {self._structure}, another "
                    f"{structure}."
                )
            if self._batches_per_run > 1:  # Check before they are stacked: the unused rows of a block are undefined.
                batch = jax.tree.unflatten(self._structure, self._cast_leaves(jax.tree.leaves(batch)))
            last, shapes = (
                shapes,
                None if self._batches_per_run == 1 else [np.shape(leaf) for leaf in jax.tree.leaves(batch)],
            )
            if row and (len(row) == self._batches_per_run or shapes != last):
                yield sizes, row
                sizes, row = [], []
            sizes.append(size)
            row.append(batch)
        if row:
            yield sizes, row

    def _feeds(self, row: list[Any]) -> Mapping[Any, Any]:
        """Returns the feeds for batches of the same shapes and dtypes."""
        if self._tensors is not None:
            return row[0]
        leaves = jax.tree.leaves(row[0] if self._count is None else stack(row, self._batches_per_run))
        if self._batch_placement.sharding is not None:
            leaves = self._cast_leaves(leaves)
            one = None if self._count is None else jax.tree.map(outline, row[0])
            leaves = jax.tree.leaves(self._batch_placement.device_put(jax.tree.unflatten(self._structure, leaves), one))
        feeds: dict[Any, Any] = dict(zip(self._batch_placeholders, leaves, strict=True))
        if self._count is not None:
            feeds[self._count] = np.int32(len(row))
        return feeds

    def _size(self, batch: Any, number: int) -> float:
        if self._batch_size is not None:
            return self._user_size(batch, number)
        if not set(self._fetches[MEANS]).difference(() if self._evaluate is None else self._evaluate.accumulated):
            return 1  # No metric is a mean weighted by examples.
        arrays = batch.values() if self._tensors is not None else [batch]
        lengths = {np.shape(leaf)[0] for leaf in jax.tree.leaves(list(arrays)) if np.ndim(leaf)}
        if len(lengths) > 1:
            raise ValueError(
                f"{self._who} weights batches by their number of examples, the common length of their arrays; one has "
                f"arrays of the lengths {sorted(lengths)}. Give Evaluate batch_size=, a function of a batch; or have "
                f"each metric be a pair, {{'loss': (sum, weight)}}."
            )
        return lengths.pop() if lengths else 1

    def _user_size(self, batch: Any, number: int) -> float:
        """Returns the number of examples that the user's function counts in a batch."""
        assert self._batch_size is not None, "The caller has checked it."
        arrays = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, LazyGather) else leaf, batch)
        try:
            size = interrupts.call_user_function(self._batch_size, arrays)
        except Exception as error:
            error.add_note(f"hookline: while {self._who} called batch_size with batch {number}")
            raise
        found = np.asarray(size)
        is_number = any(jnp.issubdtype(found.dtype, kind) for kind in (np.integer, np.floating))
        if found.ndim or not is_number or not 0 <= found < math.inf:
            raise ValueError(
                f"{self._who}: batch_size returned {size!r} for batch {number} of the evaluation, and it must be a "
                f"finite number, 0 or more."
            )
        return found.item()

    def _no_batch_error(self) -> ValueError:
        return ValueError(f"{self._who} requires at least one batch, and there is none.")


def _take_some(found: Iterator[T]) -> tuple[list[T], Exception | None]:
    """Returns the next few items of an iterator, and its error, if it raises one."""
    row: list[T] = []
    try:
        for item in itertools.islice(found, _BATCHES_PER_AGREEMENT):
            row.append(item)
    except Exception as error:
        return row, error
    return row, None


def _split_tensor(tensor: Any, spec: Any) -> Any:
    """Splits the tensor of a list of arrays into tensors; returns that of a single array as it is."""
    return [tensor[index] for index in range(len(spec))] if isinstance(spec, list) else tensor


def metric_shapes(rows: Mapping[str, Mapping[str, Any]], merged: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Returns the shapes of metrics by name, and whether more names may come from a `compute()` that reads values."""
    shapes = {name: spec.shape for name, spec in rows[MEANS].items()}
    shapes |= {name: spec.shape for name, (spec, _) in rows[SUMS].items()}
    left_out: dict[str, str] = {}

    def compute(leaves: Mapping[str, Any]) -> dict[str, Any]:
        found, reasons = flatten_metrics({name: merged[name].unflatten(each) for name, each in leaves.items()})
        left_out.update(reasons)
        return found

    try:
        computed = jax.eval_shape(compute, rows[MERGED])
    except InvalidStep:
        raise
    except Exception:  # `compute` is called on the host, where it may read values.
        return shapes, True
    return shapes | {name: spec.shape for name, spec in computed.items()}, bool(left_out)


def _named_tensors(what: Any) -> dict[str, dict[str, Any]]:
    """Returns tensors by name, and pairs of them, `(sum, weight)`; a single tensor has the name of its operation."""
    found: dict[str, dict[str, Any]] = {MEANS: {}, SUMS: {}}

    def take(what: Any, name: str) -> None:
        if isinstance(what, Tensor):
            found[MEANS][name or what.op.name] = what
        elif type(what) is tuple and len(what) == 2 and all(isinstance(part, Tensor) for part in what):
            found[SUMS][name] = list(what)
        elif isinstance(what, Mapping):
            for key, part in what.items():
                take(part, f"{name}/{key}" if name else str(key))
        else:
            raise TypeError(
                f"Evaluate requires a function, or tensors and pairs of them, (sum, weight), nested in dicts, got "
                f"{what!r} at {name!r}."
            )

    take(what, "")
    return found
