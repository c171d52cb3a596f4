"""Wrong arguments of hooks, sessions and savers: one sentence each with the name, the mistake and the remedy."""

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


MISTAKES = [
    (lambda tmp: training(checkpoint_dir=tmp, save_checkpoint_secs=float("nan")), ValueError,
     "MonitoredTrainingSession requires a number as save_checkpoint_secs, got nan"),
    (lambda tmp: training(checkpoint_dir=tmp, save_checkpoint_steps=2.5), TypeError,
     "requires a whole number as save_checkpoint_steps, got 2.5"),
    (lambda tmp: training(checkpoint_dir=tmp, save_checkpoint_steps="10"), TypeError, "_steps, got '10'"),
    (lambda tmp: training(checkpoint_dir=tmp, save_summaries_secs="10"), TypeError, "save_summaries_secs, got '10'"),
    (lambda tmp: training(checkpoint_dir=tmp, log_step_count_steps=0.5), TypeError, "log_step_count_steps, got 0.5"),
    (lambda tmp: training(checkpoint_dir=5), TypeError, r"a path \(or None\) as checkpoint_dir, got 5"),
    (lambda tmp: train.ChiefSessionCreator(checkpoint_dir=5), TypeError, "as checkpoint_dir, got 5"),
    (lambda tmp: training(scaffold="x"), TypeError,
     r"ChiefSessionCreator requires a Scaffold \(or None\) as scaffold, got 'x'"),
    (lambda tmp: monitored(recovery=3), TypeError, r"requires a RecoveryPolicy \(or None\) as recovery, got 3"),
    (lambda tmp: monitored(stop_grace_period_secs="x"), TypeError, "a number as stop_grace_period_secs, got 'x'"),
    (lambda tmp: train.RecoveryPolicy(max_attempts="3"), TypeError, "a whole number as max_attempts, got '3'"),
    (lambda tmp: train.RecoveryPolicy(initial_backoff_secs=float("nan")), ValueError, "backoff_secs, got nan"),
    (lambda tmp: train.StopAtStepHook(last_step="10"), TypeError,
     "StopAtStepHook requires a whole number as last_step, got '10'"),
    (lambda tmp: train.StopAtStepHook(last_step=1.5), TypeError, "last_step, got 1.5"),
    (lambda tmp: train.StopAtStepHook(last_step=-5), ValueError, "last_step >= 0, got -5"),
    (lambda tmp: train.StopAtStepHook(num_steps=True), TypeError, "num_steps, got True"),
    (lambda tmp: train.LoggingTensorHook(["loss"], every_n_iter="10"), TypeError, "every_n_iter, got '10'"),
    (lambda tmp: train.LoggingTensorHook([], every_n_iter=1), ValueError, "requires at least one tensor to log"),
    (lambda tmp: train.LoggingTensorHook("loss", every_n_iter=1), TypeError, r"got 'loss'\. Put it in a list"),
    (lambda tmp: train.SecondOrStepTimer(every_steps="10"), TypeError, "a whole number as every_steps, got '10'"),
    (lambda tmp: train.SecondOrStepTimer(every_secs=float("nan")), ValueError, "a number as every_secs, got nan"),
    (lambda tmp: train.GlobalStepWaiterHook("10"), TypeError, "a whole number as wait_until_step, got '10'"),
    (lambda tmp: train.Saver(max_to_keep="5"), TypeError, "Saver requires a whole number as max_to_keep, got '5'"),
    (lambda tmp: written_at(2**70, tmp), ValueError, "a step of at most 64 bits, got"),
    (lambda tmp: train.get_or_create_global_step("g"), TypeError, r"give a hookline\.Graph or None, got 'g'"),
    (lambda tmp: summary.scalar(None, 1.0), TypeError, "A summary requires a string as its name, got None"),
    (lambda tmp: train.CheckpointSaverHook(5, save_steps=1), TypeError,
     "CheckpointSaverHook requires a path as checkpoint_dir, got 5"),
    (lambda tmp: train.CheckpointSaverHook(b"x", save_steps=1), TypeError, "a path as checkpoint_dir, got b'x'"),
    (lambda tmp: train.CheckpointSaverHook(tmp, save_steps=1, checkpoint_basename=None), TypeError,
     "a path as checkpoint_basename, got None"),
    (lambda tmp: train.CheckpointSaverHook(tmp, save_steps=1, listeners=5), TypeError,
     r"CheckpointSaverHook requires a list \(or None\) as listeners, got 5"),
    (lambda tmp: train.CheckpointSaverHook(tmp, save_steps=1, saver="x"), TypeError,
     r"requires a Saver \(or None\) as saver, got 'x'"),
    (lambda tmp: train.CheckpointSaverHook(tmp, save_steps=1, scaffold=5), TypeError,
     r"requires a Scaffold \(or None\) as scaffold, got 5"),
    (lambda tmp: train.ProfilerHook(save_steps=1, output_dir=None), TypeError,
     "ProfilerHook requires a path as output_dir, got None"),
    (lambda tmp: train.StepCounterHook(output_dir=5), TypeError,
     r"StepCounterHook requires a path \(or None\) as output_dir, got 5"),
    (lambda tmp: train.SummarySaverHook(1, summary_writer="x", summary_op=1), TypeError,
     r"SummarySaverHook requires a FileWriter \(or None\) as summary_writer, got 'x'"),
    (lambda tmp: train.SummaryAtEndHook(5), TypeError, "SummaryAtEndHook requires a path .* as log_dir, got 5"),
    (lambda tmp: summary.FileWriter(None), TypeError, "FileWriter requires a path as logdir, got None"),
    (lambda tmp: summary.FileWriterCache.get(5), TypeError, "FileWriterCache.get requires a path as logdir, got 5"),
    (lambda tmp: summary.FileWriter(tmp, max_queue="x"), TypeError, "a whole number as max_queue, got 'x'"),
    (lambda tmp: summary.FileWriter(tmp, flush_secs=float("nan")), ValueError, "a number as flush_secs, got nan"),
    (lambda tmp: written_at("x", tmp), TypeError, "FileWriter requires a whole number as global_step, got 'x'"),
    (lambda tmp: train.latest_checkpoint(5), TypeError,
     "Looking for checkpoints requires a path as checkpoint_dir, got 5"),
    (lambda tmp: train.get_checkpoint_state(tmp, 5), TypeError, r"text \(or None\) as latest_filename, got 5"),
    (lambda tmp: train.checkpoint_exists(None), TypeError, "requires a path as checkpoint_prefix, got None"),
    (lambda tmp: train.verify(None), TypeError, "verify requires a path as ckpt_dir_or_file, got None"),
    (lambda tmp: train.list_variables(5), TypeError, "list_variables requires a path as ckpt_dir_or_file, got 5"),
    (lambda tmp: train.load_variable(5, "w"), TypeError, "load_variable requires a path as ckpt_dir_or_file, got 5"),
    (lambda tmp: train.load_variable(tmp, 5), TypeError, "load_variable requires text as name, got 5"),
    (in_a_graph(lambda loss, w, step: train.warm_start(5)), TypeError, "warm_start requires a path as"),
    (in_a_graph(lambda loss, w, step: train.assign_from_checkpoint(5, [w])), TypeError,
     "assign_from_checkpoint requires a path as model_path, got 5"),
    (lambda tmp: train.assign_from_checkpoint_fn(tmp, 5), TypeError, "requires a list as var_list, got 5"),
    (lambda tmp: train.wait_for_new_checkpoint(tmp, timeout="x"), TypeError, "a number as timeout, got 'x'"),
    (lambda tmp: train.checkpoints_iterator(tmp, timeout_fn=5), TypeError,
     r"checkpoints_iterator requires a function \(or None\) as timeout_fn, got 5"),
    (lambda tmp: train.Saver(5), TypeError, "Saver requires a list as var_list, got 5"),
    (lambda tmp: train.Saver().save(None, tmp + "/a"), TypeError, "Saver.save requires a session as sess, got None"),
    (in_a_session(lambda sess, tmp: train.Saver().save(sess, None)), TypeError,
     "Saver.save requires a path as save_path, got None"),
    (in_a_session(lambda sess, tmp: train.Saver().restore(sess, 5)), TypeError,
     "Saver.restore requires a path as save_path, got 5"),
    (lambda tmp: train.Saver().recover_last_checkpoints("x"), TypeError, "a list as checkpoint_paths, got 'x'"),
    (saved(-1), ValueError, "Saver.save requires global_step >= 0, got -1"),
    (saved(2.5), TypeError, "requires a whole number as global_step, got 2.5"),
    (saved(True), TypeError, "requires a whole number as global_step, got True"),
    (lambda tmp: train.FeedFnHook(None), TypeError, "FeedFnHook requires a function as feed_fn, got None"),
    (lambda tmp: train.FinalOpsHook("loss:0", 5), TypeError, r"a dict \(or None\) as final_ops_feed_dict, got 5"),
    (lambda tmp: train.LoggingTensorHook(["loss"], every_n_iter=1, formatter="x"), TypeError,
     r"LoggingTensorHook requires a function \(or None\) as formatter, got 'x'"),
    (lambda tmp: train.LoggingTensorHook([1], every_n_iter=1), TypeError,
     r"LoggingTensorHook requires a tensor or its name as one of \[1\], got 1"),
    (lambda tmp: train.ProgressHook(file="x"), TypeError, r"requires a file \(or None\) as file, got 'x'"),
    (run_with(lambda loss: type("Hook", (train.SessionRunHook,), {"trigger": 5, "on_trigger": print})()), TypeError,
     r"The hook Hook must have a Trigger \(or None\) as trigger, got 5"),
    (lambda tmp: train.every(runs=0), ValueError, "every requires runs >= 1, got 0"),
    (lambda tmp: train.every(10, runs=3), ValueError,
     "every requires exactly one of steps, secs, runs or epochs, got steps and runs"),
    (lambda tmp: train.every(10) & train.every(runs=3), TypeError,
     r"& requires triggers in steps or in seconds, got every\(runs=3\), which has neither"),
    (lambda tmp: train.latched(3), TypeError, "latched requires an operation of hookline.latch, got 3"),
    (run_with(lambda loss: type("Hook", (train.SessionRunHook,), {
            "after_create_session": lambda self, session, coord: session.set_last_step("10"),
        })()),
     TypeError, r"Session.set_last_step requires a whole number as last_step, got '10'"),
    (lambda tmp: train.first_then_every(), ValueError, "first_then_every requires exactly one of .*, got neither"),
    (lambda tmp: training(is_chief=None), TypeError, "requires True or False as is_chief, got None"),
    (lambda tmp: training(max_wait_secs="x"), TypeError, "requires a number as max_wait_secs, got 'x'"),
    (lambda tmp: monitored(session_creator=5), TypeError,
     "MonitoredSession requires a SessionCreator as session_creator, got 5"),
    (in_a_graph(lambda loss, w, step: train.MonitoredSession().run_step_fn(5)), TypeError,
     "run_step_fn requires a function as step_fn, got 5"),
    (lambda tmp: train.RecoveryPolicy(seed="x"), TypeError, "requires a whole number as seed, got 'x'"),
    (lambda tmp: train.Coordinator(5), TypeError, "Coordinator requires a list as clean_stop_exception_types, got 5"),
    (lambda tmp: train.Coordinator(["x"]), TypeError, "exceptions as clean_stop_exception_types, got 'x'"),
    (lambda tmp: train.Coordinator().join(5), TypeError, r"join requires a list \(or None\) as threads, got 5"),
    (lambda tmp: train.Coordinator().register_thread(None), TypeError, "requires a thread as thread, got None"),
    (lambda tmp: train.Coordinator().wait_for_stop("x"), TypeError, "requires a number as timeout, got 'x'"),
    (lambda tmp: train.LooperThread(train.Coordinator(), 1, 5), TypeError,
     r"LooperThread requires a function \(or None\) as target, got 5"),
    (lambda tmp: train.LooperThread(train.Coordinator(), "x"), TypeError, "a number as timer_interval_secs, got 'x'"),
    (in_a_graph(lambda loss, w, step: train.global_step(None, step)), TypeError,
     "global_step requires a session as sess, got None"),
    (lambda tmp: hl.RunOptions(last_step="x"), TypeError, "RunOptions requires a whole number as last_step, got 'x'"),
    (in_a_session(lambda sess, tmp: sess.run("weight:0", options="x")), TypeError,
     r"Session.run requires a RunOptions \(or None\) as options, got 'x'"),
    (in_a_session(lambda sess, tmp: sess.run("weight:0", run_metadata=5)), TypeError,
     r"requires a RunMetadata \(or None\) as run_metadata, got 5"),
    (in_a_session(lambda sess, tmp: sess.load(5)), TypeError, "Session.load requires a dict as values, got 5"),
    (in_a_graph(lambda loss, w, step: train.Optimizer(optax.sgd(0.1)).minimize(loss * np.ones(3, np.float32))),
     ValueError, r"Optimizer: the loss must be one number, got .* of float32\[3\]. Take its mean or its sum"),
    (in_a_graph(lambda loss, w, step: train.Optimizer(optax.sgd(0.1)).minimize(loss, var_list=5)), TypeError,
     "Optimizer requires a list as var_list, got 5"),
    (lambda tmp: train.Optimizer(optax.sgd(0.1)).apply_gradients(None), TypeError,
     "Optimizer requires a list as grads_and_vars, got None"),
    (lambda tmp: train.ExponentialMovingAverage(0.9).apply(5), TypeError, "requires a list as var_list, got 5"),
    (lambda tmp: train.ExponentialMovingAverage(0.9).average("w"), TypeError,
     "requires a variable or a tensor as var, got 'w'"),
    (lambda tmp: hl.host_op(lambda n: np.ones(n), name="batch", spec=np.ones(2))(2), TypeError,
     "host_op: 'batch' has a spec, and none of its arguments is a tensor: it would run once, now"),
    (in_a_graph(lambda loss, w, step: hl.Variable(1.0, collections=5)), TypeError,
     r"Variable requires a list \(or None\) as collections, got 5"),
    (lambda tmp: hl.get_collection([1]), TypeError, r"The name of a collection must be hashable.*got \[1\]"),
    (lambda tmp: hl.constant(1.0, shape=5), TypeError, "constant requires a list as shape, got 5"),
    (lambda tmp: hl.constant(1.0, name=5), TypeError, "A name is a string, got 5"),
    (lambda tmp: hl.control_dependencies(5).__enter__(), TypeError, "a list of operations or tensors, got 5"),
    (lambda tmp: hl.latch("x"), TypeError, "The condition must be one bool, or a tensor of one, got 'x'"),
    (lambda tmp: hl.latch(5), TypeError, "The condition must be one bool, got int32"),
    (lambda tmp: hl.random_key("x"), TypeError, "random_key requires a whole number as seed, got 'x'"),
    (lambda tmp: hl.variables_initializer(5), TypeError, "variables_initializer requires a list as var_list, got 5"),
    (lambda tmp: hl.variables([1.0], name=5), TypeError, "variables requires text as name, got 5"),
    (lambda tmp: hl.Graph().get_tensor_by_name(None), TypeError, "requires text as name, got None"),
    (lambda tmp: summary.merge(5), TypeError, "summary.merge requires a list as inputs, got 5"),
    (lambda tmp: summary.scalar("loss", 1.0, collections=5), TypeError, r"a list \(or None\) as collections, got 5"),
    (lambda tmp: summary.image("digit", "x"), TypeError, "Summary 'digit' requires numbers, got 'x'"),
    (lambda tmp: data.iterator([1.0], name=5), TypeError, r"iterator requires text \(or None\) as name, got 5"),
    (lambda tmp: testing.RecordingHook(failures=5), TypeError, r"a dict \(or None\) as failures, got 5"),
    (lambda tmp: testing.FakeSession(None), TypeError, "FakeSession requires a list as results, got None"),
    (lambda tmp: testing.read_events(5), TypeError, "read_events requires a path as logdir, got 5"),
    (lambda tmp: testing.FakeClock("x"), TypeError, "FakeClock requires a number as start, got 'x'"),
    (lambda tmp: testing.check_hook(None), TypeError, "check_hook requires a function as make_hook, got None"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "kind", "message"), MISTAKES)
