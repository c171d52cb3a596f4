"""Hooks of public repositories that run, forward or move what is not theirs, in `hookline_tf1`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf1.conformance.parts import counted_training, steps_saved, train_with

from conformance.parts import only, scalars
from conformance.scenario import Record, scenario
from conformance.system import System


def _gan(s: System, counts_in: str) -> Record:
    """Trains as TF-GAN does: raw runs of a hook (RunTrainOpsHook) train, and the caller's run counts."""
    tf = s.tf
    step = tf.train.get_or_create_global_step()
    count = s.group(s.counted(step, 1))
    weight = tf.Variable(0.0, name="weight")
    trains = [weight.assign_add(1.0), count] if counts_in == "the hook" else [weight.assign_add(1.0)]

    class RunTrainOps(tf.train.SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            for _ in range(2):
                run_context.session.run(trains)

    summary = tf.train.SummarySaverHook(save_steps=3, output_dir=s.folder, summary_op=tf.summary.scalar("w", weight))
    log = tf.train.LoggingTensorHook({"weight": weight}, every_n_iter=2)
    hooks = [RunTrainOps(), tf.train.StopAtStepHook(num_steps=7), log, summary]
    with s.clock():
        runs = train_with(tf, count, hooks, 20)
    tf.summary.FileWriterCache.clear()
    return {"runs": runs, "written": scalars(s.events(s.folder)), "log": only(s.log, "weight = ")}


@scenario("v1.forwarding.gan.caller_counts")
def _(s: System) -> Record:
    """A hook trains in raw runs of its own, beside a stop, a log and summaries (TF-GAN's RunTrainOpsHook)."""
    return _gan(s, "the caller's run")


@scenario("v1.forwarding.gan.hook_counts_too")
def _(s: System) -> Record:
    """The raw runs of such a hook count as well, so that a run of the caller begins past a cadence or a target."""
    return _gan(s, "the hook")


def _forwarding(tf: Any, hook: Any, context_of: Callable[[Any], Any]) -> Any:
    """Forwards to a hook until that requests a stop, which it keeps (AdaNet's _TrainingHookRunnerHook)."""

    class Forward(tf.train.SessionRunHook):
        stopped_after: int | None = None
        runs = 0

        def begin(self) -> None:
            hook.begin()

        def after_create_session(self, session: Any, coord: Any) -> None:
            hook.after_create_session(session, coord)

        def before_run(self, run_context: Any) -> Any:
            self.runs += 1
            return hook.before_run(context_of(run_context)) if self.stopped_after is None else None

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if self.stopped_after is None:
                own = context_of(run_context)
                hook.after_run(own, run_values)
                if own.stop_requested:
                    self.stopped_after = self.runs

        def end(self, session: Any) -> None:
            hook.end(session)

    return Forward()


def _all_hooks(s: System, context_of: Callable[[Any], Any]) -> Record:
    """Forwards to one hook of each kind, each from a hook of its own."""
    tf = s.tf
    train_op, loss = counted_training(s)
    summary = tf.summary.scalar("value", loss)
    stops = _forwarding(tf, tf.train.StopAtStepHook(num_steps=5), context_of)
    nan = _forwarding(tf, tf.train.NanTensorHook(tf.log(loss - 0.1), fail_on_nan_loss=False), context_of)
    hooks = [
        tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=3),
        tf.train.StepCounterHook(every_n_steps=2, output_dir=s.folder),
        tf.train.SummarySaverHook(save_steps=2, output_dir=s.folder, summary_op=summary),
        tf.train.CheckpointSaverHook(s.folder, save_steps=3, saver=tf.train.Saver()),
    ]
    with s.clock() as clock:

        class Tick(tf.train.SessionRunHook):
            def before_run(self, run_context: Any) -> None:
                clock.advance(0.5)

        train_with(tf, train_op, [Tick(), stops, nan, *(_forwarding(tf, hook, context_of) for hook in hooks)], 8)
    tf.summary.FileWriterCache.clear()
    return {
        "stopped_after": [stops.stopped_after, nan.stopped_after],
        "log": only(s.log, "INFO loss = "),
        "written": sorted(scalars(s.events(s.folder))),
        "saved": steps_saved(s),
    }


