"""StepGraph: builds the graph of a train step."""

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
from hookline.data.epochs import Epochs
from hookline.data.sources import is_plain_iterator
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
from hookline.hooks.epochs import EPOCH, Epoch
from hookline.loop.in_memory_checkpoint import StateValues
from hookline.loop.load import STATE
from hookline.loop.metric_hooks import RecentMeans
from hookline.loop.metrics import warn_left_out
from hookline.loop.passes import Passes, build_batches, check_batches, first_spec, has_other_devices
from hookline.loop.step.hyperparameters import HyperparametersHook, learning_rates_of
from hookline.loop.step.moving_averages import MovingAverages
from hookline.loop.step.optimizer_state import hyperparameters
from hookline.loop.step.optimizer_steps import CounterHook, OptimizerSteps, find_step_counter
from hookline.loop.step.state_forms import NnxState, PytreeState, accumulator_mask, is_function, state_form
from hookline.loop.step.step import Step
from hookline.loop.step_call import required_parameters
from hookline.session import Session, SessionConfig

_logger = log.get_logger(__name__)


_LOOPS = "hookline/loop"
"""The name of the graph's collection (a named list of objects) that contains its loop, at most one."""


class StepGraph:
    """The graph of a train step: the step is an operation, its state a variable, its batches come from an iterator.

    It is the part of `Loop` that is the same for all calls of `Loop.run`, and the only part that `Evaluate` needs.
    `Loop` documents the arguments, attributes and errors.
    """

    logdir: str | None = None
    """The directory of the summaries of the last `Loop.run`, which sets it; None in `Evaluate`."""

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
        smoothing_steps: int | Epoch | None = None,
        reset_metrics_steps: int | Epoch | None = 100,
    ) -> None:
        self.steps_per_run = arguments.check_int("Loop", "steps_per_run", steps_per_run, at_least=1)
        self._config = arguments.check_optional("Loop", "config", config, SessionConfig)
        if reset_metrics_steps is not None and reset_metrics_steps != EPOCH:
            arguments.check_int("Loop", "reset_metrics_steps", reset_metrics_steps, at_least=1)
        self.form = state_form(state, required_parameters("Loop", train_step), has_batch=batches is not None)
        if seed is not None:
            arguments.check_int("Loop", "seed", seed)
        self.graph = batches.graph if isinstance(batches, Tensor) else Graph()
        if self.graph.get_collection(_LOOPS):
            raise ValueError(
                "Loop requires a graph without another Loop, and the graph of this iterator has one. Make the iterator "
                "of the second Loop in another graph, `with hookline.Graph().as_default():`."
            )
        if batches is not None and not isinstance(batches, Tensor):
            check_batches("Loop", batches)
        self._sharding_cache: tuple[Any, list[Any]] | None = None
        shardings = self._shardings(sharding)
        state_mesh = placement.common_mesh(shardings, "Loop: the state")
        with self.graph.as_default():
            self._batch = build_batches(batches, state_mesh, batch_sharding, last_batch, resume=resume_data)
            self._is_one_shot = is_plain_iterator(batches) and resume_data
            self._passes = Passes(self._batch)
            self._reset_steps = reset_metrics_steps
            self._check_reset_steps(self._passes.epochs())
            if reset_metrics_steps == EPOCH:
                self._step = Step("Loop", train_step, self.form, self._passes.steps_per_epoch(), reset_at=0)
            else:
                self._step = Step("Loop", train_step, self.form, reset_metrics_steps)
            self.graph.record_shardings("Loop", [*shardings, placement.current_mesh_context()])
            self.mesh: jax.sharding.Mesh | None = getattr(self.graph.default_sharding, "mesh", None)
            self._build(self._batch, seed, sharding)
            self._build_updates(ema, learning_rate, steps_per_update, smoothing_steps)
            self.graph.add_to_collection(_LOOPS, self)

    __init__.__qualname__ = "Loop"  # The name in Python's errors for wrong arguments.

    def _check_reset_steps(self, epochs: Epochs | str) -> None:
        """Raises `ValueError` unless `reset_metrics_steps="epoch"`, a count from step 0, agrees with the epochs."""
        if self._reset_steps != EPOCH:
            return
        if isinstance(epochs, Epochs) and epochs.end % epochs.steps:
            epochs = f"it counts from step 0, and an epoch of {epochs.steps} steps ends at {epochs.end}. Give a number"
        if isinstance(epochs, str):
            raise ValueError(f"Loop cannot reset metrics at each epoch, reset_metrics_steps='epoch': {epochs}.")

    def _shardings(self, sharding: Any) -> list[Any]:
        """Returns the sharding of each array of the state; None for arrays without one."""
        # The structure changes when a trace has shown that the step changes a Python number, which then becomes an
        # array.
        values, initial_value = self.form.values, self.form.initial_value
        structure = jax.tree.structure(values)
        if self._sharding_cache is None or self._sharding_cache[0] != structure:
            if sharding is not None:
                found = rules.resolve_shardings("Loop", self.form.for_sharding_rules, sharding)
            elif is_function(initial_value):
                found = [
                    a or b
                    for a, b in zip(
                        placement.fixed_output_shardings(initial_value),
                        placement.shardings_of_spec(values),
                        strict=True,
                    )
                ]
            else:
                found = [specs.placed_sharding(leaf) for leaf in jax.tree.leaves(values)]
            self._sharding_cache = structure, found
        return self._sharding_cache[1]

    def _build(self, batch: Tensor | None, seed: int | None, sharding: Any) -> None:
        placed = lambda spec: placement.with_explicit_shardings(spec, self._shardings(sharding))  # noqa: E731
        with placement.enter_mesh(self.graph.mesh_context):
            self._example = first_spec(batch)
            _, metrics = self._step.spec(self._example, placed)
        shardings, state_shardings = self._shardings(sharding), None
        if any(given is not None for given in shardings):
            complete = [given or self.graph.default_sharding for given in shardings]
            state_shardings = jax.tree.structure(self.form.values).unflatten(complete)
            warn_replicated(self.form.values, shardings)
        if summarized := self._step.call_summary:
            _logger.info("Loop: %s.", summarized)
        warn_left_out("Loop", self._step.name, self._step.left_out)
        warn_weak_types(self.form, self._step.name)
        warn_unchanged(self.form, self._step.name)
        log_devices(state_shardings)
        if self.graph.default_sharding is None and not has_other_devices(batch):
            warn_one_device()
        self.state = Variable(self.form.initial_value, name=STATE, trainable=False, sharding=state_shardings)
        self._step_counter = found = find_step_counter(self.form.values, self.form.parts.values())
        step = get_global_step()
        if step is None:
            step = create_global_step()
            if found is not None:
                step.initialize_from(
                    op(lambda value: value.astype(step.dtype))(found.tensor_in(self.state.initial_value))
                )
        # After the state and the batch: the global step and a random key. `.node` adds an operation even if no argument
        # is a tensor.
        more: list[Any] = [step] if self._step.takes_step else []
        more += [random_key(seed)] if self._step.takes_key else []
        self._step_result = result = op(self._step).node(self.state, batch, *more)
        self.metrics: dict[str, Tensor] = {name: result[1][name] for name in metrics}
        # The sizes of the metrics that are not scalars.
        self._array_sizes = {name: spec.size for name, spec in metrics.items() if spec.shape}
        # Leaves that belong to a training run, not to the model: by default a warm start does not restore them.
        self._training_paths = [] if found is None else [found.path]
        # All leaves with their paths, and whether each belongs to a metric.
        metrics_in = zip(paths.flatten_with_paths(self.form.values)[0], accumulator_mask(self.form), strict=True)
        self._training_paths += [path for (path, _), is_metric in metrics_in if is_metric]

    def _build_updates(
        self, ema: Any, schedule: Any, steps_per_update: Any, smoothing_steps: int | Epoch | None
    ) -> None:
        """Adds moving averages, recent means, learning rates and counters, and groups all updates into `train_op`.

        The moving averages are of the state (`ema`), the recent means of the metrics (`smoothing_steps`).
        """
        step = get_global_step()
        assert step is not None, "_build has made it."
        updates: list[Any] = [self.state.assign(self._step_result[0])]
        self.means: dict[str, Tensor] = {}
        self._recent_means: RecentMeans | None = None
        if smoothing_steps == EPOCH:
            epochs = self._passes.epochs()
            if isinstance(epochs, str):
                raise ValueError(f"Loop cannot average the metrics of an epoch, smoothing_steps='epoch': {epochs}.")
            smoothing_steps = epochs.steps
        if smoothing_steps is not None:
            self._recent_means = RecentMeans(
                self.metrics, arguments.check_int("Loop", "smoothing_steps", smoothing_steps, at_least=1)
            )
            self.means = self._recent_means.means
            updates.append(self._recent_means.update_op)
        # By path, the leaf index of each hyperparameter.
        indices = hyperparameters(self.state.spec)
        self._hyperparameters = HyperparametersHook(self.state, self.form.initial_value, indices) if indices else None
        new_state = self._step_result[0]
        # The parameters of the step, by the keys of their parts of the state.
        names = {str(key): name for name, key in self.form.parts.items() if key is not None and name.isidentifier()}
        self._optimizer_steps = steps = OptimizerSteps(steps_per_update, self.state, new_state, step, names)
        counter = self._step_counter
        counter_hook = (
            None if counter is None else CounterHook(counter.tensor_in(new_state), counter.path, steps.updates_at)
        )
        self._counter_hooks = counter_hook, steps.check_hook()
        self._averages = None if ema is None else MovingAverages(ema, self.state, new_state, self.form, steps)
        if self._averages is not None:
            updates.append(self._averages.update_op)
        self._returned_metrics = list(self.metrics)
        rates = learning_rates_of(schedule, self.state, new_state, step, counter, names)
        if schedule is not None and (double := rates.keys() & self.metrics):
            raise ValueError(
                f"Loop was given a learning_rate, but the step returns a metric of that name already: {double.pop()}."
            )
        added = rates | steps.count_tensors()
        self.metrics |= {name: number for name, number in added.items() if name not in self.metrics}
        if steps.description:
            _logger.info("Loop: %s.", steps.description)
        # The variables besides the state, by the arguments of `Loop` that add them.
        found = {
            "ema": self._averages and self._averages.variable,
            "smoothing_steps": self._recent_means and self._recent_means.buffer,
        }
        self._extra_variables = {name: variable for name, variable in found.items() if variable is not None}
        self.train_op = group(*updates, step.assign_add(1), name="train_op")
        shown = {**self.metrics, **self.means}
        self._scalar_metrics = {name: metric for name, metric in shown.items() if name not in self._array_sizes}
        # A confusion matrix of four classes fits in a line; a larger one goes into a histogram or to a hook.
        self._short_metrics = {name: metric for name, metric in shown.items() if self._array_sizes.get(name, 0) <= 16}
        for name, metric in shown.items():
            (summary.scalar if name in self._scalar_metrics else summary.histogram)(name, metric)

    def _initial_step(self) -> int:
        """Returns the step counter of the given state; 0 if it has none, or if the state is abstract."""
        counter = (
            None if self._step_counter is None else jax.tree.leaves(self.form.values)[self._step_counter.leaf_index]
        )
        return 0 if counter is None or isinstance(counter, jax.ShapeDtypeStruct) else int(counter)

    def state_in(self, session: Session) -> StateValues:
        """Returns the arrays of the state in a session, by name, to read and set between two steps.

        Args:
            session: The raw session; in a hook `firing.context.session`.
        """
        return StateValues(self.state, session)

    def step_of_update(self, update: int) -> int:
        """Returns the global step that ends an optimizer step, for `last_step` and triggers.

        Args:
            update: The number of the optimizer step, from 1; 0 is the start of the training run.

        Raises:
            TypeError: `update` is not an integer.
            ValueError: `update` is below 0; or the state has `optax.MultiSteps`, and the loop no `steps_per_update`.

        Example:
            >>> import hookline as hl, numpy as np
            >>> batches = hl.data.from_arrays(np.ones(64, np.float32), 1)
            >>> loop = hl.train.Loop(lambda w, batch: (w + 1, {}), np.zeros(()), batches, steps_per_update=4)
            >>> loop.step_of_update(10)
            40
        """
        return self._optimizer_steps.step_of(update)

    @property
    def averaged(self) -> Tensor | None:
        """The state with averages in place of the averaged leaves."""
        return None if self._averages is None else self._averages.averaged


