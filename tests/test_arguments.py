"""Wrong arguments of hooks, sessions and savers: one sentence each that says who, what was wrong, and what to give."""

from __future__ import annotations

import logging

import numpy as np
import optax
import pytest

import hookline as hl
from hookline import data, summary, testing, train


def training(**arguments):
    with hl.Graph().as_default():
        train.get_or_create_global_step()
        train.MonitoredTrainingSession(**arguments).close()


def monitored(**arguments):
    with hl.Graph().as_default():
        train.MonitoredSession(**arguments).close()


def written_at(step, folder):
    with summary.FileWriter(folder) as writer:
        writer.add_summary(summary.encode.scalar("loss", 1.0), step)


def in_a_graph(build):
    """Calls `build(loss, weight, step)` in a graph, with the tensors of a small model."""

    def mistake(tmp):
        with hl.Graph().as_default():
            step, weight = train.get_or_create_global_step(), hl.Variable(1.0, name="weight")
            return build(hl.op(lambda w: 2 * w, name="loss")(weight), weight, step)

    return mistake


def in_a_session(use):
    """Calls `use(session, tmp)` with an initialised session over that model."""

    def mistake(tmp):
        with hl.Graph().as_default(), hl.Session() as sess:
            train.get_or_create_global_step()
            hl.Variable(1.0, name="weight")
            sess.run(hl.global_variables_initializer())
            use(sess, tmp)

    return mistake


def saved(global_step):
    return in_a_session(lambda sess, tmp: train.Saver().save(sess, f"{tmp}/model.ckpt", global_step))


def run_with(make_hook):
    """Runs a session with the hook that `make_hook(loss)` makes."""

    def mistake(tmp):
        with hl.Graph().as_default():
            step = train.get_or_create_global_step()
            loss = hl.op(lambda s: s * 1.0, name="loss")(step)
            train_op = step.assign_add(1)
            with train.MonitoredSession(hooks=[make_hook(loss)]) as sess:
                sess.run(train_op)

    return mistake


