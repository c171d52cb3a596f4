"""Loop: a train step, run under a monitored session."""

from __future__ import annotations

import difflib
import inspect
import logging
import sys
from collections.abc import Iterable
from typing import Any

import jax

from hookline import arguments, summary
from hookline import sharding as rules
from hookline.checkpoint import devices, latest_checkpoint, list_variables, load_variable
from hookline.data.batches import LastBatch
from hookline.data.sources import is_one_shot
from hookline.errors import FailedPreconditionError
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
from hookline.graph.nodes import Source
from hookline.hooks import (
    Firing,
    LoggingTensorHook,
    NanTensorHook,
    ProgressHook,
    SessionRunHook,
    StepCounterHook,
    StopAtStepHook,
    Trigger,
    spaced,
)
from hookline.hooks.when import bare
from hookline.loop.batches import BATCHES, batches_of, check_batches, first_spec
from hookline.loop.counter import CounterHook, counter_in
from hookline.loop.description import (
    LoopDescription,
    form_of_batch,
    parts_of,
    place_of,
    programs_of,
    written_by,
)
from hookline.loop.forms import form_of, is_function
from hookline.loop.metrics import ALONE
from hookline.loop.step import Step
from hookline.monitored import MonitoredSession, MonitoredTrainingSession
from hookline.monitored.callbacks import checked_hooks
from hookline.monitored.cost_report import CostReport
from hookline.monitored.training_session import usual_hooks
from hookline.session import Session

_logger = logging.getLogger(__name__)

_LOOPS = "hookline/loop"
# Arguments of `Loop.session` that are not handed on.
_OWN = {"hooks", "progress", "log_steps", "watch", "on_nan"}
# Arguments of a session that a loop does not take.
_OF_GRAPHS = ("master", "is_chief")
STATE = "state"
"""What the variable of the state is called, and so what checkpoints call it."""