def loop_of(graph: Graph) -> StepGraph | None:
    """Returns the loop of a graph; None if it has none."""
    return next(iter(graph.get_collection(_LOOPS)), None)


def warn_weak_types(form: PytreeState | NnxState, step: str) -> None:
    """Warns of weakly typed leaves, for which a plain `jax.jit` loop would recompile at the second step."""
    if form.retyped:
        _logger.warning(
            "Loop: the state has numbers that %s returns in another type: %s. The loop gives them that type from the "
            "start; a plain jax.jit loop would recompile at the second step. Give arrays of that type, such as "
            "jnp.zeros((), 'float32').",
            step,
            ", ".join(f"{path} ({dtype})" for path, dtype in form.retyped.items()),
        )


def warn_unchanged(form: PytreeState | NnxState, step: str) -> None:
    """Warns of parts of the state that the step does not return."""
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
    if not any(sharding is not None and not sharding.is_fully_replicated for sharding in shardings):
        return
    spec = jax.tree.leaves_with_path(specs.of_value(values))
    large = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for (path, leaf), sharding in zip(spec, shardings, strict=True)
        if sharding is None and leaf.size > 2**18
    ]
    if large:
        _logger.warning(
            "Loop: %s of the state are replicated on all devices, because they have no sharding, though other arrays "
            "are split. Give them one with sharding=.",
            ", ".join(large[:3]) + (f" and {len(large) - 3} more" if len(large) > 3 else ""),
        )


def log_devices(shardings: Any) -> None:
    """Logs the devices of the state, if there are several."""
    names = contents.device_names({device for sharding in jax.tree.leaves(shardings) for device in sharding.device_set})
    if len(names) > 1:
        _logger.info("Loop: the state is on %s, and is trained there.", contents.format_devices(names))


@functools.cache  # Once is enough, for all loops of a process.
def warn_one_device() -> None:
    """Warns that one of several devices is used, because neither the state nor the batches have a sharding."""
    default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    count = jax.local_device_count()
    if count > 1 and default is None and not placement.is_spmd():
        _logger.warning(
            "Loop: the state and the batches are on one device, %s, of %d. To train on all of them: mesh = "
            "jax.make_mesh((%d,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)); Loop(..., "
            "sharding=jax.NamedSharding(mesh, jax.P())), which also splits the batches; see 'Many devices' in "
            "hookline's documentation. To stay on one: sharding=jax.devices()[0].",
            jax.local_devices()[0],
            count,
            count,
        )