MISTAKES = {
    "saving each nan seconds": (
        lambda tmp: training(checkpoint_dir=tmp, save_checkpoint_secs=float("nan")), ValueError,
        "MonitoredTrainingSession requires a number as save_checkpoint_secs, got nan",
    ),
    "saving each 2.5 steps": (
        lambda tmp: training(checkpoint_dir=tmp, save_checkpoint_steps=2.5), TypeError,
        "requires a whole number as save_checkpoint_steps, got 2.5",
    ),
    "saving each '10' steps": (
        lambda tmp: training(checkpoint_dir=tmp, save_checkpoint_steps="10"), TypeError, "_steps, got '10'",
    ),
    "summaries each '10' seconds": (
        lambda tmp: training(checkpoint_dir=tmp, save_summaries_secs="10"), TypeError, "save_summaries_secs, got '10'",
    ),
    "speed each 0.5 steps": (
        lambda tmp: training(checkpoint_dir=tmp, log_step_count_steps=0.5), TypeError, "log_step_count_steps, got 0.5",
    ),
    "a number as folder": (
        lambda tmp: training(checkpoint_dir=5), TypeError, r"a path \(or None\) as checkpoint_dir, got 5",
    ),
    "a number as folder of a creator": (
        lambda tmp: train.ChiefSessionCreator(checkpoint_dir=5), TypeError, "as checkpoint_dir, got 5",
    ),
    "text as scaffold": (
        lambda tmp: training(scaffold="x"), TypeError,
        r"ChiefSessionCreator requires a Scaffold \(or None\) as scaffold, got 'x'",
    ),
    "a number as recovery": (
        lambda tmp: monitored(recovery=3), TypeError, r"requires a RecoveryPolicy \(or None\) as recovery, got 3",
    ),
    "text as grace": (
        lambda tmp: monitored(stop_grace_period_secs="x"), TypeError, "a number as stop_grace_period_secs, got 'x'",
    ),
    "text as attempts": (
        lambda tmp: train.RecoveryPolicy(max_attempts="3"), TypeError, "a whole number as max_attempts, got '3'",
    ),
    "nan as wait": (
        lambda tmp: train.RecoveryPolicy(initial_backoff_secs=float("nan")), ValueError, "backoff_secs, got nan",
    ),
    "text as last step": (
        lambda tmp: train.StopAtStepHook(last_step="10"), TypeError,
        "StopAtStepHook requires a whole number as last_step, got '10'",
    ),
    "a fraction as last step": (lambda tmp: train.StopAtStepHook(last_step=1.5), TypeError, "last_step, got 1.5"),
    "a negative last step": (lambda tmp: train.StopAtStepHook(last_step=-5), ValueError, "last_step >= 0, got -5"),
    "a flag as number of steps": (lambda tmp: train.StopAtStepHook(num_steps=True), TypeError, "num_steps, got True"),
    "text as cadence": (
        lambda tmp: train.LoggingTensorHook(["loss"], every_n_iter="10"), TypeError, "every_n_iter, got '10'",
    ),
    "nothing to log": (
        lambda tmp: train.LoggingTensorHook([], every_n_iter=1), ValueError, "requires a tensor or more to log",
    ),
    "a name to log": (
        lambda tmp: train.LoggingTensorHook("loss", every_n_iter=1), TypeError, r"got 'loss'\. Put it in a list",
    ),
    "text as timer": (
        lambda tmp: train.SecondOrStepTimer(every_steps="10"), TypeError, "a whole number as every_steps, got '10'",
    ),
    "nan as timer": (
        lambda tmp: train.SecondOrStepTimer(every_secs=float("nan")), ValueError, "a number as every_secs, got nan",
    ),
    "text as step to wait for": (
        lambda tmp: train.GlobalStepWaiterHook("10"), TypeError, "a whole number as wait_until_step, got '10'",
    ),
    "text as checkpoints to keep": (
        lambda tmp: train.Saver(max_to_keep="5"), TypeError, "Saver requires a whole number as max_to_keep, got '5'",
    ),
    "a step of more than 64 bits": (lambda tmp: written_at(2**70, tmp), ValueError, "a step of at most 64 bits, got"),
    "a name as graph": (
        lambda tmp: train.get_or_create_global_step("g"), TypeError, r"give a hookline\.Graph or None, got 'g'",
    ),
    "no name for a summary": (
        lambda tmp: summary.scalar(None, 1.0), TypeError, "The name of a summary is a string, got None",
    ),
    "a number as folder of checkpoints": (
        lambda tmp: train.CheckpointSaverHook(5, save_steps=1), TypeError,
        "CheckpointSaverHook requires a path as checkpoint_dir, got 5",
    ),
    "bytes as folder of checkpoints": (
        lambda tmp: train.CheckpointSaverHook(b"x", save_steps=1), TypeError, "a path as checkpoint_dir, got b'x'",
    ),
    "no name of checkpoints": (
        lambda tmp: train.CheckpointSaverHook(tmp, save_steps=1, checkpoint_basename=None), TypeError,
        "a path as checkpoint_basename, got None",
    ),
    "a number as listeners": (
        lambda tmp: train.CheckpointSaverHook(tmp, save_steps=1, listeners=5), TypeError,
        r"CheckpointSaverHook requires a list \(or None\) as listeners, got 5",
    ),
    "text as saver": (
        lambda tmp: train.CheckpointSaverHook(tmp, save_steps=1, saver="x"), TypeError,
        r"requires a Saver \(or None\) as saver, got 'x'",
    ),
    "a number as scaffold of a hook": (
        lambda tmp: train.CheckpointSaverHook(tmp, save_steps=1, scaffold=5), TypeError,
        r"requires a Scaffold \(or None\) as scaffold, got 5",
    ),
    "no folder of profiles": (
        lambda tmp: train.ProfilerHook(save_steps=1, output_dir=None), TypeError,
        "ProfilerHook requires a path as output_dir, got None",
    ),
    "a number as folder of rates": (
        lambda tmp: train.StepCounterHook(output_dir=5), TypeError,
        r"StepCounterHook requires a path \(or None\) as output_dir, got 5",
    ),
    "text as writer": (
        lambda tmp: train.SummarySaverHook(1, summary_writer="x", summary_op=1), TypeError,
        r"SummarySaverHook requires a FileWriter \(or None\) as summary_writer, got 'x'",
    ),
    "a number as folder of last summaries": (
        lambda tmp: train.SummaryAtEndHook(5), TypeError, "SummaryAtEndHook requires a path .* as log_dir, got 5",
    ),
    "no folder of events": (
        lambda tmp: summary.FileWriter(None), TypeError, "FileWriter requires a path as logdir, got None",
    ),
    "a number as folder of a shared writer": (
        lambda tmp: summary.FileWriterCache.get(5), TypeError, "FileWriterCache.get requires a path as logdir, got 5",
    ),
    "text as queue": (
        lambda tmp: summary.FileWriter(tmp, max_queue="x"), TypeError, "a whole number as max_queue, got 'x'",
    ),
    "nan as time to flush": (
        lambda tmp: summary.FileWriter(tmp, flush_secs=float("nan")), ValueError, "a number as flush_secs, got nan",
    ),
    "text as step of a summary": (
        lambda tmp: written_at("x", tmp), TypeError, "FileWriter requires a whole number as global_step, got 'x'",
    ),
    "a number as folder to look in": (
        lambda tmp: train.latest_checkpoint(5), TypeError,
        "Looking for checkpoints requires a path as checkpoint_dir, got 5",
    ),
    "a number as name of the state file": (
        lambda tmp: train.get_checkpoint_state(tmp, 5), TypeError, r"text \(or None\) as latest_filename, got 5",
    ),
    "no checkpoint to look for": (
        lambda tmp: train.checkpoint_exists(None), TypeError, "requires a path as checkpoint_prefix, got None",
    ),
    "no checkpoint to verify": (
        lambda tmp: train.verify(None), TypeError, "verify requires a path as ckpt_dir_or_file, got None",
    ),
    "a number as checkpoint to list": (
        lambda tmp: train.list_variables(5), TypeError, "list_variables requires a path as ckpt_dir_or_file, got 5",
    ),
    "a number as checkpoint to read": (
        lambda tmp: train.load_variable(5, "w"), TypeError, "load_variable requires a path as ckpt_dir_or_file, got 5",
    ),
    "a number as variable to read": (
        lambda tmp: train.load_variable(tmp, 5), TypeError, "load_variable requires text as name, got 5",
    ),
    "a number as checkpoint to start from": (
        in_a_graph(lambda loss, w, step: train.warm_start(5)), TypeError, "warm_start requires a path as",
    ),
    "a number as checkpoint to assign from": (
        in_a_graph(lambda loss, w, step: train.assign_from_checkpoint(5, [w])), TypeError,
        "assign_from_checkpoint requires a path as model_path, got 5",
    ),
    "a number as variables to assign": (
        lambda tmp: train.assign_from_checkpoint_fn(tmp, 5), TypeError, "requires a list as var_list, got 5",
    ),
    "text as wait for a checkpoint": (
        lambda tmp: train.wait_for_new_checkpoint(tmp, timeout="x"), TypeError, "a number as timeout, got 'x'",
    ),
    "a number as function at the timeout": (
        lambda tmp: train.checkpoints_iterator(tmp, timeout_fn=5), TypeError,
        r"checkpoints_iterator requires a function \(or None\) as timeout_fn, got 5",
    ),
    "a number as variables of a saver": (
        lambda tmp: train.Saver(5), TypeError, "Saver requires a list as var_list, got 5",
    ),
    "no session to save": (
        lambda tmp: train.Saver().save(None, tmp + "/a"), TypeError, "Saver.save requires a session as sess, got None",
    ),
    "no path to save to": (
        in_a_session(lambda sess, tmp: train.Saver().save(sess, None)), TypeError,
        "Saver.save requires a path as save_path, got None",
    ),
    "a number as path to restore": (
        in_a_session(lambda sess, tmp: train.Saver().restore(sess, 5)), TypeError,
        "Saver.restore requires a path as save_path, got 5",
    ),
    "one path as those to recover": (
        lambda tmp: train.Saver().recover_last_checkpoints("x"), TypeError, "a list as checkpoint_paths, got 'x'",
    ),
    "a save before the first step": (saved(-1), ValueError, "Saver.save requires global_step >= 0, got -1"),
    "a save in the middle of a step": (saved(2.5), TypeError, "requires a whole number as global_step, got 2.5"),
    "a save at True": (saved(True), TypeError, "requires a whole number as global_step, got True"),
    "no function to feed": (
        lambda tmp: train.FeedFnHook(None), TypeError, "FeedFnHook requires a function as feed_fn, got None",
    ),
    "a number as feed of last operations": (
        lambda tmp: train.FinalOpsHook("loss:0", 5), TypeError, r"a dict \(or None\) as final_ops_feed_dict, got 5",
    ),
    "text as formatter": (
        lambda tmp: train.LoggingTensorHook(["loss"], every_n_iter=1, formatter="x"), TypeError,
        r"LoggingTensorHook requires a function \(or None\) as formatter, got 'x'",
    ),
    "a number to log": (
        lambda tmp: train.LoggingTensorHook([1], every_n_iter=1), TypeError,
        r"LoggingTensorHook requires a tensor or its name as one of \[1\], got 1",
    ),
    "text as file of a progress line": (
        lambda tmp: train.ProgressHook(file="x"), TypeError, r"requires a file \(or None\) as file, got 'x'",
    ),
    "a trigger that is a number": (
        run_with(lambda loss: type("Hook", (train.SessionRunHook,), {"trigger": 5, "on_trigger": print})()),
        TypeError, r"The hook Hook must have a Trigger \(or None\) as trigger, got 5",
    ),
    "no number of runs to count": (lambda tmp: train.every(runs=0), ValueError, "every requires runs >= 1, got 0"),
    "two ways to count": (
        lambda tmp: train.every(10, runs=3), ValueError,
        "every requires exactly one of steps, secs or runs, got steps and runs",
    ),
    "a trigger that counts runs in an and": (
        lambda tmp: train.every(10) & train.every(runs=3), TypeError,
        r"& combines triggers in steps and in seconds, got every\(runs=3\), which has neither",
    ),
    "no latch": (
        lambda tmp: train.latched(3), TypeError, "latched requires an operation of hookline.latch, got 3",
    ),
    "text as the last step of a session": (
        run_with(lambda loss: type("Hook", (train.SessionRunHook,), {
            "after_create_session": lambda self, session, coord: session.limit_step("10"),
        })()),
        TypeError, r"Session.limit_step requires a whole number as last_step, got '10'",
    ),
    "nothing to space by": (
        lambda tmp: train.spaced(), ValueError, "spaced requires exactly one of steps or secs, got neither",
    ),
    "no role": (
        lambda tmp: training(is_chief=None), TypeError, "requires True or False as is_chief, got None",
    ),
    "text as wait for the chief": (
        lambda tmp: training(max_wait_secs="x"), TypeError, "requires a number as max_wait_secs, got 'x'",
    ),
    "a number as creator": (
        lambda tmp: monitored(session_creator=5), TypeError,
        "MonitoredSession requires a SessionCreator as session_creator, got 5",
    ),
    "a number as step function": (
        in_a_graph(lambda loss, w, step: train.MonitoredSession().run_step_fn(5)), TypeError,
        "run_step_fn requires a function as step_fn, got 5",
    ),
    "text as seed of a recovery": (
        lambda tmp: train.RecoveryPolicy(seed="x"), TypeError, "requires a whole number as seed, got 'x'",
    ),
    "a number as clean exceptions": (
        lambda tmp: train.Coordinator(5), TypeError, "Coordinator requires a list as clean_stop_exception_types, got 5",
    ),
    "text among clean exceptions": (
        lambda tmp: train.Coordinator(["x"]), TypeError, "exceptions as clean_stop_exception_types, got 'x'",
    ),
    "a number as threads": (
        lambda tmp: train.Coordinator().join(5), TypeError, r"join requires a list \(or None\) as threads, got 5",
    ),
    "no thread": (
        lambda tmp: train.Coordinator().register_thread(None), TypeError, "requires a thread as thread, got None",
    ),
    "text as time of a wait": (
        lambda tmp: train.Coordinator().wait_for_stop("x"), TypeError, "requires a number as timeout, got 'x'",
    ),
    "a number as target": (
        lambda tmp: train.LooperThread(train.Coordinator(), 1, 5), TypeError,
        r"LooperThread requires a function \(or None\) as target, got 5",
    ),
    "text as interval": (
        lambda tmp: train.LooperThread(train.Coordinator(), "x"), TypeError, "a number as timer_interval_secs, got 'x'",
    ),
    "no session to read the step in": (
        in_a_graph(lambda loss, w, step: train.global_step(None, step)), TypeError,
        "global_step requires a session as sess, got None",
    ),
    "text as limit of a run": (
        lambda tmp: hl.RunOptions(last_step="x"), TypeError, "RunOptions requires a whole number as last_step, got 'x'",
    ),
    "text as options of a run": (
        in_a_session(lambda sess, tmp: sess.run("weight:0", options="x")), TypeError,
        r"Session.run requires a RunOptions \(or None\) as options, got 'x'",
    ),
    "a number as metadata of a run": (
        in_a_session(lambda sess, tmp: sess.run("weight:0", run_metadata=5)), TypeError,
        r"requires a RunMetadata \(or None\) as run_metadata, got 5",
    ),
    "a number as values to load": (
        in_a_session(lambda sess, tmp: sess.load(5)), TypeError, "Session.load requires a dict as values, got 5",
    ),
    "many losses": (
        in_a_graph(lambda loss, w, step: train.Optimizer(optax.sgd(0.1)).minimize(loss * np.ones(3, np.float32))),
        ValueError, r"Optimizer: the loss must be one number, got .* of float32\[3\]. Take its mean or its sum",
    ),
    "a number as variables to train": (
        in_a_graph(lambda loss, w, step: train.Optimizer(optax.sgd(0.1)).minimize(loss, var_list=5)), TypeError,
        "Optimizer requires a list as var_list, got 5",
    ),
    "no gradients": (
        lambda tmp: train.Optimizer(optax.sgd(0.1)).apply_gradients(None), TypeError,
        "Optimizer requires a list as grads_and_vars, got None",
    ),
    "a number as what to average": (
        lambda tmp: train.ExponentialMovingAverage(0.9).apply(5), TypeError, "requires a list as var_list, got 5",
    ),
    "text as whose average": (
        lambda tmp: train.ExponentialMovingAverage(0.9).average("w"), TypeError,
        "requires a variable or a tensor as var, got 'w'",
    ),
    "a host operation that is called at once": (
        lambda tmp: hl.host_op(lambda n: np.ones(n), name="batch", spec=np.ones(2))(2), TypeError,
        "host_op: 'batch' has a spec, and none of its arguments is a tensor: it would run once, now",
    ),
    "a number as collections": (
        in_a_graph(lambda loss, w, step: hl.Variable(1.0, collections=5)), TypeError,
        r"Variable requires a list \(or None\) as collections, got 5",
    ),
    "a list as name of a collection": (
        lambda tmp: hl.get_collection([1]), TypeError, r"The name of a collection must be hashable.*got \[1\]",
    ),
    "a number as shape": (
        lambda tmp: hl.constant(1.0, shape=5), TypeError, "constant requires a list as shape, got 5",
    ),
    "a number as name of a constant": (
        lambda tmp: hl.constant(1.0, name=5), TypeError, "A name is a string, got 5",
    ),
    "one operation to wait for": (
        lambda tmp: hl.control_dependencies(5).__enter__(), TypeError, "a list of operations or tensors, got 5",
    ),
    "text as condition": (
        lambda tmp: hl.latch("x"), TypeError, "The condition must be one bool, or a tensor of one, got 'x'",
    ),
    "a number as condition of a latch": (
        lambda tmp: hl.latch(5), TypeError, "The condition must be one bool, got int32",
    ),
    "text as seed": (
        lambda tmp: hl.random_key("x"), TypeError, "random_key requires a whole number as seed, got 'x'",
    ),
    "a number as variables to initialise": (
        lambda tmp: hl.variables_initializer(5), TypeError, "variables_initializer requires a list as var_list, got 5",
    ),
    "a number as name of variables": (
        lambda tmp: hl.variables([1.0], name=5), TypeError, "variables requires text as name, got 5",
    ),
    "no name of a tensor": (
        lambda tmp: hl.Graph().get_tensor_by_name(None), TypeError, "requires text as name, got None",
    ),
    "a number as summaries": (
        lambda tmp: summary.merge(5), TypeError, "summary.merge requires a list as inputs, got 5",
    ),
    "a number as collections of a summary": (
        lambda tmp: summary.scalar("loss", 1.0, collections=5), TypeError, r"a list \(or None\) as collections, got 5",
    ),
    "text as picture": (
        lambda tmp: summary.image("digit", "x"), TypeError, "Summary 'digit' requires numbers, got 'x'",
    ),
    "a number as name of an iterator": (
        lambda tmp: data.iterator([1.0], name=5), TypeError, r"iterator requires text \(or None\) as name, got 5",
    ),
    "a number as failures": (
        lambda tmp: testing.RecordingHook(failures=5), TypeError, r"a dict \(or None\) as failures, got 5",
    ),
    "no script": (
        lambda tmp: testing.ScriptedSession(None), TypeError, "ScriptedSession requires a list as script, got None",
    ),
    "a number as folder of recorded events": (
        lambda tmp: testing.read_events(5), TypeError, "read_events requires a path as logdir, got 5",
    ),
    "text as start of time": (
        lambda tmp: testing.FakeClock("x"), TypeError, "FakeClock requires a number as start, got 'x'",
    ),
    "no maker of hooks": (
        lambda tmp: testing.check_hook(None), TypeError, "check_hook requires a function as make_hook, got None",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_argument_is_named_with_what_is_required(name, tmp_path):
    mistake, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message) as caught:
        mistake(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


def test_what_turns_a_hook_off_is_no_mistake(tmp_path):
    training(checkpoint_dir=str(tmp_path), save_checkpoint_secs=None, save_summaries_steps=0, log_step_count_steps=-1)
    assert train.latest_checkpoint(str(tmp_path)) is None
    training(checkpoint_dir=tmp_path, save_checkpoint_steps=10, save_checkpoint_secs=600.5)
    assert train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-0")


def test_a_training_that_never_counts_is_warned_of_five_times(caplog):
    train.get_or_create_global_step()
    v = hl.Variable(0.0, name="v")
    forgets = v.assign_add(1.0)
    with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=10)]) as sess:
        for _ in range(250):
            sess.run(forgets)
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) == 5
    assert lines[0].startswith("The global step has stayed at 0 over two runs.")


