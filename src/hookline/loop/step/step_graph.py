"""StepGraph: a train step as a graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax

from hookline import arguments, log, summary
from hookline import sharding as rules
from hookline.checkpoint.directory import leaves as paths
from hookline.checkpoint.saving import contents
from hookline.data.batches import LastBatch
from hookline.data.sources import is_one_shot
from hookline.graph import (
    Graph,
    Tensor,
    Variable,
    create_global_step,
    get_global_step,
    group,
    op,
    placement,
    random_key,
)
from hookline.graph.nodes import spec as specs
from hookline.loop.call import required
from hookline.loop.load import STATE
from hookline.loop.memory import StateValues
from hookline.loop.metric_hooks import RecentMeans
from hookline.loop.metrics import warn_left_out
from hookline.loop.passes import Passes, are_placed, batches_of, check_batches, first_spec
from hookline.loop.step.averages import Averages
from hookline.loop.step.forms import NnxObjects, Tree, accumulating, form_of, is_function
from hookline.loop.step.hyperparameters import HyperparametersHook, learning_rates_of
from hookline.loop.step.optimizer_state import hyperparameters
from hookline.loop.step.optimizer_steps import CounterHook, OptimizerSteps, counter_in
from hookline.loop.step.step import Step
from hookline.session import Session, SessionConfig

_logger = log.of(__name__)


_LOOPS = "hookline/loop"
"""The collection with the loop of a graph."""


class StepGraph:
    """A train step as one operation of a graph, its state as a variable, its batches as an iterator.

    It is the part of `Loop` that is built once, and all that an evaluation needs of one. `Loop` documents the
    arguments, attributes and errors.
    """

    logdir: str | None = None

    def __init__(
        self,
        train_step: Any,
        state: Any,
        batches: Any,
        *,
        sharding: Any = None,
        seed: int | None = None,
        batch_sharding: Any = None,
        last_batch: LastBatch = "keep",
        resume_data: bool = True,
        steps_per_run: int = 1,
        config: SessionConfig | None = None,
        ema: float | Mapping[str, float] | None = None,
        learning_rate: Any = None,
        steps_per_update: Any = None,
        mean_over: int | None = None,
        reset_metrics_steps: int | None = 100,
    ) -> None:
        self.steps_per_run = arguments.whole("Loop", "steps_per_run", steps_per_run, at_least=1)
        self._config = arguments.instance("Loop", "config", config, SessionConfig)
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
        self._layout: tuple[Any, list[Any]] | None = None
        shardings = self._shardings(sharding)
        of_state = placement.mesh_of(shardings, "Loop: the state")
        with self.graph.as_default():
            self._batch = batches_of(batches, of_state, batch_sharding, last_batch, resume=resume_data)
            self._is_one_shot = is_one_shot(batches) and resume_data
            self._passes = Passes(self._batch)
            self.graph.settle("Loop", [*shardings, placement.current()])
            self.mesh: jax.sharding.Mesh | None = getattr(self.graph.home, "mesh", None)
            self._build(self._batch, seed, sharding)
            self._build_more(ema, learning_rate, steps_per_update, mean_over)
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
            warn_replicated(self.form.values, shardings)
        if summarized := self._step.call_summary:
            _logger.info("Loop: %s.", summarized)
        warn_left_out("Loop", self._step.name, self._step.left_out)
        warn_weak_types(self.form, self._step.name)
        warn_unchanged(self.form, self._step.name)
        log_devices(places)
        if self.graph.home is None and not are_placed(batch):
            warn_one_device()
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

    def _build_more(self, ema: Any, schedule: Any, steps_per_update: Any, mean_over: int | None) -> None:
        """Adds what counts and averages, hyperparameters, learning rates, and groups all updates in `train_op`."""
        step = get_global_step()
        assert step is not None, "_build has made it."
        updates: list[Any] = [self.state.assign(self._after[0])]
        self.means: dict[str, Tensor] = {}
        self._recent: RecentMeans | None = None
        if mean_over is not None:
            self._recent = RecentMeans(self.metrics, arguments.whole("Loop", "mean_over", mean_over, at_least=1))
            self.means = self._recent.means
            updates.append(self._recent.moved)
        places = hyperparameters(self.state.spec)
        self._hyperparameters = HyperparametersHook(self.state, self.form.start, places) if places else None
        after = self._after[0]
        names = {str(key): name for name, key in self.form.parts.items() if key is not None and name.isidentifier()}
        self._steps = steps = OptimizerSteps(steps_per_update, self.state, after, step, names)
        counter = self._counted
        of_state = None if counter is None else CounterHook(counter.of(after), counter.path, steps.made)
        self._counters = of_state, steps.hook()
        self._averages = None if ema is None else Averages(ema, self.state, after, self.form, steps)
        if self._averages is not None:
            updates.append(self._averages.moved)
        self._returned = list(self.metrics)
        rates = learning_rates_of(schedule, self.state, after, step, counter, names)
        if schedule is not None and (double := rates.keys() & self.metrics):
            raise ValueError(
                f"Loop was given a learning_rate, but the step returns a metric of that name already: {double.pop()}."
            )
        added = rates | steps.numbers()
        self.metrics |= {name: number for name, number in added.items() if name not in self.metrics}
        if steps.told:
            _logger.info("Loop: %s.", steps.told)
        # The variables that a step carries beside the state, by the names of their arguments.
        found = {"ema": self._averages and self._averages.variable, "mean_over": self._recent and self._recent.ring}
        self._beside = {name: variable for name, variable in found.items() if variable is not None}
        self.train_op = group(*updates, step.assign_add(1), name="train_op")
        shown = {**self.metrics, **self.means}
        self._numbers = {name: metric for name, metric in shown.items() if name not in self._sizes}
        # A confusion matrix of four classes fits in a line; a larger one goes into a histogram or to a hook.
        self._short = {name: metric for name, metric in shown.items() if self._sizes.get(name, 0) <= 16}
        for name, metric in shown.items():
            (summary.scalar if name in self._numbers else summary.histogram)(name, metric)

    def _given_step(self) -> int:
        """Returns the global step of the given state, as far as it is known without making the state."""
        counter = None if self._counted is None else jax.tree.leaves(self.form.values)[self._counted.place]
        return 0 if counter is None or isinstance(counter, jax.ShapeDtypeStruct) else int(counter)

    def state_in(self, session: Session) -> StateValues:
        """Returns the arrays of the state in a session, by name, to read and set between two steps.

        Args:
            session: The raw session; in a hook `firing.context.session`.
        """
        return StateValues(self.state, session)

    def step_of_update(self, update: int) -> int:
        """Returns the global step that ends an optimizer step, for `last_step` and cadences.

        Args:
            update: The number of the optimizer step, from 1.

        Raises:
            TypeError: `update` is no whole number.
            ValueError: `update` is below 0; or the state has `optax.MultiSteps`, and the loop no `steps_per_update`.

        Example:
            >>> import hookline as hl, numpy as np
            >>> batches = hl.data.arrays(np.ones(64, np.float32), 1)
            >>> loop = hl.train.Loop(lambda w, batch: (w + 1, {}), np.zeros(()), batches, steps_per_update=4)
            >>> loop.step_of_update(10)
            40
        """
        return self._steps.step_of(update)

    @property
    def averaged(self) -> Tensor | None:
        """The state with averages in place of the averaged leaves."""
        return None if self._averages is None else self._averages.averaged


def loop_of(graph: Graph) -> StepGraph | None:
    """Returns the loop of a graph; None if it has none."""
    return next(iter(graph.get_collection(_LOOPS)), None)


def warn_weak_types(form: Tree | NnxObjects, step: str) -> None:
    """Warns of numbers without a fixed type for which a hand-written loop compiles its second step again."""
    if form.recompiling:
        _logger.warning(
            "Loop: the state has numbers that %s returns in another type: %s. Here they have it from the start; a "
            "hand-written loop would compile its second step again. Give arrays of that type, such as "
            "jnp.zeros((), 'float32').",
            step,
            ", ".join(f"{path} ({dtype})" for path, dtype in form.recompiling.items()),
        )


def warn_unchanged(form: Tree | NnxObjects, step: str) -> None:
    """Warns of parts of the state that do not come back from the step."""
    if form.unchanged:
        first = form.unchanged[0]
        _logger.warning(
            "Loop: %s does not return %s of the state, so %s as given. If that is meant, return it unchanged, or bind "
            "it: functools.partial(%s, %s=%s).",
            step,
            ", ".join(form.unchanged),
            "it stays" if len(form.unchanged) == 1 else "they stay",
            step,
            first,
            first,
        )


def warn_replicated(values: Any, shardings: list[Any]) -> None:
    """Warns of large arrays that are replicated on all devices because they have no sharding."""
    if not any(place is not None and not place.is_fully_replicated for place in shardings):
        return
    spec = jax.tree.leaves_with_path(specs.of_value(values))
    large = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for (path, leaf), place in zip(spec, shardings, strict=True)
        if place is None and leaf.size > 2**18
    ]
    if large:
        _logger.warning(
            "Loop: %s of the state are replicated on all devices, because they have no sharding, though other arrays "
            "are split. Give them one with sharding=.",
            ", ".join(large[:3]) + (f" and {len(large) - 3} more" if len(large) > 3 else ""),
        )


def log_devices(places: Any) -> None:
    """Logs the devices of the state, if there are several."""
    names = contents.device_names({device for place in jax.tree.leaves(places) for device in place.device_set})
    if len(names) > 1:
        _logger.info("Loop: the state is on %s, and is trained there.", contents.shown_devices(names))


@functools.cache  # Once is enough, for all loops of a process.
def warn_one_device() -> None:
    """Warns that one of several devices is used, because neither the state nor the batches have a sharding."""
    default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    count = jax.local_device_count()
    if count > 1 and default is None and not placement.is_in_step():
        _logger.warning(
            "Loop: the state and the batches are on one device, %s, of %d. To train on all of them: mesh = "
            "jax.make_mesh((%d,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)); Loop(..., "
            "sharding=jax.NamedSharding(mesh, jax.P())), which also splits the batches; see docs/devices.md. To stay "
            "on one: sharding=jax.devices()[0].",
            jax.local_devices()[0],
            count,
            count,
        )