class Loop:
    """A train step as you have it, run under a monitored session and hooks.

    `train_step(state, batch)` returns the new state and metrics. It becomes one operation of a graph, its state one
    variable called `state`, its batches an iterator; so checkpoints, resume, recovery, preemption, summaries and every
    hook work on it as on any graph. One more required positional parameter gets a random key, another one in each step.

    The state is any pytree: a `TrainState`, a dict, Equinox modules, the functional form of Flax NNX. Leaves that are
    no arrays stay outside of the variable. A tuple of NNX objects is spread: `train_step(model, optimizer, batch)`
    changes them and returns its metrics alone; when a run is over, the objects that were given hold what came of it.

    The step must be traceable, jitted or not. Metrics are a dict, nested if you like, a named tuple, a dataclass, or
    one number, which is then called `loss`; of an object with `compute()` that is taken.

    Args:
        train_step: The step.
        state: What it begins with, unless there is a checkpoint; or a function that makes it. Arrays are copied, and a
            step may donate them. What a function makes is made where it lives, so that it is there once: with arrays
            you hold the state that you gave, beside the one that is trained.
        batches: Whatever `hookline.data.iterator` takes: a function that makes an iterable, an iterable, an iterator.
            Or the tensor that it returned, for its options: the loop is then built in the graph of that.
        sharding: Where the state lives, as of `hookline.Variable`; by default where its arrays lie.
        seed: Of the random keys.
        batch_sharding: Where batches are put, as `sharding` of `iterator`; a `PartitionSpec` is one on the mesh of the
            state. By default the first dimension of each array is split over the axis `data` of that mesh, if it has
            one.
        last_batch: As of `iterator`. With "pad" the step gets a pair of the batch and a mask of its real examples,
            `(x, y), mask = batch`.
        steps_per_run: How many steps one run makes at most, as of `MonitoredTrainingSession`. For short steps: see
            docs/loop.md.

    Attributes:
        graph: The graph; one of its own unless `batches` is a tensor. What hooks fetch beside the metrics is made in
            it: `with loop.graph.as_default(): norm = hl.op(optax.tree.norm)(loop.state["params"])`.
        state: The variable.
        mesh: The mesh that the state lies on; `None` where it lies on none.
        metrics: Tensors by name; a nested metric's name has slashes.
        train_op: One step, and one more global step.
        form: How the state is held.
        logdir: Of the last session.
        result: The state when the last session was closed in order; `None` before.
        report: Of the last `run(report=True)`, where its time went, also after an error; else `None`.

    Raises:
        TypeError: The step takes or returns something else, reads values, or accumulates metrics in its state.
            Or `batches` is not a source of batches, or contains text.
        ValueError: It returns a state of another structure, shape or dtype; `batches` is empty, or lies on another mesh
            than the state. Or the first batch, or the last one of `hookline.data.arrays`, cannot be split.

    Example:
        >>> import hookline as hl, jax, numpy as np
        >>> def train_step(state, batch):
        ...     loss, slope = jax.value_and_grad(lambda w: ((w - batch) ** 2).mean())(state["w"])
        ...     return {"w": state["w"] - 0.1 * slope}, {"loss": loss}
        >>> loop = hl.train.Loop(train_step, {"w": 0.0}, lambda: iter(np.ones((50, 4), np.float32)))
        >>> state = loop.run(last_step=20)
        >>> print(f"{state['w']:.2f}")
        0.99

    References:
        None in `tf.train`. `clu`, Keras's `fit` and Lightning's `Trainer` stand where it stands.
    """

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
        steps_per_run: int = 1,
    ) -> None:
        self.steps_per_run = arguments.whole("Loop", "steps_per_run", steps_per_run, at_least=1)
        self.form = form_of(state)
        self._step = Step("Loop", train_step, self.form)
        if seed is not None:
            arguments.whole("Loop", "seed", seed)
        self.graph = batches.graph if isinstance(batches, Tensor) else Graph()
        if self.graph.get_collection(_LOOPS):
            raise ValueError("Loop requires a graph without another Loop: make its iterator in a graph of its own.")
        if not isinstance(batches, Tensor):
            check_batches("Loop", batches)
        self._is_one_shot = is_one_shot(batches)
        self._has_run = False
        self.logdir: str | None = None
        self.result: Any = None
        self.report: CostReport | None = None
        self._layout: tuple[Any, list[Any]] | None = None
        shardings = self._shardings(sharding)
        of_state = placement.mesh_of(shardings, "Loop: the state")
        with self.graph.as_default():
            self._batch = batches_of(batches, of_state, batch_sharding, last_batch)
            self.graph.settle("Loop", [*shardings, placement.current()])
            self.mesh: jax.sharding.Mesh | None = getattr(self.graph.home, "mesh", None)
            self._build(self._batch, seed, sharding)
            self.graph.add_to_collection(_LOOPS, self)

    def _shardings(self, sharding: Any) -> list[Any]:
        """Returns where the arrays of the state live, one by one; None for those that nobody has put anywhere."""
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

    def _build(self, batch: Tensor, seed: int | None, sharding: Any) -> None:
        placed = lambda spec: placement.with_places(spec, self._shardings(sharding))  # noqa: E731
        with placement.inside(self.graph.context):
            _, metrics = self._step.spec(first_spec(batch), placed)
        shardings, places = self._shardings(sharding), None
        if any(place is not None for place in shardings):
            whole = [place or self.graph.home for place in shardings]
            places = jax.tree.structure(self.form.values).unflatten(whole)
            self._say_whole(shardings)
        self._say_numbers()
        self._say_devices(places)
        self.state = Variable(self.form.start, name=STATE, trainable=False, sharding=places)
        found = counter_in(self.form.values)
        step = get_global_step()
        if step is None:
            step = create_global_step()
            if found is not None:
                step.initialize_from(op(lambda value: value.astype(step.dtype))(found.of(self.state.initial_value)))
        key = [random_key(seed)] if self._step.takes_key else []
        after = op(self._step).node(self.state, batch, *key)
        self.train_op = group(self.state.assign(after[0]), step.assign_add(1), name="train_op")
        self.graph.add_to_collection(GraphKeys.TRAIN_OP, self.train_op)
        self.metrics: dict[str, Tensor] = {name: after[1][name] for name in metrics}
        self._counter = None if found is None else CounterHook(found.of(after[0]), found.path)
        for name, metric in self.metrics.items():
            summary.scalar(name, metric)

    def _say_numbers(self) -> None:
        if self.form.recompiling:
            _logger.warning(
                "Loop: the state was given with numbers of Python of which %s makes arrays: %s. Here they are such "
                "arrays from the start; a loop of your own compiles its second step anew for them. Give arrays: "
                "jnp.zeros(()), say.",
                self._step.name,
                ", ".join(f"{path} ({dtype})" for path, dtype in self.form.recompiling.items()),
            )

    def _say_whole(self, shardings: list[Any]) -> None:
        """Warns of large arrays that lie whole on each device because nobody has put them anywhere."""
        if not any(place is not None and not place.is_fully_replicated for place in shardings):
            return
        spec = jax.tree.leaves_with_path(specs.of_value(self.form.values))
        large = [
            jax.tree_util.keystr(path, simple=True, separator="/")
            for (path, leaf), place in zip(spec, shardings, strict=True)
            if place is None and leaf.size > 2**18
        ]
        if large:
            _logger.warning(
                "Loop: %s of the state lie whole on each device, for nobody has said where, though others are split. "
                "sharding= says it.",
                ", ".join(large[:3]) + (f" and {len(large) - 3} more" if len(large) > 3 else ""),
            )

    def _say_devices(self, places: Any) -> None:
        names = devices.names({device for place in jax.tree.leaves(places) for device in place.device_set})
        if len(names) > 1:
            _logger.info("Loop: the state lies on %s, and is trained there.", devices.shown(names))

    def run(self, logdir: str | None = None, last_step: int | None = None, **arguments: Any) -> Any:
        """Trains to a step, or to the end of the data, and returns the state.

        Where `logdir` has a checkpoint, it goes on from there; with its `last_step` reached, it trains no step.

        Args:
            logdir: As in `session`, like everything else.
            last_step: As in `session`.
            **arguments: As in `session`.

        Returns:
            The state, in the form in which it was given; NNX objects are those that were given.

        Raises:
            Preempted: SIGTERM or Ctrl-C came; what was trained is saved, and `result` holds it.
            NanLossDuringTrainingError: The loss is NaN.
        """
        session = self.session(logdir, last_step, **arguments)
        try:
            with session:
                while not session.should_stop():
                    session.run(self.train_op)
        finally:
            self.report = session.report() if arguments.get("report") else None
        return self.result

    def session(
        self,
        logdir: str | None = None,
        last_step: int | None = None,
        *,
        hooks: Iterable[Any] = (),
        progress: bool = True,
        log_steps: int | None = 100,
        watch: str | None = "loss",
        on_nan: str = "raise",
        **keywords: Any,
    ) -> MonitoredSession:
        """Returns a session of the graph, for a loop of your own: `while not session.should_stop()`, run `train_op`.

        Args:
            logdir: Where checkpoints and summaries go, and where to go on from; None for neither.
            last_step: The global step to stop at, and a warning if the data end before; None for their end, or a hook.
            hooks: More hooks: `train.Evaluate`, your own.
            progress: Whether the step and the metrics are shown on `sys.stderr`, by a `ProgressHook`. One among `hooks`
                shows them in its stead.
            log_steps: Global steps from one line of metrics in the log to the next; None for none.
            watch: The metric to watch for NaN; None for none.
            on_nan: What to do then, as of `NanTensorHook`: "raise", "stop", "skip" or "rollback".
            **keywords: Of `MonitoredTrainingSession`, by name: `save_checkpoint_secs` and `save_checkpoint_steps`,
                `save_summaries_steps`, `log_step_count_steps`, `recovery`, `on_preemption`, ...

        Raises:
            TypeError: An unknown argument, or one of another kind.
            ValueError: `watch` is no metric; or it is to train on parameter servers.
            FailedPreconditionError: There is a checkpoint to go on from, and `batches` cannot be read from the start.
        """
        riding = self._riding(
            logdir,
            last_step,
            keywords,
            hooks=hooks,
            progress=progress,
            log_steps=log_steps,
            watch=watch,
            on_nan=on_nan,
        )
        if logdir is not None or keywords.get("summary_dir"):
            self._check_repeatable(logdir)
        self.logdir = keywords.get("summary_dir") or logdir
        with self.graph.as_default():
            session = MonitoredTrainingSession(
                checkpoint_dir=logdir, hooks=[*riding, _Finish(self, last_step)], **keywords
            )
        self._has_run = True
        return session

    def _riding(
        self,
        logdir: str | None,
        last_step: int | None,
        keywords: dict[str, Any],
        *,
        hooks: Iterable[Any] = (),
        progress: bool = True,
        log_steps: int | None = 100,
        watch: str | None = "loss",
        on_nan: str = "raise",
    ) -> list[Any]:
        """Returns the hooks that `session` hands on, as of its arguments."""
        _refuse_arguments(progress, log_steps, keywords)
        arguments.path("Loop", "logdir", logdir, optional=True)
        hooks = checked_hooks(hooks)
        steps_per_run = arguments.whole(
            "Loop", "steps_per_run", keywords.setdefault("steps_per_run", self.steps_per_run), at_least=1
        )
        own: list[Any] = []
        if progress and not any(isinstance(bare(hook), ProgressHook) for hook in hooks):
            own.append(ProgressHook(self.metrics, file=sys.stderr))
        if last_step is not None:
            own.append(StopAtStepHook(last_step=last_step))
        if watch is not None:
            own += self._watching(watch, on_nan)
        if log_steps is not None and self.metrics:
            own.append(_MetricsLog(self.metrics, spaced(log_steps), in_rows=log_steps < steps_per_run))
        if self._counter is not None:
            own.append(self._counter)
        if logdir is None and not keywords.get("summary_dir"):
            steps = keywords.get("log_step_count_steps", 100)
            own += [StepCounterHook(every_n_steps=steps)] if steps else []
        return [*own, *hooks]

    def describe(self, logdir: str | None = None, last_step: int | None = None, **arguments: Any) -> LoopDescription:
        """Says what the loop holds, where that lies, what `run` would write, and which programs it makes.

        Nothing is run, made or written. What fires when, and how many programs that makes, says `plan` of the session.

        Args:
            logdir: As in `session`, like everything else.
            last_step: As in `session`.
            **arguments: As in `session`.

        Returns:
            The description; `print` shows it as a table.

        Raises:
            TypeError, ValueError: As `session`.

        Example:
            >>> import hookline as hl, numpy as np
            >>> step = lambda state, batch: (state, {"loss": (state["w"] * batch).sum()})
            >>> loop = hl.train.Loop(step, {"w": np.ones(3, np.float32)}, lambda: iter(np.ones((9, 3), np.float32)))
            >>> print(loop.describe("/tmp/run"))
            3 numbers in 1 arrays, 12 B, of which a device holds 12 B; on 1 device (cpu:0).
              w               3       12 B
            A batch: float32[3].
            It begins with the state that was given.
            StepCounterHook writes the steps per second, events in '/tmp/run'; SecondOrStepTimer(every_steps=100) and...
            SummarySaverHook writes summaries, events in '/tmp/run'; SecondOrStepTimer(every_steps=100) and at the end.
            CheckpointSaverHook writes checkpoints '/tmp/run/model.ckpt-<step>'; SecondOrStepTimer(every_secs=600) ...
            Programs:
              outputs none; writes state, global_step
              the same with what hooks ask for, where they fire; session.plan() counts them
        """
        riding = self._riding(logdir, last_step, arguments, **{k: arguments.pop(k) for k in _OWN & arguments.keys()})
        of_session = inspect.signature(usual_hooks).parameters
        usual = {name: value for name, value in arguments.items() if name in of_session and name != "summary_dir"}
        written = usual_hooks(logdir, arguments.get("summary_dir") or logdir, **usual)
        path = latest_checkpoint(logdir) if logdir else None
        ends = "" if last_step is None else f", to step {last_step}"
        return LoopDescription(
            parts_of(self.state),
            place_of(self.state, self.mesh),
            form_of_batch(first_spec(self._batch)),
            f"It goes on from '{path}'{ends}." if path else f"It begins with the state that was given{ends}.",
            written_by([*(arguments.get("chief_only_hooks") or ()), *written, *riding]),
            programs_of(self.train_op, arguments["steps_per_run"], watches=bool(self.metrics)),
        )

    def _watching(self, watch: str, on_nan: str) -> list[Any]:
        if watch in self.metrics:
            return [NanTensorHook(self.metrics[watch], on_nan=on_nan)]
        if watch != ALONE or on_nan != "raise":
            raise ValueError(
                f"Loop: there is no metric {watch!r} to watch for NaN. There are: {', '.join(self.metrics) or 'none'}."
            )
        if self.metrics:
            _logger.warning(
                "Loop: no metric is called 'loss', so nothing is watched for NaN. Name one of them, watch=%r, or None.",
                next(iter(self.metrics)),
            )
        return []

    def _check_repeatable(self, logdir: str | None) -> None:
        """Refuses to go on where a checkpoint is with batches that this process has only from there on."""
        path = latest_checkpoint(logdir) if logdir and self._is_one_shot and not self._has_run else None
        names = [name for name, _ in list_variables(path)] if path else []
        if path and f"{BATCHES}/count" in names and load_variable(path, f"{BATCHES}/count"):
            raise FailedPreconditionError(
                None,
                None,
                f"Loop cannot go on from '{path}': its batches are an iterator, which gives each once, and those "
                f"before are needed to come to where the checkpoint is. Give a function that makes it, `lambda: "
                f"batches()`, or a source with a state.",
            )

    def let_go(self) -> None:
        """Holds the state no longer that it was given: the session has its own, and the graph a copy on the host."""
        self.form.let_go()

    def finish(self, session: Session, last_step: int | None) -> None:
        """Takes the state over from a session that is about to be closed in order."""
        source, step = self._batch.op, session.global_step
        is_short = last_step is not None and step < last_step
        if is_short and isinstance(source, Source) and session.lowlevel.source(source).has_ended:
            _logger.warning(
                "Loop: the data ended at global step %d, before last_step=%d. Give more of them, or such as begin "
                "again: hookline.data.arrays(..., epochs=None).",
                step,
                last_step,
            )
        self.result = self.form.finished(session.lowlevel.handed_over(self.state))


