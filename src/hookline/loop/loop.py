"""Loop: a train step, run under a monitored session."""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from hookline import arguments
from hookline.data.batches import LastBatch
from hookline.data.sources import is_one_shot
from hookline.errors import Interrupted
from hookline.graph.nodes import Source
from hookline.hooks import ProgressHook, SessionRunHook, SinkHook, StepCounterHook, StopAtStepHook, spaced
from hookline.hooks.step_rates import FLOPS
from hookline.hooks.when import bare
from hookline.loop import description, refused
from hookline.loop import warm_start as warm_starts
from hookline.loop.batches import first_spec
from hookline.loop.hyperparameters import CHECKPOINT, SCRIPT
from hookline.loop.memory import Memory
from hookline.loop.metrics_log import MetricsLog
from hookline.loop.rates import rates_of
from hookline.loop.saved import STATE, check_repeatable
from hookline.loop.step_graph import StepGraph
from hookline.loop.warm_start import WarmStart, advising, settings_of
from hookline.loop.watching import watching
from hookline.monitored import MonitoredSession, MonitoredTrainingSession, Scaffold
from hookline.monitored.callbacks import checked_hooks
from hookline.monitored.cost_report import CostReport
from hookline.monitored.hook_list import is_claimed
from hookline.monitored.training_session import Cadences, usual_hooks
from hookline.session import Session

_logger = logging.getLogger(__name__)

# Arguments of `Loop.session` that are not handed on.
_OWN = {"hooks", "progress", "log_steps", "watch", "on_nan", "hyperparams", "per_step", "peak_flops"}


