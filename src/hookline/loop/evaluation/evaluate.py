"""Evaluate: evaluates on held-out data during training."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from hookline import arguments, log, summary
from hookline.checkpoint import Saver
from hookline.coordination import Coordinator
from hookline.data.batches import LastBatch
from hookline.graph import get_default_graph
from hookline.hooks import CheckpointSaverHook, Firing, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks import every as every_steps
from hookline.hooks.epochs import Epoch, known_epochs
from hookline.hooks.lookup import require_global_step, session_savers
from hookline.hooks.reporting.console import ConsoleHook
from hookline.hooks.reporting.progress_output import value_text
from hookline.hooks.trigger import Trigger
from hookline.loop.evaluation.eval_result import (
    Best,
    EvalResult,
    Mode,
    infer_mode,
    is_better,
    resolve_mode,
)
from hookline.loop.evaluation.evaluation import Evaluation
from hookline.loop.metric_hooks import History
from hookline.loop.step.step_graph import loop_of
from hookline.monitored.stop_request import FINAL_STOP_KEY
from hookline.session import Session
from hookline.signals import interrupts
from hookline.summary import FileWriter
from hookline.summary.writer_cache import get_writer

_logger = log.get_logger(__name__)

_MODE_NOTE = " Only metrics whose name shows whether small or large values are better, and keep_best=, have a best one."


class Evaluate(SessionRunHook):
    """Evaluates on other data during training: each metric over all batches.

    With `train.Loop`, `eval_step(state, batch)` returns metrics like a train step, and is compiled like one. If the
    state has several parts, its parameters are matched by name to the parts, as in the train step; if no name matches,
    it gets the first parts, as many as it requires: `eval_step(model, batch)`. NNX objects are copies, so
    `model.eval()` in it does not affect the training. NNX metrics among them begin empty and accumulate over the
    batches. With a graph of your own, give tensors and feed dicts instead of a function and batches.

    A number or an array is the mean of its batch, and the result is the mean over the batches, weighted by their
    numbers of examples. A pair under a name, `{"loss": (sum, weight)}`, is a sum and its weight: the result is the sum
    of the sums divided by the sum of the weights, whatever the numbers of examples. Objects with `merge()` and
    `compute()`, such as those of `clu`, are merged over the batches, and `compute()` is called once, on the host. The
    log states once how each metric is combined.

    The results are logged, and written to a TensorBoard run of their own, in the directory `name` beside the training's
    summaries, under the names of the metrics; so TensorBoard draws training and evaluation in one chart. The best value
    of each metric is saved in checkpoints, and stays even if the checkpoint of its step is removed. Training waits
    during an evaluation. With `Loop(smoothing_steps=)` its line on `sys.stderr` also has the means of the training.
    Callbacks: `begin`, `after_create_session`, `after_run` once, `on_trigger`, and `end`, which evaluates the last step
    unless that was done; none after an exception.

    `on_result` may act on the results: set a learning rate, stop. It is called for the evaluations of `every` and
    `on_start`, but not for the additional one at the end of a `Loop.run`. So a training that was interrupted and
    resumed makes the same calls as an uninterrupted one.

    Args:
        eval_step: A function; or a tensor of a graph, or several, nested in dicts.
        batches: A function that makes an iterable of batches, or an iterable that can be read repeatedly; with tensors,
            its items are feed dicts. With None the function gets no batch, and is called once.
        every: Global steps between evaluations, "epoch" for the end of each epoch, or a trigger.
        name: The name of the TensorBoard run, and of the evaluation in the log and in checkpoints.
        keep_best: A metric. The checkpoint of the step with its best value is kept in addition to the `max_to_keep`
            latest ones, and written if that step has none; `train.load(logdir, like, step="best")` reads it. If it is
            gone when a training resumes, a warning is logged, and the best of the next evaluations is kept.
        mode: "min" or "max": whether small or large values of `keep_best` are good. By default its name decides:
            "loss", "accuracy".
        output_dir: The directory of its summaries; by default, with a `Loop`, below its `logdir`.
        batch_sharding: As in `Loop`; by default also over the axis `data` of the state's mesh.
        last_batch: As in `Loop`. With "pad", `eval_step` gets a pair of the batch and a mask of its real examples, and
            its metrics are weighted by the number of real examples.
        steps_per_run: The largest number of batches in one run, which is one compiled loop. It does not change the
            results.
        averaged: Whether to evaluate the moving averages of `Loop(ema=...)` instead of the averaged leaves.
        batch_size: A function that counts the examples of a batch, or of a feed dict, for the means: `lambda batch:
            batch.shape[1]` if time comes first, or the number of tokens. By default the common first dimension.
        on_result: A function of an `EvalResult`, called after an evaluation and before a checkpoint of its step.
        on_start: Whether to evaluate before the first step of a new training, too, as `eval_on_start` of Hugging Face.
        sanity_batches: The number of batches that are evaluated before the first step of each `Loop.run`, to find
            errors early, as `num_sanity_val_steps` of Lightning. The results are discarded. If `on_start` evaluates,
            there is no such test.

    Attributes:
        values: The results of the last evaluation, by name: floats, and NumPy arrays for metrics that are arrays.
        step: The global step of the last evaluation; `None` before the first.
        best: For each metric with a known mode, its best value and the step.
        history: For each scalar metric, the `steps` and `values` of all evaluations, over restarts.
        trigger: The trigger of the evaluations.
        metric_names: The names of the metrics; None before the first evaluation if only that shows them all.

    Raises:
        TypeError: `eval_step` is neither a function nor tensors; `batches` is not a source of batches, or contains
            text.
        ValueError: `batches` is an iterator, which gives each batch once, has no end, or is empty; `mode` is missing.
            When a session is created: a batch cannot be split; another evaluation has `keep_best`. From the first run:
            the session saves no checkpoints to keep.

    Example:
        >>> import hookline as hl, numpy as np
        >>> def train_step(state, batch):
        ...     return {"w": state["w"] + 1.0}, {}
        >>> def eval_step(state, batch):
        ...     return {"loss": abs(batch - state["w"]).mean()}
        >>> evaluate = Evaluate(eval_step, hl.data.from_arrays(np.arange(5.0), batch_size=2), every=2)
        >>> loop = hl.train.Loop(train_step, {"w": 0.0}, hl.data.from_arrays(np.arange(8), batch_size=1))
        >>> _ = loop.run(last_step=6, hooks=[evaluate])
        >>> evaluate.values, evaluate.best
        ({'loss': 4.0}, {'loss': Best(value=1.2, step=2)})

    References:
        None in `tf.train`; `tf.estimator.train_and_evaluate` evaluated from checkpoints, as `train.evaluate_repeatedly`
        does. `keep_best` corresponds to `tf.estimator.BestExporter`.
    """

    # A checkpoint of the same step must contain the best values so far.
    comes_before = (CheckpointSaverHook,)

    def __init__(
        self,
        eval_step: Any,
        batches: Any,
        every: int | Epoch | Trigger,
        name: str = "eval",
        *,
        keep_best: str | None = None,
        mode: str | None = None,
        output_dir: str | None = None,
        batch_sharding: Any = None,
        last_batch: LastBatch = "keep",
        steps_per_run: int = 1,
        averaged: bool = False,
        batch_size: Callable[[Any], float] | None = None,
        on_result: Callable[[EvalResult], Any] | None = None,
        on_start: bool = False,
        sanity_batches: int = 0,
    ) -> None:
        self.trigger = every if isinstance(every, Trigger) else every_steps(every)
        self._evaluation = Evaluation(
            f"Evaluate {name!r}", eval_step, batches, batch_sharding, last_batch, steps_per_run, averaged, batch_size
        )
        self.name, self._output_dir = name, output_dir
        self._on_result = arguments.check_callable("Evaluate", "on_result", on_result, optional=True)
        self._on_start = arguments.check_optional("Evaluate", "on_start", on_start, bool)
        self._sanity_batches = arguments.check_int("Evaluate", "sanity_batches", sanity_batches, at_least=0)
        best = "" if keep_best is None else ", and the best checkpoint"
        self.output_description = f"its means, events in '{output_dir or f'<summaries>/{name}'}'{best}"
        self._keep_best = arguments.check_str("Evaluate", "keep_best", keep_best, optional=True)
        if mode is not None and keep_best is None:
            raise ValueError("Evaluate takes mode with keep_best, got mode alone.")
        self._mode: Mode | None = None if keep_best is None else resolve_mode("Evaluate", keep_best, mode)
        self.values: dict[str, Any] = {}
        self.step: int | None = None
        self.best: dict[str, Best] = {}
        self.history = History()
        self.metric_names: tuple[str, ...] | None = None
        self._plateau: dict[str, tuple[Best | None, int]] = {}  # For `EvalResult`: without evaluations of `end`.
        self._is_sanity_checked = False
        self._kept_best: Best | None = None  # The best of `keep_best`, as long as its checkpoint exists.
        self._writer: FileWriter | None = None
        self._created_at_step = 0
        self._has_run = self._has_session_start = False

    def begin(self) -> None:
        """Adds the evaluation to the graph, once, and opens the writer."""
        require_global_step(self)
        self.values, self.step, self.best, self._kept_best = {}, None, {}, None
        self.history, self._plateau, self._is_sanity_checked = History(), {}, False
        names = tuple(self._evaluation.build())
        self.metric_names = None if self._evaluation.may_have_more_names else names
        if self.metric_names is not None:
            self._check_metric(self.metric_names)
        if self._keep_best is not None and self._evaluation.shapes.get(self._keep_best):
            raise self._array_error()
        self._writer = get_writer(self._output_dir or self._evaluation.run_dir(self.name), self.name)
        loop = loop_of(get_default_graph())
        self.fetches = (loop and loop.means) or None  # For the console.

    def get_state(self) -> dict[str, Any]:
        """Returns the best and the last values."""
        best = {name: tuple(found) for name, found in self.best.items()}
        modes = {name: self._mode_of(name) for name in best | self._plateau}
        kept = self._kept_best and (self._keep_best, *self._kept_best)
        return {
            "best": best,
            "modes": modes,
            "values": self.values,
            "step": self.step,
            "kept": kept,
            "plateau": {name: (found and tuple(found), count) for name, (found, count) in self._plateau.items()},
            "history": self.history.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the last values, and the best values of metrics whose mode is the same."""
        is_same = lambda name: state["modes"][name] == self._mode_of(name)  # noqa: E731
        self.best = {name: Best(*found) for name, found in state["best"].items() if is_same(name)}
        self._plateau = {
            name: (None if found is None else Best(*found), count)
            for name, (found, count) in state["plateau"].items()
            if is_same(name)
        }
        self.history.set_state(state["history"])
        self.values, self.step = dict(state["values"]), state["step"]
        metric, *kept = state["kept"] or (None,)
        is_kept = metric == self._keep_best and metric in self.best
        self._kept_best = Best(*kept) if is_kept else None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Drops values of steps after the restored one, and evaluates before the first step, if that is wanted."""
        step = self._created_at_step = session.global_step
        is_new = not session.origin.startswith("restored")
        self.history.truncate(step - 1 if is_new else step)  # A new training evaluates the current step again.
        self._plateau = {} if is_new else self._plateau
        self.best = {name: found for name, found in self.best.items() if found.step <= step}
        self._kept_best = self._kept_best if self._kept_best and self._kept_best.step <= step else None
        if self.step is not None and self.step > step:
            self.values, self.step = {}, None
        self._has_run = self._has_session_start = False
        others = session_evaluations(session).values()
        rival = next((each.name for each in others if each is not self and each._keep_best and self._keep_best), None)
        if rival is not None:
            raise ValueError(
                f"Evaluate: {rival!r} and {self.name!r} both have keep_best, and a session keeps one best checkpoint: "
                "each would remove that of the other. Leave it out of one of them."
            )
        if session_evaluations(session).setdefault(self.name, self) is not self:
            raise ValueError(
                f"Evaluate: two evaluations are called {self.name!r}, and would write the same summaries. Give one of "
                f"them another name."
            )
        if is_new and self._on_start:
            self._evaluate(session, step)
            self._call_on_result(session, step, functools.partial(_stop_at_start, session, coord))
        elif self._sanity_batches and not self._is_sanity_checked:
            self._checked_results(self._evaluation.compute(session, self._sanity_batches))
            _logger.info("%s: the sanity run has passed (sanity_batches=%d).", self.name, self._sanity_batches)
        self._is_sanity_checked = True

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Finds the saver after the first run, and needs no further call."""
        if not self._has_run:
            self._find_best(run_context.session)
        run_context.stop_callbacks(self)
        super().after_run(run_context, run_values)

    def on_trigger(self, firing: Firing) -> None:
        """Evaluates, calls `on_result`, and keeps the best checkpoint."""
        session = firing.context.session
        is_best = self._evaluate(session, session.global_step, firing.values)
        self._call_on_result(
            session, session.global_step, firing.context.request_stop
        )  # Its changes belong to the checkpoint.
        if is_best:
            firing.context.deliver_pending()
            self._save_best(session, session.global_step)

    def steps_written(self, trigger: Trigger, first: int, last: int | None) -> Iterable[int] | None:
        """Returns the steps of evaluations: the trigger's, the last one, and with `on_start` a new training's first."""
        begins = [first] if self._on_start and trigger.get_state().get("base_step") is None else []
        found = super().steps_written(trigger, first, last)
        return None if found is None else itertools.chain(begins, found)

    def end(self, session: Session) -> None:
        """Evaluates the last step, if a step was trained and the last one was not evaluated."""
        step = session.global_step
        if self._has_run and self.step != step and self._evaluate(session, step):
            self._save_best(session, step)
        if self._writer is not None:
            self._writer.flush()

    def _evaluate(self, session: Session, step: int, means: Mapping[str, Any] | None = None) -> bool:
        """Evaluates; returns whether `keep_best` has improved. The console shows the training's means, too."""
        session.wait_for_device()
        with session.activity.during("evaluation"):
            self.values, self.step = self._checked_results(self._evaluation.compute(session)), step
        session.activity.listener("evaluated", step=step)
        self.history.record(step, self._scalars())
        for name, value in self._scalars().items():
            mode = self._mode_of(name)
            best = self.best.get(name)
            if mode is not None and is_better(mode, value, best and best.value):
                self.best[name] = Best(value, step)
        self._report(session, step, means or {})
        value = self._scalars().get(self._keep_best or "")
        if (
            value is None
            or self._mode is None
            or not is_better(self._mode, value, self._kept_best and self._kept_best.value)
        ):
            return False
        self._kept_best = Best(value, step)
        return True

    # There are two records of the best value, because an interruption adds an evaluation. With every=2:
    #
    #     step                       2     4     5 (killed, `end` evaluates)   6     8
    #     loss                       1.0   0.9   0.7                           0.8   0.8
    #     `best`, `keep_best`        1.0   0.9   0.7                           0.7   0.7
    #     `_plateau`, since_best     0     0     not counted                   0     1
    #
    # An uninterrupted run has no evaluation at step 5. `on_result` must make the same decisions in both, so for it the
    # best value is 0.8 at step 6. The checkpoint to keep is still that of step 5.
    def _call_on_result(self, session: Session, step: int, request_stop: Callable[[], Any]) -> None:
        """Counts the evaluations without improvement, and calls `on_result`."""
        for name, value in self._scalars().items():
            if (mode := self._mode_of(name)) is not None:
                best, count = self._plateau.get(name, (None, 0))
                is_best = is_better(mode, value, best and best.value)
                self._plateau[name] = (Best(value, step), 0) if is_best else (best, count + 1)
        if self._on_result is None:
            return
        best = {name: found for name, (found, _) in self._plateau.items() if found is not None}  # None: all were NaN.
        since = {name: count for name, (_, count) in self._plateau.items()}
        result = EvalResult(self.name, step, dict(self.values), best, since, session, request_stop)
        try:
            interrupts.call_user_function(self._on_result, result)
        except KeyError as error:
            if error.args[:1] and error.args[0] not in self.values:
                error.add_note(f"Available metrics: {', '.join(self.values)}.")
            elif error.args[:1]:
                error.add_note(_MODE_NOTE)
            raise

    def _mode_of(self, name: str) -> Mode | None:
        return self._mode if name == self._keep_best else infer_mode(name)

    def _checked_results(self, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the results, after a check that `keep_best` is a scalar: before, its name or shape may be unknown."""
        self.metric_names = tuple(values)
        self._check_metric(values)
        if isinstance(values.get(self._keep_best or ""), np.ndarray):
            raise self._array_error()
        return values

    def _check_metric(self, names: Collection[str]) -> None:
        if self._keep_best is not None and self._keep_best not in names:
            raise ValueError(
                f"Evaluate cannot keep the best checkpoint by {self._keep_best!r}: it is no metric of {self.name!r}. "
                f"Available metrics: {', '.join(names) or 'none'}."
            )

    def _array_error(self) -> ValueError:
        return ValueError(
            f"Evaluate cannot keep the best checkpoint by {self._keep_best!r}: it is an array. Give a mean."
        )

    def _scalars(self) -> dict[str, float]:
        return {name: value for name, value in self.values.items() if isinstance(value, float)}

    def _report(self, session: Session, step: int, means: Mapping[str, Any]) -> None:
        """Reports the results to the log, the console and the summaries."""
        shown, best = {name: value_text(value) for name, value in means.items()}, {}
        for name, value in self.values.items():
            shown[name] = _format_value(value)
            if found := self.best.get(name):
                best[f"{self.name}/{name}"] = text = f"{value_text(found.value)} at step {found.step}"
                shown[name] += " (best)" if found.step == step else f" (best {text})"
        epochs = known_epochs(session)
        epoch = f", epoch {epochs.number_at(step)}" if epochs and step else ""
        line = "  ".join([f"{self.name} at step {step}{epoch}", *(f"{name} {text}" for name, text in shown.items())])
        _logger.info("%s", line)
        if (console := session.hook_data.get(ConsoleHook)) is not None:
            is_shown = log.is_shown(_logger, logging.INFO, sys.stderr)
            console.show_evaluation(session, None if is_shown else line, best)
        if self._writer is None:
            return
        if not self._has_session_start:
            self._has_session_start = True
            # TensorBoard then hides events that an earlier process wrote after the restored checkpoint.
            self._writer.add_session_log(summary.SessionLog(status=summary.SessionLog.START), self._created_at_step + 1)
        values = [summary.Summary.Value(tag=name, simple_value=value) for name, value in self._scalars().items()]
        self._writer.add_summary(summary.Summary(value=values), step)

    def _find_best(self, session: Session) -> None:
        """Checks that a saver exists, and marks the best checkpoint if a killed process did not get to it."""
        self._has_run = True
        if self._keep_best is not None:
            saver = self._saver(session)
            if self._kept_best is None and session.origin.startswith("restored"):
                saver.mark_best(None)  # The best value is unknown: of another metric or mode, or not in the checkpoint.
            elif self._kept_best is not None and not saver.recover_best(session, self._kept_best.step):
                self._kept_best = None

    def _save_best(self, session: Session, step: int) -> None:
        saver = self._saver(session)
        session_savers(session)[saver](session)
        saver.mark_best(step)

    def _saver(self, session: Session) -> Saver:
        found = session_savers(session)
        if len(found) != 1:
            raise ValueError(
                f"Evaluate with keep_best={self._keep_best!r} requires a session with one saver, and this one has "
                f"{len(found)}. Give the session a directory for checkpoints, or leave out keep_best."
            )
        (saver,) = found
        return saver


def _format_value(value: Any) -> str:
    """Formats a result in one line."""
    is_large = np.size(value) > 16
    return f"an array of the shape {value.shape}" if is_large else value_text(value)


def session_evaluations(session: Session) -> dict[str, Evaluate]:
    """Returns the evaluations of a session, by name."""
    return session.hook_data.setdefault(Evaluate, {})


def _stop_at_start(session: Session, coord: Coordinator, *, final: str | None = None) -> None:
    """Requests a stop before the first run, as `SessionRunContext.request_stop` does in a run."""
    if why := arguments.check_str("request_stop", "final", final, optional=True):
        session.hook_data[FINAL_STOP_KEY] = why
    coord.request_stop()