@scenario("v1.forwarding.context_of_its_own")
def _(s: System) -> Record:
    """Built-in hooks that another hook calls with contexts of its own (AdaNet's _TrainingHookRunnerHook)."""
    return _all_hooks(s, lambda context: s.tf.train.SessionRunContext(context.original_args, context.session))


@scenario("v1.forwarding.same_context")
def _(s: System) -> Record:
    """Built-in hooks that another hook calls with the session's contexts (AdaNet's _HookContextDecorator)."""
    return _all_hooks(s, lambda context: context)


@scenario("v1.forwarding.every_other_run")
def _(s: System) -> Record:
    """A hook that forwards on some runs only, with results taken apart (a PeriodicHookWrapper)."""
    tf = s.tf
    train_op, loss = counted_training(s)
    inner = tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=2)
    timer = tf.train.SecondOrStepTimer(every_steps=2)

    class Periodic(tf.train.SessionRunHook):
        runs = 0

        def begin(self) -> None:
            inner.begin()

        def before_run(self, run_context: Any) -> Any:
            self.is_due = timer.should_trigger_for_step(self.runs)
            asked = inner.before_run(run_context) if self.is_due else None
            return tf.train.SessionRunArgs([loss, [] if asked is None else asked.fetches])

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if self.is_due:
                values = tf.train.SessionRunValues(run_values.results[1], run_values.options, run_values.run_metadata)
                inner.after_run(run_context, values)
                timer.update_last_triggered_step(self.runs)
            self.runs += 1

    with s.clock():
        train_with(tf, train_op, [Periodic()], 7)
    return {"log": only(s.log, "loss = ")}


@scenario("v1.forwarding.several")
def _(s: System) -> Record:
    """A hook that asks for what several others ask for, each under itself as key (a MultiHook)."""
    tf = s.tf
    train_op, loss = counted_training(s)
    inner = [
        tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=2),
        tf.train.StopAtStepHook(last_step=4),
        tf.train.SessionRunHook(),
    ]

    class Several(tf.train.SessionRunHook):
        def begin(self) -> None:
            for hook in inner:
                hook.begin()

        def after_create_session(self, session: Any, coord: Any) -> None:
            for hook in inner:
                hook.after_create_session(session, coord)

        def before_run(self, run_context: Any) -> Any:
            asked = {hook: hook.before_run(run_context) for hook in inner}
            return tf.train.SessionRunArgs({hook: args.fetches for hook, args in asked.items() if args is not None})

        def after_run(self, run_context: Any, run_values: Any) -> None:
            for hook in inner:
                results = run_values.results.get(hook)
                hook.after_run(
                    run_context, tf.train.SessionRunValues(results, run_values.options, run_values.run_metadata)
                )

    with s.clock():
        return {"runs": train_with(tf, train_op, [Several()], 7), "log": only(s.log, "loss = ")}


@scenario("v1.forwarding.by_hand")
def _(s: System) -> Record:
    """Built-in hooks that a loop of one's own calls around a plain session (Tensorpack's HookToCallback)."""
    tf = s.tf
    train_op, loss = counted_training(s)
    hooks = [
        tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=2),
        tf.train.CheckpointSaverHook(s.folder, save_steps=2, saver=tf.train.Saver()),
        tf.train.StopAtStepHook(num_steps=5),
    ]
    runs = 0
    with s.clock():
        for hook in hooks:
            hook.begin()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for hook in hooks:
                hook.after_create_session(session, None)
            stops = False
            while not stops:
                context = tf.train.SessionRunContext(tf.train.SessionRunArgs(train_op), session)
                asked = [hook.before_run(context) for hook in hooks]
                fetches = [[] if args is None else args.fetches for args in asked]
                _, results = session.run([train_op, fetches])
                for hook, result in zip(hooks, results, strict=True):
                    hook.after_run(context, tf.train.SessionRunValues(result, tf.RunOptions(), tf.RunMetadata()))
                stops, runs = context.stop_requested, runs + 1
            for hook in hooks:
                hook.end(session)
    tf.summary.FileWriterCache.clear()
    return {"runs": runs, "log": only(s.log, "loss = "), "saved": steps_saved(s)}