class _Finish(SessionRunHook):
    """Takes the state at the end; it stands last, so nobody trains any more."""

    def __init__(self, loop: Loop, last_step: int | None) -> None:
        self._loop, self._last_step = loop, last_step

    def after_create_session(self, session: Session, coord: Any) -> None:
        self._loop.let_go()

    def end(self, session: Session) -> None:
        self._loop.finish(session, self._last_step)


class _MetricsLog(LoggingTensorHook):
    """Logs metrics with the step after the run, on the runs that summaries are written of.

    Where a run holds more steps than are between two lines, it logs those of a run together (`in_rows`).
    """

    def __init__(self, metrics: dict[str, Tensor], trigger: Trigger, *, in_rows: bool) -> None:
        super().__init__(metrics, trigger=_EachRun(trigger) if in_rows else trigger)
        self._points, self.stacked = trigger, in_rows
        self._writes_own_lines = True  # Before a line of the base class stands the step, and nothing else.

    def on_trigger(self, firing: Firing) -> None:
        last = firing.global_step
        assert last is not None, "a loop has one"
        if not self.stacked:
            self._step = last
            super().on_trigger(firing)
            return
        count, found = len(jax.tree.leaves(firing.values)[0]), []
        for row, step in enumerate(range(last - count + 1, last + 1)):
            if self._points.should_trigger_for_step(step):
                found.append((row, step, self._points.update_last_triggered_step(step)[0]))
        # They come at once; each has its share of the time since the line before.
        secs = [elapsed for *_, elapsed in found if elapsed is not None]
        share = sum(secs) / len(secs) if secs else None
        for row, self._step, elapsed in found:
            values = jax.tree.map(lambda leaf, row=row: leaf[row], firing.values)
            self._log(values, None if elapsed is None else share)

    def format_line(self, values: dict[str, Any], elapsed_secs: float | None) -> str:
        return f"step {self._step}: {super().format_line(values, elapsed_secs)}"