class Loop(StepGraph):
    """A train step as you have it, run under a monitored session and hooks.

    `train_step(state, batch)` returns the new state and metrics. It becomes one operation of a graph, its state one
    variable called `state`, its batches an iterator; so checkpoints, resume, recovery, preemption, summaries and every
    hook work on it as on any graph. A required parameter called `key` or `rng` (or `dropout_rng`, ...), or one more
    after the batch, gets a random key, another one in each step. So does one of such a name whose default is None.

    The state is any pytree: a `TrainState`, a dict, Equinox modules, the functional form of Flax NNX. Leaves that are
    no arrays stay outside of the variable. NNX objects are changed by the step, which returns its metrics alone; when a
    run is over, the objects that were given hold what came of it.

    A state of several parts is spread over parameters: a tuple over the first ones, `train_step(model, opt_state,
    batch)`, a dict over those of its names, wherever they stand. So is a batch, `train_step(model, opt_state, x, y)`.
    The parts come back side by side, in the order of the parameters; what stands before and after them are metrics.

    The step must be traceable, jitted or not. Metrics are numbers and arrays in a dict, nested if you like, a named
    tuple, a dataclass, or `(loss, aux)`; one number is called `loss`. Of an object with `compute()` that is taken.
    What is no number is left out, with a warning. Metrics of NNX and `clu` in the state accumulate: see
    `reset_metrics_steps`.

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
        ema: The decay of moving averages of the state's floating point arrays, without its optimizer and metrics:
            0.999, say. Or a dict from parts of the state to decays, `{"params": 0.999}`. They begin with what the state
            begins with, and are saved with it. `Evaluate(averaged=True)` and `load(averaged=True)` use them.
        learning_rate: The schedule that the optimizer was given, a function of a count: the rate of each step is then
            the metric `learning_rate`. That of `optax.inject_hyperparams` is one unasked.
        mean_over: Over how many steps means of the metrics are kept, on the device; None for none.
        reset_metrics_steps: Steps over which metrics in the state accumulate (`nnx.MultiMetric`, `nnx.Metric`, a
            `clu.metrics.Collection`). They begin anew after steps 1, 101, 201, where the log and the summaries are due
            by default, so that each of these shows the mean of the 100 steps before. None for never.

    Attributes:
        graph: The graph; one of its own unless `batches` is a tensor. What hooks fetch beside the metrics is made in
            it: `with loop.graph.as_default(): norm = hl.op(optax.tree.norm)(loop.state["params"])`.
        state: The variable.
        mesh: The mesh that the state lies on; `None` where it lies on none.
        metrics: Tensors by name; a nested metric's name has slashes.
        means: Tensors of their means over the last steps, by name: `mean/loss`.
        averaged: A tensor of the state with averages in the place of what they are averages of; None without `ema`.
        train_op: One step, and one more global step.
        form: How the state is held.
        logdir: Of the last session.
        result: The state when the last session was closed in order; `None` before.
        averaged_result: With `ema`, the same with the averages; NNX objects are new ones.
        report: Of the last `run(report=True)`, where its time went, also after an error; else `None`.

    Raises:
        TypeError: The step takes or returns something else, or reads values. Or `batches` is not a source of batches,
            or contains text. Or `learning_rate` is no schedule.
        ValueError: It returns a state of another structure, shape or dtype; `batches` is empty, or lies on another mesh
            than the state. Or the first batch, or the last one of `hookline.data.arrays`, cannot be split. Or `ema` is
            no decay, or names what the state does not have.

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
        ema: float | Mapping[str, float] | None = None,
        learning_rate: Any = None,
        mean_over: int | None = None,
        reset_metrics_steps: int | None = 100,
    ) -> None:
        self.steps_per_run = arguments.whole("Loop", "steps_per_run", steps_per_run, at_least=1)
        super().__init__(
            train_step,
            state,
            batches,
            sharding=sharding,
            seed=seed,
            batch_sharding=batch_sharding,
            last_batch=last_batch,
            ema=ema,
            learning_rate=learning_rate,
            mean_over=mean_over,
            reset_metrics_steps=reset_metrics_steps,
        )
        self._is_one_shot = is_one_shot(batches)
        self._has_run = False
        self.result: Any = None
        self.averaged_result: Any = None
        self.report: CostReport | None = None
        self._memory: Memory | None = None

    def __repr__(self) -> str:
        count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.form.values))
        held = "1 value" if count == 1 else f"{count:,} values"
        left = "not run yet" if self._memory is None else f"left at step {self._memory.step}"
        where = "" if self.logdir is None else f", last in {self.logdir!r}"
        return f"<Loop of {self._step.name}: {self.form!r} of {held}; {left}{where}>"

    def run(self, logdir: str | None = None, last_step: int | None = None, **arguments: Any) -> Any:
        """Trains to a step, or to the end of the data, and returns the state.

        Where `logdir` has a checkpoint, it goes on from there, else from where this loop was left last. With
        `last_step` reached, it trains no step.

        Args:
            logdir: As in `session`, like everything else.
            last_step: As in `session`.
            **arguments: As in `session`.

        Returns:
            The state, in the form in which it was given; NNX objects are those that were given.

        Raises:
            Preempted: SIGTERM or Ctrl-C came; what was trained is saved, and `result` holds it.
            Interrupted: Likewise, where the cell of a notebook is interrupted, with a `logdir` or without.
            NanLossDuringTrainingError: The loss is NaN.
        """
        self.report = None
        try:
            session = self.session(logdir, last_step, **arguments)
            try:
                with session:
                    while not session.should_stop():
                        session.run(self.train_op)
            finally:
                self.report = session.report() if arguments.get("report") else None
        except Interrupted as interrupt:
            if self._memory is not None:
                interrupt.add_note(f"This loop holds step {self._memory.step}; its run() goes on from there.")
            raise
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
        warm_start: str | WarmStart | None = None,
        hyperparams: str = CHECKPOINT,
        per_step: Mapping[str, float] | None = None,
        peak_flops: float | None = None,
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
            warm_start: What a new training begins with: the directory of another one, or a checkpoint, or a
                `WarmStart`. Where `logdir` has a checkpoint, the training goes on from that and takes nothing.
            hyperparams: Whose values of `optax.inject_hyperparams` a training goes on with: those of its "checkpoint",
                or of the "script". The log says where they differ.
            per_step: How many of what a step takes, for rates in the log and on the progress line: `{"tokens": 16384}`.
                By default the examples of the first batch, the length that its arrays have in common.
            peak_flops: How many floating point operations a second all devices together can make, for the share of them
                that the training makes. How many a step has says XLA, which counts the body of a loop (`jax.lax.scan`)
                once; or `per_step["flops"]`.
            **keywords: Of `MonitoredTrainingSession`, by name: `save_checkpoint_secs` and `save_checkpoint_steps`,
                `save_summaries_steps`, `sinks`, `hparams`, `recovery`, `on_preemption`, ...

        Raises:
            TypeError: An unknown argument, or one of another kind.
            ValueError: `watch` is no metric; nothing fits a warm start; or it is to train on parameter servers.
            NotFoundError, InvalidArgumentError: The checkpoint in `logdir` does not fit; the message names each array.
            FailedPreconditionError: There is a checkpoint to go on from, and `batches` cannot be read from the start.
        """
        if is_claimed(self._hyperparameters):
            raise RuntimeError("This Loop has an open session: one at a time. Close it first.")
        riding = self._riding(
            logdir,
            last_step,
            keywords,
            hooks=hooks,
            progress=progress,
            log_steps=log_steps,
            watch=watch,
            on_nan=on_nan,
            hyperparams=hyperparams,
            per_step=per_step,
            peak_flops=peak_flops,
        )
        if self._is_one_shot and not self._has_run:
            check_repeatable(logdir)
        self._hyperparameters.whose = hyperparams
        self.logdir = keywords.get("summary_dir") or logdir
        keywords["scaffold"] = self._scaffold(settings_of(warm_start), keywords.get("scaffold"))
        with self.graph.as_default(), advising(logdir):
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
        hooks: Iterable[Any],
        progress: bool,
        log_steps: int | None,
        watch: str | None,
        on_nan: str,
        hyperparams: str,
        per_step: Mapping[str, float] | None,
        peak_flops: float | None,
    ) -> list[Any]:
        """Returns the hooks of a session, as of its arguments; `keywords` are then those of a monitored session."""
        refused.check(Loop.session, progress, log_steps, keywords)
        arguments.path("Loop", "logdir", logdir, optional=True)
        if hyperparams not in (CHECKPOINT, SCRIPT):
            raise ValueError(f"Loop requires {CHECKPOINT!r} or {SCRIPT!r} as hyperparams, got {hyperparams!r}.")
        hooks = checked_hooks(hooks)
        steps_per_run = arguments.whole(
            "Loop", "steps_per_run", keywords.setdefault("steps_per_run", self.steps_per_run), at_least=1
        )
        own: list[Any] = []
        rates = rates_of(self._step, self.state.spec, self._example, self.graph.context, per_step, peak_flops)
        if progress and not any(isinstance(bare(hook), ProgressHook) for hook in hooks):
            per_second = {name: count for name, count in rates.items() if name != FLOPS}
            own.append(ProgressHook(self._numbers, file=sys.stderr, per_step=per_second))
        if last_step is not None:
            own.append(StopAtStepHook(last_step=last_step))
        if watch is not None:
            own += watching(self.metrics, self._returned, watch, on_nan)
        if log_steps is not None and self._short:
            own.append(MetricsLog(self._short, spaced(log_steps), in_rows=log_steps < steps_per_run))
        own += [hook for hook in (self._counter, self._recent, self._hyperparameters) if hook is not None]
        # The session adds no step counter of its own then.
        steps, keywords["log_step_count_steps"] = keywords.get("log_step_count_steps", 100), None
        if steps is not None and arguments.whole("Loop", "log_step_count_steps", steps) > 0:
            folder = keywords.get("summary_dir") or logdir
            counting = {"per_step": rates, "peak_flops": peak_flops, "memory": True}
            own.append(StepCounterHook(every_n_steps=steps, output_dir=folder, **counting))
        return [*own, *hooks]

    def describe(
        self, logdir: str | None = None, last_step: int | None = None, **arguments: Any
    ) -> description.LoopDescription:
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
            3 numbers in 1 array, 12 B, of which a device holds 12 B; on 1 device (cpu:0).
              w               3       12 B
            A batch: float32[3].
            It begins with the state that was given.
            SummarySaverHook writes summaries, events in '/tmp/run'; each 100 steps and at the end.
            CheckpointSaverHook writes checkpoints '/tmp/run/model.ckpt-<step>'; each 600 seconds and at the end.
            StepCounterHook writes the steps per second, events in '/tmp/run'; each 100 steps and at the end.
            Programs:
              outputs none; writes state, global_step
              the same with what hooks ask for, where they fire; session.plan() counts them
        """
        given = inspect.signature(Loop.session).bind(self, logdir, last_step, **arguments)
        given.apply_defaults()
        keywords = given.arguments["keywords"]
        own = {name: value for name, value in given.arguments.items() if name in _OWN}
        riding = self._riding(logdir, last_step, keywords, **own)
        folder = keywords.get("summary_dir") or logdir
        feeds = SinkHook(keywords.get("sinks", ()), folder, keywords.get("hparams"))
        of_session = inspect.signature(Cadences.of).parameters
        cadences = Cadences.of(**{name: value for name, value in keywords.items() if name in of_session})
        written = usual_hooks(cadences, logdir, folder, has_sinks=bool(feeds.sinks))
        warm = settings_of(given.arguments["warm_start"])
        fitting = None if warm is None else lambda: warm_starts.check(warm, self.state, self._of_training)[0]
        return description.LoopDescription(
            description.parts_of(self.state, self.form.parts, self._beside),
            description.place_of(self.state, self.mesh),
            description.form_of_batch(first_spec(self._batch)),
            description.beginning(logdir, self._memory and self._memory.step, fitting, last_step),
            description.written_by(
                [feeds, *checked_hooks(keywords.get("chief_only_hooks"), "chief_only_hooks"), *written, *riding]
            ),
            description.programs_of(self.train_op, keywords["steps_per_run"], watches=bool(self.metrics)),
        )

    def _scaffold(self, warm: WarmStart | None, given: Scaffold | None) -> Scaffold | None:
        """Has a session that restored nothing begin where this loop was left, or with values of another training."""
        if self._memory is not None:
            if warm is not None:
                _logger.info(
                    "Loop goes on from step %d, where it was left, and makes no warm start.", self._memory.step
                )
            return Scaffold(init_fn=self._go_on, copy_from_scaffold=given)
        if warm is None:
            return given
        before = None if given is None else given.init_fn

        def init(scaffold: Scaffold, session: Session) -> None:
            if before is not None:
                before(session)
            warm_starts.begin(warm, session, self.state, self._of_training)
            if self._averages is not None:
                self._averages.begin_anew(session, self.state)

        return Scaffold(init_fn=init, copy_from_scaffold=given)

    def _go_on(self, scaffold: Scaffold, session: Session) -> None:
        """Has a session that restored nothing go on in memory."""
        assert self._memory is not None, "Else nobody asks."
        self._memory.values[STATE] = self.form.held(self._memory.values[STATE])
        self._memory.give_to(session)

    def begin(self, session: Session) -> None:
        """Holds the state no longer that it was given: the session has its own, and the graph a copy on the host."""
        self.form.let_go()
        if self._memory is not None and session.global_step != self._memory.step:
            _logger.warning(
                "Loop: it goes on from the checkpoint in '%s', at step %d, and not from step %d, at which it was left.",
                self.logdir,
                session.global_step,
                self._memory.step,
            )

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
        values = session.lowlevel.handed_over(self.state)
        self.result = self.form.finished(values)
        if self._averages is not None:
            self.averaged_result = self._averages.finished(session, self.form, values)
        self._memory = Memory.of(session)


class _Finish(SessionRunHook):
    """Takes the state at the end; it stands last, so nobody trains any more."""

    def __init__(self, loop: Loop, last_step: int | None) -> None:
        self._loop, self._last_step = loop, last_step

    def after_create_session(self, session: Session, coord: Any) -> None:
        self._loop.begin(session)

    def end(self, session: Session) -> None:
        self._loop.finish(session, self._last_step)
