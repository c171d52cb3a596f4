"""Loop: runs a train step under a monitored session."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from hookline import arguments, log
from hookline.coordination.stacks import is_in_own_code
from hookline.errors import Interrupted, NanLossDuringTrainingError
from hookline.hooks import ProgressHook, SessionRunHook, StepCounterHook, StopAtStepHook, TimeLimitHook
from hookline.hooks.epochs import EPOCH, Epoch, set_epochs
from hookline.hooks.reporting.account import AccountHook
from hookline.hooks.reporting.console import ConsoleHook, has_progress_line
from hookline.hooks.reporting.step_counter import FLOPS
from hookline.hooks.timers import trigger_from_arguments
from hookline.loop import description
from hookline.loop import replay as replays
from hookline.loop import warm_start as warm_starts
from hookline.loop.evaluation.early_stopping import FinalStop
from hookline.loop.in_memory_checkpoint import InMemoryCheckpoint
from hookline.loop.load import STATE, check_repeatable
from hookline.loop.metric_hooks import MetricsLog, Series, history_hooks, nan_check_hooks
from hookline.loop.passes import first_spec
from hookline.loop.step.step import per_step_counts
from hookline.loop.step.step_graph import StepGraph
from hookline.loop.warm_start import WarmStart, as_warm_start, loop_restore_advice
from hookline.monitored import ChiefSessionCreator, MonitoredSession, Scaffold
from hookline.monitored.hooked.callbacks import checked_hooks
from hookline.monitored.hooked.hook_list import is_claimed
from hookline.monitored.replaying.claims import claim
from hookline.monitored.replaying.result import ReplayResult
from hookline.monitored.training_options import CheckpointOptions, LoggingOptions, PreemptionOptions
from hookline.monitored.training_session import checked_options, default_hooks, warn_if_nothing_saves
from hookline.session import Session

_logger = log.get_logger(__name__)


class Loop(StepGraph):
    """Runs your train step under a monitored session with hooks.

    `train_step(state, batch)` returns the new state and metrics. The loop builds a graph: the step is one operation,
    the state one variable, called `state`, and the batches come from an iterator. So checkpoints, resume, recovery,
    preemption, summaries and every hook work as on any graph.

    The state is any pytree: a `TrainState`, a dict, Equinox modules, the state of Flax's `nnx.split`. Leaves that are
    not arrays (functions, strings, Python numbers that the step does not change) are static: neither traced nor saved.
    Flax NNX objects are changed by the step in place, and it returns only its metrics; after a run, your objects have
    the trained values.

    A state with several parts may be several arguments of the step. The parts of a tuple are the first arguments:
    `state=(model, opt_state)` and `train_step(model, opt_state, batch)`. Those of a dict go to the parameters with the
    names of its keys, in any order. A batch is split in the same way: `train_step(model, opt_state, x, y)`.

    The step returns the parts of the state as consecutive values, in the order of the parameters. All other values are
    metrics: `return params, opt_state, loss` or `return loss, params, opt_state`. A part that the step does
    not return keeps its value, with a warning. If the returned values can be matched to the parts in two ways, that is
    an error.

    A required parameter called `key` or `rng` (or `dropout_rng`, ...), or one extra parameter after the batch, gets a
    new random key in each step. So does a parameter of such a name whose default is None. A parameter called `step` or
    `global_step` gets the global step.

    The step must be traceable, jitted or not. Metrics are numbers and arrays in a dict, which may be nested, a named
    tuple, a dataclass, or `(loss, aux)`. A single number is called `loss`. After `return state, d_loss, g_loss` the
    metrics are `d_loss` and `g_loss`: these names are read from the source of the step. For an object with `compute()`
    the metric is the result of that call. Other values are left out, with a warning. Metrics of NNX and `clu` in the
    state accumulate: see `reset_metrics_steps`.

    Args:
        train_step: The step.
        state: The initial state, which a checkpoint replaces; or a function that makes it. The loop copies arrays that
            you pass, so the step may donate its buffers, but your arrays stay in memory, too. To hold the state only
            once, pass a function: it runs on the devices of the state.
        batches: A source as for `hookline.data.iterator`: an iterable, an iterator, or a function that makes an
            iterable. Batches may differ in shape. To set options of the iterator, pass the result of
            `hookline.data.iterator`, a tensor; the loop is then built in its graph. None for a step without a batch;
            `run` then requires `last_step`.
        sharding: The sharding of the state, as in `hookline.Variable`; by default that of its arrays.
        seed: The seed of the random keys; by default that of the graph, 0, so two runs draw the same keys.
        batch_sharding: The sharding of batches, as `sharding` in `iterator`; a `PartitionSpec` refers to the state's
            mesh. By default each array's first dimension is split over the axis `data` of that mesh, if it has one.
        last_batch: What to do with an incomplete last batch, as in `iterator`: "keep", "drop" or "pad". With "pad" the
            step gets the pair `batch, mask`; the mask is true for real examples.
        resume_data: Whether a restart resumes at the saved position in the data, as `resume` in `iterator`, or starts
            over.
        steps_per_run: The largest number of steps in one dispatch, for short steps, as in `MonitoredTrainingSession`
            (`steps_per_execution` of Keras).
        config: A `SessionConfig` for the session that runs the steps.
        ema: The decay of exponential moving averages, such as 0.999, of all floating point arrays of the state except
            its optimizer and metrics. Or a dict from parts of the state to decays, `{"params": 0.999}`. The averages
            begin with the initial state, are updated in each optimizer step, and are saved, for `Evaluate` and
            `load(averaged=True)`.
        learning_rate: Only for the metrics: the schedule that you gave to the optimizer, a function from a count to a
            rate. The rate of each step is then the metric `learning_rate`. For several optimizers, a dict of schedules
            by part of the state, `{"critic": schedule}`. Not needed with `optax.inject_hyperparams`, which has the rate
            in the state.
        steps_per_update: The number of steps for each optimizer step, if your step accumulates gradients; or the
            `every_k_schedule` of `optax.MultiSteps`. `ema` needs it unless the state has `optax.MultiSteps`.
        smoothing_steps: The window, in steps, of the moving averages of the metrics, which are computed on the device
            (`means`); "epoch" for as many steps as an epoch has, so that the last mean of an epoch is that of the whole
            epoch; None for no averages.
        reset_metrics_steps: The number of steps over which metrics in the state accumulate (`nnx.MultiMetric`,
            `nnx.Metric`, a `clu.metrics.Collection`); None never resets them. With 100 they are reset after
            steps 1, 101, 201 and so on. These are the steps at which metrics are logged and summaries written by
            default, so each shows the mean of the last 100 steps. With "epoch" they are reset in the first step of each
            epoch; `log_steps="epoch"` logs the means of whole epochs.

    Attributes:
        graph: The graph; a new one unless `batches` is a tensor. Make further fetches for hooks in it:
            `with loop.graph.as_default(): norm = hl.op(optax.tree.norm)(loop.state["params"])`.
        state: The variable that holds the state; the trained state itself is `result`.
        mesh: The mesh of the state; `None` without one.
        metrics: Tensors by name; a nested metric's name has slashes.
        means: Tensors of their means over the last steps, by name: `mean/loss`.
        averaged: A tensor of the state with averages in place of the averaged leaves; None without `ema`.
        train_op: The operation that runs one step and increments the global step.
        form: The converter between the values of the variable `state` and your state; `form.arguments(values)` returns
            the arguments of the step, for operations of your own.
        logdir: The `logdir` of the last session.
        history: A dict from the name of each scalar metric to its `steps` and `values`, also those before a restart.
            Metrics of the step (`loss`) have the logged steps; evaluation metrics are called `eval/loss`.
        result: The state after the last session, if that ended normally or with `Preempted` or `Interrupted`; else
            `None`.
        averaged_result: With `ema`, the same with averages in place of the averaged leaves; NNX objects are new ones.

    Raises:
        TypeError: The parameters or results of the step do not fit; it reads traced values, or uses `jax.pmap`;
            `batches` is not a source of batches, or contains text; `learning_rate` is not a schedule.
        ValueError: The step returns a state of another structure, shape or dtype; `batches` is empty, or on another
            mesh than the state; the first batch, or the last one of `hookline.data.from_arrays`, cannot be split;
            `ema` is not a decay, or names a part that the state does not have; it is ambiguous to which of several
            optimizers `ema` or `learning_rate` refers.

    Example:
        >>> import hookline as hl, jax, numpy as np
        >>> def train_step(state, batch):
        ...     loss, grads = jax.value_and_grad(lambda w: ((w - batch) ** 2).mean())(state["w"])
        ...     return {"w": state["w"] - 0.1 * grads}, {"loss": loss}
        >>> loop = hl.train.Loop(train_step, {"w": 0.0}, lambda: iter(np.ones((50, 4), np.float32)))
        >>> state = loop.run(last_step=20)
        >>> print(f"{state['w']:.2f}")
        0.99

    References:
        None in `tf.train`. Compare Keras's `fit`, Lightning's `Trainer`, and `clu`.
    """

    result: Any = None
    averaged_result: Any = None
    # The checkpoint in memory from which the next session resumes.
    _memory: InMemoryCheckpoint | None = None
    _has_run = False
    _history_hooks: Sequence[tuple[str, Any]] = ()
    _handover: _StateHandover | None = None
    _is_replaying = False

    def __repr__(self) -> str:
        count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.form.values))
        held = "1 value" if count == 1 else f"{count:,} values"
        left = "not run yet" if self._memory is None else f"stopped at step {self._memory.step}"
        where = "" if self.logdir is None else f", last in {self.logdir!r}"
        return f"<Loop of {self._step.name}: {self.form!r} of {held}; {left}{where}>"

    @property
    def history(self) -> dict[str, Series]:
        """The steps and values of scalar metrics, of the step and of evaluations, by name."""
        found = [(prefix, history) for prefix, hook in self._history_hooks for history in [hook.history]]
        return {f"{prefix}{name}": series for prefix, history in found for name, series in history.items()}

    def run(
        self,
        logdir: str | None = None,
        last_step: int | None = None,
        *,
        epochs: int | None = None,
        time_limit_secs: float | None = None,
        hooks: Iterable[Any] = (),
        progress: bool = True,
        log_steps: int | Epoch | None = 100,
        nan_check: str | None = "loss",
        on_nan: str = "raise",
        warm_start: str | WarmStart | None = None,
        train_on: bool = False,
        checkpoints: CheckpointOptions | None = None,
        logging: LoggingOptions | None = None,
        preemption: PreemptionOptions | None = None,
    ) -> Any:
        """Trains to a step, or to the end of the data, and returns the state.

        If `logdir` has a checkpoint, the training resumes from it; else from the step at which this loop stopped last.
        If `last_step` is already reached, or an earlier stop was final, no step is trained. Without a `logdir`, a `run`
        that begins at the end of the data trains for one more pass.

        Args:
            logdir: The directory for summaries and checkpoints, from which training resumes; None for no directory.
            last_step: The global step to stop at, such as 5e5; a warning is logged if the data end before. With None
                the end of the data, or a hook, stops the training.
            epochs: The number of passes over the data, counted from step 0, so that a restart does not add any. The
                training ends with the last pass, or at `last_step` if that comes first.
            time_limit_secs: The seconds from the start of this call within which the last step is saved, for a job with
                a time limit; see `TimeLimitHook`. A restart continues the training.
            hooks: More hooks: `train.Evaluate`, your own.
            progress: Whether the start of the run, evaluations and the reason of the end are printed on `sys.stderr`,
                and a `ProgressHook` shows the step and the metrics there. One among `hooks` replaces that line.
            log_steps: Global steps between lines of metrics in the log, or "epoch" for a line at the end of each epoch;
                None for no lines.
            nan_check: The metric to check for NaN; None for none. If no metric is called "loss", the default checks all
                losses, such as `d_loss`. A `NanTensorHook` of the same metric among `hooks` replaces this check.
            on_nan: The reaction to NaN, as in `NanTensorHook`: "raise", "stop", "skip" or "rollback".
            warm_start: The source of a new training's initial values: the directory of another training, a checkpoint,
                or a `WarmStart`. If `logdir` has a checkpoint, the training resumes from that and ignores this.
            train_on: Whether to continue training after a final stop: of `StopIfNoImprovement`, or your own
                `request_stop(final=...)`. By default no step is trained, and a warning gives the reason.
            checkpoints: Options for saving, restoring and recovery.
            logging: Options for other output: summaries, rates, sinks, hyperparameters, and their directory.
            preemption: The reaction to SIGTERM and Ctrl-C.

        Returns:
            The state, of the structure in which it was given; NNX objects are the given ones.

        Raises:
            Preempted: SIGTERM or Ctrl-C was received; the state is saved, and is in `result`.
            Interrupted: The cell of a notebook was interrupted. The state is in `result`, and saved if there is a
                `logdir`.
            NanLossDuringTrainingError: The loss is NaN.
            TypeError: An argument has the wrong type.
            ValueError: There are no batches, and no `last_step` is given; `nan_check` is no metric; no array matches in
                a warm start; `epochs` is given, and the data have epochs of their own; `epochs` or "epoch" is given,
                and the data have no known length, or cannot be read again.
            NotFoundError, InvalidArgumentError: The checkpoint in `logdir` does not fit; the message names each array.
            FailedPreconditionError: There is a checkpoint to resume from, and `batches` cannot be read from the start.
        """
        self._passes.check_has_end(last_step)
        try:
            with self.session(
                logdir,
                last_step,
                epochs=epochs,
                time_limit_secs=time_limit_secs,
                hooks=hooks,
                progress=progress,
                log_steps=log_steps,
                nan_check=nan_check,
                on_nan=on_nan,
                warm_start=warm_start,
                train_on=train_on,
                checkpoints=checkpoints,
                logging=logging,
                preemption=preemption,
            ) as session:
                while not session.should_stop():
                    session.run(self.train_op)
        except NanLossDuringTrainingError as error:
            *_, (raised_in, _) = traceback.walk_tb(error.__traceback__)
            if not is_in_own_code(raised_in):
                error.__traceback__ = None  # The frames of hookline tell nothing of the model.
            raise
        except Interrupted as interrupt:
            if self._memory is not None:
                interrupt.add_note(
                    f"This loop holds step {self._memory.step} in memory; its run() continues from there."
                )
            raise
        return self.result

    def session(
        self,
        logdir: str | None = None,
        last_step: int | None = None,
        *,
        epochs: int | None = None,
        time_limit_secs: float | None = None,
        hooks: Iterable[Any] = (),
        progress: bool = True,
        log_steps: int | Epoch | None = 100,
        nan_check: str | None = "loss",
        on_nan: str = "raise",
        warm_start: str | WarmStart | None = None,
        train_on: bool = False,
        checkpoints: CheckpointOptions | None = None,
        logging: LoggingOptions | None = None,
        preemption: PreemptionOptions | None = None,
    ) -> MonitoredSession:
        """Creates a session for a hand-written loop: `while not session.should_stop(): session.run(loop.train_op)`.

        Arguments and errors are those of `run`.
        """
        if self._handover is not None and is_claimed(self._handover):
            raise RuntimeError("This Loop has an open session, and it takes one at a time. Close that first.")
        if not self._is_replaying and (wanted := claim("Loop", logdir)) is not None:
            wanted.fulfil(
                self.replay,
                last_step=last_step,
                epochs=epochs,
                hooks=hooks,
                progress=progress,
                log_steps=log_steps,
                nan_check=nan_check,
                on_nan=on_nan,
                train_on=train_on,
                checkpoints=checkpoints,
                logging=logging,
                preemption=preemption,
            )
        logdir, last_step = _check_end_arguments(logdir, last_step)
        checkpoints, logging, preemption = checked_options("Loop", checkpoints, logging, preemption)
        scaffold = self._scaffold(logdir, as_warm_start(warm_start), checkpoints)
        hooks = _with_time_limit(hooks, time_limit_secs)
        own = self._loop_hooks(logdir, last_step, hooks, progress, log_steps, nan_check, on_nan, logging)
        feeds, writers = default_hooks("Loop", logdir, checkpoints, logging, scaffold)
        set_epochs([*writers, *own], self._passes.epochs())  # An error now leaves no files.
        console = ConsoleHook(logging.summary_dir or logdir) if progress else None
        found = [*([console.first] if console else ()), *feeds, _EpochsOfSession(self), *writers]
        found += [FinalStop(own, train_on), *own, replays.advice_hook(self)]
        warn_if_nothing_saves("Loop", "logdir", logdir, checkpoints, found)
        self._passes.prepare(epochs)
        if self._is_one_shot and not self._has_run:
            check_repeatable(logdir)
        if self._hyperparameters is not None:
            self._hyperparameters.keep_checkpoint_values = checkpoints.restore_hyperparams
        elif not checkpoints.restore_hyperparams:
            _logger.warning(
                "Loop: CheckpointOptions(restore_hyperparams=False) has no effect: the state has no hyperparameters of "
                "optax.inject_hyperparams."
            )
        self._handover = _StateHandover(self, last_step)
        self.logdir = logging.summary_dir or logdir
        account = [AccountHook(self.logdir)] if self.logdir and logging.account else []
        # A replay leaves the loop as it is.
        handover = [] if self._is_replaying else [self._handover]
        with self.graph.as_default(), loop_restore_advice(logdir):
            session = MonitoredSession(
                ChiefSessionCreator(scaffold, "", self._config, logdir, restore=checkpoints.restore),
                [*found, *handover, *account, *([console] if console else ())],
                recovery=checkpoints.recovery,
                summary_dir=self.logdir,
                raise_on_write_errors=logging.raise_on_write_errors,
                preemption=preemption,
                steps_per_run=self.steps_per_run,
            )
        self._has_run = True
        self._history_hooks = history_hooks(found)
        return session

    def _loop_hooks(
        self,
        logdir: str | None,
        last_step: int | None,
        hooks: Iterable[Any],
        progress: bool,
        log_steps: int | Epoch | None,
        nan_check: str | None,
        on_nan: str,
        logging: LoggingOptions,
    ) -> list[Any]:
        """Returns the loop's own hooks, followed by the user's."""
        if not isinstance(progress, bool):
            raise TypeError(
                f"Loop requires True or False as progress, got {progress!r}. To change the progress line, pass "
                "hooks=[ProgressHook(...)]."
            )
        hooks = checked_hooks(hooks)
        own: list[Any] = []
        per_step, peak_flops = logging.per_step, logging.peak_flops
        rates = per_step_counts(
            self._step, self.state.spec, self._example, self.graph.mesh_context, per_step, peak_flops
        )
        if progress and not has_progress_line(hooks):
            per_second = {name: count for name, count in rates.items() if name != FLOPS}
            own.append(ProgressHook(self._scalar_metrics, file=sys.stderr, per_step=per_second))
        if last_step is not None:
            own.append(StopAtStepHook(last_step=last_step))
        if nan_check is not None:
            own += nan_check_hooks(self.metrics, self._returned_metrics, nan_check, on_nan, hooks)
        if log_steps is not None:
            each = trigger_from_arguments("Loop", None, ("log_steps", log_steps), ("log_secs", None))
            in_rows = log_steps != EPOCH and log_steps < self.steps_per_run
            own += [MetricsLog(self._short_metrics, each, in_rows=in_rows)] if self._short_metrics else []
        own += [hook for hook in (*self._counter_hooks, self._recent_means, self._hyperparameters) if hook is not None]
        if logging.rate_steps is not None:
            folder = logging.summary_dir or logdir
            counting = {"per_step": rates, "peak_flops": peak_flops, "memory": True}
            own.append(StepCounterHook(every_n_steps=logging.rate_steps, output_dir=folder, **counting))
        return [*own, *hooks]

    def replay(
        self, folder: str, steps: tuple[int, int], look: Iterable[Any] = (), *, every: int = 1, **run_arguments: Any
    ) -> ReplayResult:
        """Runs steps of a past run again, proves that they are the same, and looks at what nobody looked at then.

        The replay begins at the newest checkpoint at or before the first step. It launches the programs that the run
        launched, on the same batches, with the same keys. What is looked at is computed by another program, from the
        state before each step, and the batch and the key of that step, so it changes no bit. Nothing in the folder
        changes, and the run may still be going on. The hooks of the run work as they did, except for what they print,
        and for their `end`; their event files, checkpoints and profiles go to a temporary folder, which is removed: a
        hook that writes files by other means must be left out. A hook whose trigger reads the clock may fire at other
        steps than it did.

        Args:
            folder: The folder of the run, its `logdir`.
            steps: Two steps: the steps after the first one, up to the last one, are looked at.
            look: Names, or hooks with `fetches` and a `trigger` that only read. Names are those of metrics; of arrays
                of the state before the update, "params/dense/kernel"; of averages, "ema/params/dense/kernel"; and of
                arrays of the batch, "batch/0". The name "norms" stands for all metrics and the norms of all arrays.
                Without any, the metrics that are numbers are looked at.
            every: Global steps between two rows of the names in the table.
            **run_arguments: The arguments of the run, as for `run`: `last_step`, `hooks` and the others. With other
                arguments the programs may be others.

        Returns:
            The values by step, and the proof; `print` shows them as a table.

        Raises:
            NotFoundError: No checkpoint at or before the first step is left; the message has the steps of those that
                are left.
            TypeError: An argument has the wrong type.
            ValueError: A name is neither that of a metric nor of an array; a look feeds, writes or stops; or the first
                step is not below the last.

        Example:
            >>> import hookline as hl, numpy as np, tempfile
            >>> step = lambda w, batch: (w + batch.sum(), {"loss": w * w})
            >>> loop = hl.train.Loop(step, np.float32(0), hl.data.from_arrays(np.ones(9), 1))
            >>> saving = {"checkpoints": hl.train.CheckpointOptions(save_steps=3), "progress": False}
            >>> with tempfile.TemporaryDirectory() as logdir:
            ...     _ = loop.run(logdir, **saving)
            ...     print(loop.replay(logdir, (4, 7), ["loss", "state"], **saving))
            step  loss  state
               5    16      4
               6    25      5
               7    36      6
            The same bits as the run at step 6.
        """
        before = self.logdir, self._has_run, self._history_hooks, self._handover
        self._is_replaying = True
        try:
            return replays.replay(self, folder, steps, look, every, run_arguments)
        finally:
            self._is_replaying = False
            self.logdir, self._has_run, self._history_hooks, self._handover = before

    def describe(
        self,
        logdir: str | None = None,
        last_step: int | None = None,
        *,
        epochs: int | None = None,
        time_limit_secs: float | None = None,
        hooks: Iterable[Any] = (),
        progress: bool = True,
        log_steps: int | Epoch | None = 100,
        nan_check: str | None = "loss",
        on_nan: str = "raise",
        warm_start: str | WarmStart | None = None,
        train_on: bool = False,
        checkpoints: CheckpointOptions | None = None,
        logging: LoggingOptions | None = None,
        preemption: PreemptionOptions | None = None,
    ) -> description.LoopDescription:
        """Describes a `run` without training: the state, its devices, the output of hooks, and the compiled programs.

        Arguments and errors are those of `run`.

        Returns:
            The description; `print` shows it as a table.

        Example:
            >>> import hookline as hl, numpy as np
            >>> step = lambda state, batch: (state, {"loss": (state["w"] * batch).sum()})
            >>> loop = hl.train.Loop(step, {"w": np.ones(3, np.float32)}, lambda: iter(np.ones((9, 3), np.float32)))
            >>> print(loop.describe("/tmp/run"))
            3 numbers in 1 array, 12 B, 12 B on each device; on 1 device (cpu:0).
              w               3       12 B
            A batch: float32[3].
            It begins with the given state.
            SummarySaverHook writes summaries, events in '/tmp/run'; at steps 1, 101, 201 and so on.
            CheckpointSaverHook writes checkpoints '/tmp/run/model.ckpt-<step>'; each 600 seconds, at step 0 and ...
            StepCounterHook writes the steps per second, events in '/tmp/run'; at steps 101, 201, 301 and so on.
            Programs:
              outputs none; writes state, global_step
              the same with the fetches of hooks that fire
        """
        logdir, last_step = _check_end_arguments(logdir, last_step)
        checkpoints, logging, _ = checked_options("Loop", checkpoints, logging, preemption)
        hooks = _with_time_limit(hooks, time_limit_secs)
        own = self._loop_hooks(logdir, last_step, hooks, progress, log_steps, nan_check, on_nan, logging)
        feeds, writers = default_hooks("Loop", logdir, checkpoints, logging, Scaffold())
        set_epochs([*writers, *own], self._passes.epochs(first_step=self._initial_step()))
        stop = FinalStop(own, train_on)
        warm = as_warm_start(warm_start)
        fitting = warm and (lambda: warm_starts.check_match(warm, self.state, self._training_paths))
        last = min((step for step in (last_step, self._passes.num_steps(epochs)) if step is not None), default=None)
        begins = description.find_start(logdir, self._memory, fitting, self._initial_step(), last, stop)
        return description.LoopDescription(
            description.state_parts(self.state, self.form.parts, self._extra_variables),
            description.describe_devices(self.state, self.mesh),
            description.describe_batch(first_spec(self._batch)),
            begins.text,
            description.hook_outputs([*feeds, *writers, *own], begins, last),
            description.describe_programs(self.train_op, self.steps_per_run, watches=bool(self.metrics)),
            self._optimizer_steps.description,
        )

    def _scaffold(self, logdir: str | None, warm: WarmStart | None, checkpoints: CheckpointOptions) -> Scaffold:
        """Returns a scaffold that, if there is no checkpoint, resumes from memory or makes the warm start."""
        saver = None if checkpoints.saver is None else checkpoints.saver.clone()
        if self._memory is not None:
            if warm is not None:
                _logger.info(
                    "Loop: the training continues from step %d, where it stopped, without the warm start.",
                    self._memory.step,
                )
            return Scaffold(init_fn=lambda _, session: self._resume_from_memory(session, logdir), saver=saver)
        if warm is None:
            return Scaffold(saver=saver)

        def init(scaffold: Scaffold, session: Session) -> None:
            warm_starts.apply(warm, session, self.state, self._training_paths)
            if self._averages is not None:
                self._averages.reset(session, self.state)

        return Scaffold(init_fn=init, saver=saver)

    def _resume_from_memory(self, session: Session, logdir: str | None) -> None:
        """Resumes a session from memory; without a directory and at the end of the data, begins the next pass."""
        assert self._memory is not None, "It requires a checkpoint in memory."
        self._memory.values[STATE] = self.form.from_user(self._memory.values[STATE])
        self._passes.resume(self._memory.passes)
        self._memory.restore_into(session)
        if logdir is None:
            self._passes.begin_next_pass(session, self._memory.passes)


class _EpochsOfSession(SessionRunHook):
    """Finds the epochs of a session once its position in the data is restored, before another hook asks for them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def after_create_session(self, session: Session, coord: Any) -> None:
        session.hook_data["epochs"] = epochs = self._loop._passes.epochs(session)
        self._loop._check_reset_steps(epochs)