@scenario("v1.forwarding.input_pipeline")
def _(s: System) -> Record:
    """A hook that saves with a hook of its own, whose timer it moves (the Estimator's CheckpointInputPipelineHook)."""
    tf = s.tf
    train_op, _ = counted_training(s)

    class Pipeline(tf.train.SessionRunHook):
        def __init__(self, folder: str) -> None:
            self._saver_hook = tf.train.CheckpointSaverHook(
                folder, save_steps=2, checkpoint_basename="input", saver=tf.train.Saver()
            )

        def begin(self) -> None:
            self._saver_hook.begin()

        def after_create_session(self, session: Any, coord: Any) -> None:
            self._first_run = True

        def before_run(self, run_context: Any) -> Any:
            if self._first_run:
                step = run_context.session.run(self._saver_hook._global_step_tensor)
                self._saver_hook._save(run_context.session, step)
                self._saver_hook._timer.update_last_triggered_step(step)
                self._first_run = False
            return self._saver_hook.before_run(run_context)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self._saver_hook.after_run(run_context, run_values)

        def end(self, session: Any) -> None:
            self._saver_hook.end(session)

    train_with(tf, train_op, [Pipeline(s.folder)], 5)
    tf.summary.FileWriterCache.clear()
    return {"saved": steps_saved(s)}


def _moved(s: System, move: Callable[[Any, int], object], at: int) -> Record:
    """Has a hook move the timers of others after a run."""
    tf = s.tf
    train_op, loss = counted_training(s)
    others = [
        tf.train.LoggingTensorHook({"weight": tf.sqrt(loss)}, every_n_iter=4),
        tf.train.CheckpointSaverHook(s.folder, save_steps=4, saver=tf.train.Saver()),
        tf.train.SummarySaverHook(save_steps=4, output_dir=s.folder, summary_op=tf.summary.scalar("value", loss)),
    ]

    class Moving(tf.train.SessionRunHook):
        runs = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.runs += 1
            if self.runs == at:
                for hook in others:
                    move(hook._timer, at)

    with s.clock():
        train_with(tf, train_op, [*others, Moving()], 12)
    tf.summary.FileWriterCache.clear()
    written = [step for step, tag, _ in scalars(s.events(s.folder)) if tag == "value"]
    return {"log": only(s.log, "weight = "), "saved": steps_saved(s), "written": written}


@scenario("v1.forwarding.timer.moved_on")
def _(s: System) -> Record:
    """Timers that another hook has moved on count from there."""
    return _moved(s, lambda timer, run: timer.update_last_triggered_step(run), 3)


@scenario("v1.forwarding.timer.reset")
def _(s: System) -> Record:
    """Timers that another hook has reset fire on the next run."""
    return _moved(s, lambda timer, run: timer.reset(), 2)


@scenario("v1.forwarding.timer.reset_by_the_loop")
def _(s: System) -> Record:
    """Timers that the training loop has reset fire on the next run."""
    tf = s.tf
    train_op, loss = counted_training(s)
    log = tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=5)
    saver = tf.train.CheckpointSaverHook(s.folder, save_steps=5, saver=tf.train.Saver())
    with s.clock(), tf.train.MonitoredTrainingSession(hooks=[log, saver]) as sess:
        for run in range(9):
            sess.run(train_op)
            if run == 2:
                log._timer.reset()
                saver._timer.reset()
    tf.summary.FileWriterCache.clear()
    return {"log": only(s.log, "loss = "), "saved": steps_saved(s)}


@scenario("v1.forwarding.timer.of_its_own")
def _(s: System) -> Record:
    """A saver that is given a timer which also looks where the training is (a CheckpointSaverHookCustom)."""
    tf = s.tf
    train_op, _ = counted_training(s)

    class Later(tf.train.SecondOrStepTimer):
        def __init__(self, start_step: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.start_step = start_step

        def should_trigger_for_step(self, step: int) -> bool:
            if self._last_triggered_step is None:
                return True
            return step > self.start_step and step >= self._last_triggered_step + self._every_steps

    class Saving(tf.train.CheckpointSaverHook):
        def __init__(self, start_step: int, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._timer = Later(start_step, every_steps=kwargs["save_steps"])

    train_with(tf, train_op, [Saving(4, s.folder, save_steps=2, saver=tf.train.Saver(max_to_keep=9))], 8)
    return {"saved": steps_saved(s)}