class _EachRun(Trigger):
    """Fires on each run, and keeps the phase of a trigger that its hook asks itself."""

    def __init__(self, points: Trigger) -> None:
        self._points = points

    def next_step(self, after: int) -> int:
        return after + 1

    def should_trigger_for_step(self, step: int) -> bool:
        return True

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        return None, None

    def start(self, step: int) -> None:
        self._points.start(step)

    def get_state(self) -> dict[str, Any]:
        return self._points.get_state()

    def set_state(self, state: Any) -> None:
        self._points.set_state(state)


def loop_of(graph: Graph) -> Loop | None:
    """Returns the loop that a graph was built for, if it was."""
    return next(iter(graph.get_collection(_LOOPS)), None)


def _refuse_arguments(progress: Any, log_steps: Any, keywords: dict[str, Any]) -> None:
    if not isinstance(progress, bool):
        raise TypeError(
            f"Loop requires True or False as progress, got {progress!r}. A ProgressHook goes among the hooks."
        )
    if log_steps is not None:
        arguments.whole("Loop", "log_steps", log_steps, at_least=1)
    if "checkpoint_dir" in keywords:
        raise TypeError("Loop takes the directory of its checkpoints as logdir, and no checkpoint_dir.")
    own, passed_on = (inspect.signature(taker).parameters for taker in (Loop.session, MonitoredTrainingSession))
    known = [name for name in (*own, *passed_on) if name not in ("self", "keywords", "checkpoint_dir", *_OF_GRAPHS)]
    for name in keywords.keys() - {*known, *_OF_GRAPHS}:
        near = difflib.get_close_matches(name, known, n=2)
        advice = f"Did you mean {' or '.join(near)}?" if near else f"It takes {', '.join(dict.fromkeys(known))}."
        raise TypeError(f"Loop takes no argument {name!r}. {advice}")
    for name in _OF_GRAPHS:
        if name in keywords and keywords[name] not in ("", True):
            raise ValueError(
                f"Loop does not train on parameter servers, so it takes no {name}: they apply the updates of a graph "
                f"where the variables live, and a step that returns the whole state says of no part of it how it came "
                f"about. Build a graph with train.Optimizer for that; see docs/distributed.md."
            )