def test_wrong_argument_is_named_with_the_requirement(mistake, kind, message, tmp_path):
    with pytest.raises(kind, match=message) as caught:
        mistake(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


def test_argument_that_disables_a_hook_is_accepted(tmp_path):
    training(checkpoint_dir=str(tmp_path), save_checkpoint_secs=None, save_summaries_steps=0, log_step_count_steps=-1)
    assert train.latest_checkpoint(str(tmp_path)) is None
    training(checkpoint_dir=tmp_path, save_checkpoint_steps=10, save_checkpoint_secs=600.5)
    assert train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-0")


def test_training_that_never_counts_gives_five_warnings(caplog):
    train.get_or_create_global_step()
    v = hl.Variable(0.0, name="v")
    forgets = v.assign_add(1.0)
    with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=10)]) as sess:
        for _ in range(250):
            sess.run(forgets)
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) == 5
    assert lines[0].startswith("The global step has stayed at 0 over two runs.")


def test_negative_cadence_disables_the_hook_with_a_warning(tmp_path, caplog):
    training(checkpoint_dir=str(tmp_path), save_checkpoint_secs=-3, save_summaries_steps=0, log_step_count_steps=None)
    assert train.latest_checkpoint(str(tmp_path)) is None
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert lines == [
        "MonitoredTrainingSession: save_checkpoint_secs=-3 turns this cadence off. Give None or 0 for that, or a "
        "number above 0.",
        f"MonitoredTrainingSession saves no checkpoints in '{tmp_path}', because both cadences are off (one that is "
        "given, also as None, replaces the default of 600 seconds): the training cannot be resumed. Give "
        "CheckpointOptions(save_steps=) or save_secs=; for summaries alone, LoggingOptions(summary_dir=) in place of "
        "this directory.",
    ]


def test_error_of_a_formatter_names_the_hook_and_is_unchanged():
    with pytest.raises(KeyError, match="accuracy") as caught:
        run_with(lambda loss: train.LoggingTensorHook([loss], every_n_iter=1, formatter=lambda d: d["accuracy"]))("")
    assert caught.value.__notes__ == ["The formatter of a LoggingTensorHook failed, given a dict of loss:0."]


def test_loss_of_unknown_shape_is_trained():
    with hl.Session() as sess:
        weight = hl.Variable(1.0, name="weight")
        scale = hl.placeholder("float32")
        train_op = train.Optimizer(optax.sgd(0.5)).minimize(weight * scale)
        sess.run(hl.global_variables_initializer())
        sess.run(train_op, {scale: 1.0})
        assert sess.run(weight) == 0.5
