"""StepGraph: a train step as a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from hookline import arguments, log, summary
from hookline import sharding as rules
from hookline.checkpoint import leaves as paths
from hookline.data.batches import LastBatch
from hookline.graph import (
    Graph,
    GraphKeys,
    Tensor,
    Variable,
    create_global_step,
    get_global_step,
    group,
    op,
    placement,
    random_key,
)
from hookline.graph import spec as specs
from hookline.loop import state_warnings
from hookline.loop.averages import Averages
from hookline.loop.batches import are_placed, batches_of, check_batches, first_spec
from hookline.loop.call import required
from hookline.loop.checkpoint_lookup import STATE
from hookline.loop.counter import CounterHook, counter_in
from hookline.loop.forms import accumulating, form_of, is_function
from hookline.loop.hyperparameters import HyperparametersHook
from hookline.loop.learning_rate import NAME as RATE
from hookline.loop.learning_rate import learning_rate_of
from hookline.loop.metrics import warn_left_out
from hookline.loop.recent_means import RecentMeans
from hookline.loop.step import Step

_logger = log.of(__name__)

_LOOPS = "hookline/loop"
"""The collection with the loop of a graph."""


class StepGraph:
    """A train step as one operation of a graph, its state as a variable, its batches as an iterator.

    It is the part of `Loop` that is built once; `Loop` documents the arguments, attributes and errors.
    """

    def __init__(
        self,
        train_step: Any,
        state: Any,
        batches: Any,
        *,
        sharding: Any,
        seed: int | None,
        batch_sharding: Any,
        last_batch: LastBatch,
        resume_data: bool,
        ema: float | Mapping[str, float] | None,
        learning_rate: Any,
        mean_over: int | None,
        reset_metrics_steps: int | None,
    ) -> None:
        if reset_metrics_steps is not None:
            arguments.whole("Loop", "reset_metrics_steps", reset_metrics_steps, at_least=1)
        self.form = form_of(state, required("Loop", train_step), has_batch=batches is not None)
        self._step = Step("Loop", train_step, self.form, reset_metrics_steps)
        if seed is not None:
            arguments.whole("Loop", "seed", seed)
        self.graph = batches.graph if isinstance(batches, Tensor) else Graph()
        if self.graph.get_collection(_LOOPS):
            raise ValueError("Loop requires a graph without another Loop: make its iterator in a graph of its own.")
        if batches is not None and not isinstance(batches, Tensor):
            check_batches("Loop", batches)
        self.logdir: str | None = None
        self._layout: tuple[Any, list[Any]] | None = None
        shardings = self._shardings(sharding)
        of_state = placement.mesh_of(shardings, "Loop: the state")
        with self.graph.as_default():
            self._batch = batches_of(batches, of_state, batch_sharding, last_batch, resume=resume_data)
            self.graph.settle("Loop", [*shardings, placement.current()])
            self.mesh: jax.sharding.Mesh | None = getattr(self.graph.home, "mesh", None)
            self._build(self._batch, seed, sharding)
            self._build_more(ema, learning_rate, mean_over)
            self.graph.add_to_collection(_LOOPS, self)

    def _shardings(self, sharding: Any) -> list[Any]:
        """Returns the sharding of each array of the state; None for arrays without one."""
        values, start = self.form.values, self.form.start
        structure = jax.tree.structure(values)
        if self._layout is None or self._layout[0] != structure:
            if sharding is not None:
                found = rules.checked("Loop", self.form.shown, sharding)
            elif is_function(start):
                found = [a or b for a, b in zip(placement.fixed(start), placement.of_spec(values), strict=True)]
            else:
                found = [specs.place_of(leaf) for leaf in jax.tree.leaves(values)]
            self._layout = structure, found
        return self._layout[1]

    def _build(self, batch: Tensor | None, seed: int | None, sharding: Any) -> None:
        placed = lambda spec: placement.with_places(spec, self._shardings(sharding))  # noqa: E731
        with placement.inside(self.graph.context):
            self._example = first_spec(batch)
            _, metrics = self._step.spec(self._example, placed)
        shardings, places = self._shardings(sharding), None
        if any(place is not None for place in shardings):
            whole = [place or self.graph.home for place in shardings]
            places = jax.tree.structure(self.form.values).unflatten(whole)
            state_warnings.warn_replicated(self.form.values, shardings)
        if summarized := self._step.call_summary:
            _logger.info("Loop: %s.", summarized)
        warn_left_out("Loop", self._step.name, self._step.left_out)
        state_warnings.warn_weak_types(self.form, self._step.name)
        state_warnings.warn_unchanged(self.form, self._step.name)
        state_warnings.log_devices(places)
        if self.graph.home is None and not are_placed(batch):
            state_warnings.warn_one_device()
        self.state = Variable(self.form.start, name=STATE, trainable=False, sharding=places)
        self._counted = found = counter_in(self.form.values, self.form.parts.values())
        step = get_global_step()
        if step is None:
            step = create_global_step()
            if found is not None:
                step.initialize_from(op(lambda value: value.astype(step.dtype))(found.of(self.state.initial_value)))
        more: list[Any] = [step] if self._step.takes_step else []
        more += [random_key(seed)] if self._step.takes_key else []
        self._after = after = op(self._step).node(self.state, batch, *more)
        self.metrics: dict[str, Tensor] = {name: after[1][name] for name in metrics}
        # Of metrics that are arrays.
        self._sizes = {name: spec.size for name, spec in metrics.items() if spec.shape}
        self._of_training = [] if found is None else [found.path]
        metrics_in = zip(paths.with_paths(self.form.values)[0], accumulating(self.form), strict=True)
        self._of_training += [path for (path, _), is_metric in metrics_in if is_metric]
        self._counter = None if found is None else CounterHook(found.of(after[0]), found.path)

    def _build_more(self, ema: Any, schedule: Any, mean_over: int | None) -> None:
        """Adds means, averages, hyperparameters and the learning rate, and groups all updates in `train_op`."""
        step = get_global_step()
        assert step is not None, "_build has made it."
        updates: list[Any] = [self.state.assign(self._after[0])]
        self.means: dict[str, Tensor] = {}
        self._recent: RecentMeans | None = None
        if mean_over is not None:
            self._recent = RecentMeans(self.metrics, arguments.whole("Loop", "mean_over", mean_over, at_least=1))
            self.means = self._recent.means
            updates.append(self._recent.moved)
        self._hyperparameters = HyperparametersHook(self.state, self.form.start)
        self._averages = None if ema is None else Averages(ema, self.state, self._after[0], self.form)
        if self._averages is not None:
            updates.append(self._averages.moved)
        self._returned = list(self.metrics)
        rate = learning_rate_of(schedule, self.state, self._after[0], step, self._counted)
        if rate is not None and (schedule is not None or RATE not in self.metrics):
            if RATE in self.metrics:
                raise ValueError("Loop was given a learning_rate, but the step returns a metric of that name already.")
            self.metrics[RATE] = rate
        # The variables that a step carries beside the state, by the names of their arguments.
        found = {"ema": self._averages and self._averages.variable, "mean_over": self._recent and self._recent.ring}
        self._beside = {name: variable for name, variable in found.items() if variable is not None}
        self.train_op = group(*updates, step.assign_add(1), name="train_op")
        self.graph.add_to_collection(GraphKeys.TRAIN_OP, self.train_op)
        shown = {**self.metrics, **self.means}
        self._numbers = {name: metric for name, metric in shown.items() if name not in self._sizes}
        # A confusion matrix of four classes fits in a line; a larger one goes into a histogram or to a hook.
        self._short = {name: metric for name, metric in shown.items() if self._sizes.get(name, 0) <= 16}
        for name, metric in shown.items():
            (summary.scalar if name in self._numbers else summary.histogram)(name, metric)

    @property
    def averaged(self) -> Tensor | None:
        """The state with averages in place of the averaged leaves."""
        return None if self._averages is None else self._averages.averaged


def loop_of(graph: Graph) -> StepGraph | None:
    """Returns the loop of a graph; None if it has none."""
    return next(iter(graph.get_collection(_LOOPS)), None)