class _StateHandover(SessionRunHook):
    """Releases the loop's copy of the state during a session, and hands the trained state to the loop at the end.

    It is the last hook, because the `end` of another one may still run a step.
    """

    def __init__(self, loop: Loop, last_step: int | None) -> None:
        self._loop, self._last_step = loop, last_step
        self._first_step: int | None = None  # A recovery keeps it.

    def after_create_session(self, session: Session, coord: Any) -> None:
        loop = self._loop
        self._first_step = session.global_step if self._first_step is None else self._first_step
        loop.form.release()
        if loop._memory is not None:
            loop._memory.warn_if_ignored(session, loop.logdir)

    def end(self, session: Session) -> None:
        assert self._first_step is not None, "The session was created."
        loop = self._loop
        loop._passes.warn_early_end(session, self._first_step, self._last_step)
        values = session.backend.borrow_value(loop.state)
        loop.result = loop.form.to_user(values)
        if loop._averages is not None:
            loop.averaged_result = loop._averages.to_user(session, loop.form, values)
        loop._memory = InMemoryCheckpoint.capture(session, loop._passes.completed(session))


def _check_end_arguments(logdir: Any, last_step: Any) -> tuple[str | None, int | None]:
    """Checks `logdir` and `last_step`, and returns them as a string and an integer."""
    last_step = None if last_step is None else arguments.check_count("Loop", "last_step", last_step, at_least=0)
    return arguments.check_path("Loop", "logdir", logdir, optional=True), last_step


def _with_time_limit(hooks: Iterable[Any], secs: float | None) -> list[Any]:
    return [*([] if secs is None else [TimeLimitHook(secs)]), *checked_hooks(hooks)]