def test_a_negative_cadence_turns_the_hook_off_and_says_so(tmp_path, caplog):
    training(checkpoint_dir=str(tmp_path), save_checkpoint_secs=-3, save_summaries_steps=0, log_step_count_steps=None)
    assert train.latest_checkpoint(str(tmp_path)) is None
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert lines == [
        "MonitoredTrainingSession: save_checkpoint_secs=-3 turns this cadence off. Give None or 0 for that, or a "
        "number above 0."
    ]


def test_an_error_of_a_formatter_names_the_hook_and_is_still_the_users():
    with pytest.raises(KeyError, match="accuracy") as caught:
        run_with(lambda loss: train.LoggingTensorHook([loss], every_n_iter=1, formatter=lambda d: d["accuracy"]))("")
    assert caught.value.__notes__ == ["The formatter of a LoggingTensorHook failed, given a dict of loss:0."]


def test_a_loss_of_unknown_shape_is_trained_on_as_ever():
    with hl.Session() as sess:
        weight = hl.Variable(1.0, name="weight")
        scale = hl.placeholder("float32")
        train_op = train.Optimizer(optax.sgd(0.5)).minimize(weight * scale)
        sess.run(hl.global_variables_initializer())
        sess.run(train_op, {scale: 1.0})
        assert sess.run(weight) == 0.5
