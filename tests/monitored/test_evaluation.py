"""Evaluations of checkpoints: one, and each new one."""

from __future__ import annotations

import logging
import shutil

import numpy as np
import pytest

import hookline as hl
from hookline import errors, summary, train
from hookline.testing import FakeClock, RecordingHook, read_events

LOCAL = [hl.GraphKeys.LOCAL_VARIABLES]


@pytest.fixture(autouse=True)
def graph():
    with hl.Graph().as_default() as graph:
        yield graph


class Trainer:
    """A training whose weight is ten times its global step; it saves on request."""

    def __init__(self, directory):
        self.directory = str(directory)
        with hl.Graph().as_default() as graph:
            weight = hl.Variable(0.0, name="weight")
            hl.Variable(1.0, name="only_the_training_has_it")
            self.step = hl.group(weight.assign_add(10.0), train.get_or_create_global_step().assign_add(1))
            self.session, self.saver = hl.Session(graph=graph), train.Saver(max_to_keep=2)
            self.session.run(hl.global_variables_initializer())

    def save(self, steps=1):
        for _ in range(steps):
            self.session.run(self.step)
        return self.saver.save(self.session, f"{self.directory}/model.ckpt", self.session.global_step)


@pytest.fixture
def trainer(tmp_path):
    trainer = Trainer(tmp_path / "run")
    yield trainer
    trainer.session.close()


class Model:
    """The evaluated value: the mean of the weight times the input."""

    def __init__(self):
        self.step = train.get_or_create_global_step()
        self.weight = hl.Variable(-1.0, name="weight")
        self.x = hl.placeholder("float32", [], name="x")
        self.total = hl.Variable(0.0, name="total", collections=LOCAL)
        self.count = hl.Variable(0.0, name="count", collections=LOCAL)
        self.update = hl.group(self.total.assign_add(self.weight * self.x), self.count.assign_add(1.0))
        self.mean = self.total / self.count


@pytest.fixture
def model():
    return Model()


def test_checkpoint_is_restored_evaluated_and_the_final_values_returned(model, trainer):
    path = trainer.save(3)
    got = train.evaluate_once(
        path,
        eval_ops=model.update,
        feed_dict={model.x: 2.0},
        final_ops={"mean": model.mean, "step": model.step, "runs": model.count},
        hooks=[train.StopAfterNEvalsHook(4)],
    )
    assert got == {"mean": 60.0, "step": 3, "runs": 4.0}


def test_evaluations_on_the_same_graph_are_independent(model, trainer):
    hooks = [train.StopAfterNEvalsHook(2)]
    for expected in (10.0, 20.0):
        path = trainer.save()
        final = train.evaluate_once(
            path, "", None, model.update, {model.x: 1.0}, model.mean, final_ops_feed_dict={}, hooks=hooks
        )
        assert final == expected


def test_callbacks_are_those_of_a_session(model, trainer):
    hook = RecordingHook()
    path = trainer.save()
    train.evaluate_once(
        path, eval_ops=model.update, feed_dict={model.x: 1.0}, hooks=[hook, train.StopAfterNEvalsHook(2)]
    )
    runs = ["before_run", "after_run"] * 2
    assert hook.callbacks == ["begin", "after_create_session", *runs, "end"]


@pytest.mark.parametrize("fetches", [lambda m: m.update, lambda m: [m.update, m.total], lambda m: {"total": m.total}])
def test_eval_ops_may_be_any_structure_and_final_ops_too(model, trainer, fetches):
    steps = RecordingHook(fetches="eval_step:0")
    hooks = [steps, train.StopAfterNEvalsHook(3, log_progress=False)]
    assert train.evaluate_once(trainer.save(), eval_ops=fetches(model), feed_dict={"x:0": 1.0}, hooks=hooks) is None
    assert [event.given for event in steps.events if event.callback == "after_run"] == [0, 1, 2]


def test_final_ops_alone_are_evaluated_at_once(model, trainer):
    hook = RecordingHook()
    assert train.evaluate_once(trainer.save(), final_ops=model.weight, hooks=[hook]) == 10.0
    assert "before_run" not in hook.callbacks


def test_end_of_input_ends_the_evaluation(trainer):
    batches = hl.data.iterator([1.0, 2.0, 6.0], resume=False)
    weight = hl.Variable(0.0, name="weight")
    total = hl.Variable(0.0, name="total", collections=LOCAL)
    change = total.assign_add(weight * batches)
    for expected in (90.0, 180.0):
        final = train.evaluate_once(
            trainer.save(), eval_ops=change, final_ops=total, hooks=[train.StopAfterNEvalsHook(None)]
        )
        assert final == expected


def test_directory_means_its_newest_checkpoint(model, trainer):
    trainer.save()
    trainer.save()
    assert train.evaluate_once(trainer.directory, final_ops=model.weight) == 20.0


def test_lost_session_restarts_the_evaluation(model, trainer):
    lose = RecordingHook(failures={"after_run": [None, errors.AbortedError(None, None, "lost")]})
    got = train.evaluate_once(
        trainer.save(),
        eval_ops=model.update,
        feed_dict={model.x: 1.0},
        final_ops=[model.count, model.mean],
        hooks=[train.StopAfterNEvalsHook(3), lose],
    )
    assert got == [3.0, 10.0]


def test_averages_are_evaluated_in_place_of_the_weights(tmp_path):
    with hl.Graph().as_default():
        weight = hl.Variable(0.0, name="weight")
        train.get_or_create_global_step()
        average = train.ExponentialMovingAverage(0.5)
        with hl.control_dependencies([weight.assign(8.0)]):
            change = average.apply([weight])
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            sess.run(change)
            path = train.Saver().save(sess, str(tmp_path / "model.ckpt"))
    weight = hl.Variable(0.0, name="weight")
    saver = train.Saver(train.ExponentialMovingAverage(0.5).variables_to_restore())
    assert train.evaluate_once(path, scaffold=train.Scaffold(saver=saver), final_ops=weight) == 4.0


def test_evaluation_restores_no_hook_states_of_the_training(tmp_path):
    train_op = train.get_or_create_global_step().assign_add(1)
    directory = str(tmp_path)

    class Counts(train.SessionRunHook):
        count = 0

        def after_run(self, run_context, run_values):
            self.count += 1

        def get_state(self):
            return {"count": self.count}

        def set_state(self, state):
            self.count = int(state["count"])

    with train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=[Counts()]) as sess:
        for _ in range(5):
            sess.run(train_op)
    hook = Counts()
    train.evaluate_once(directory, eval_ops=hl.no_op(), hooks=[hook, train.StopAfterNEvalsHook(2)])
    assert hook.count == 2
    again = Counts()
    with train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=[again]) as sess:
        assert again.count == 5


def test_errors_reach_the_caller_and_final_ops_are_not_evaluated(model, trainer):
    def fail():
        raise ZeroDivisionError("in the model")

    with pytest.raises(ZeroDivisionError):
        train.evaluate_once(trainer.save(), eval_ops=hl.host_op(fail)(), final_ops=model.weight)


def test_model_missing_in_the_checkpoint_is_an_error(model, trainer):
    hl.Variable(0.0, name="stranger")
    with pytest.raises(errors.NotFoundError, match="missing in the checkpoint: stranger"):
        train.evaluate_once(trainer.save(), final_ops=model.weight)
    with pytest.raises(errors.NotFoundError, match="stranger"):
        train.evaluate_repeatedly(trainer.directory, final_ops=model.weight, timeout=0)


def test_user_local_init_op_must_initialise_the_evaluation_step(model, trainer):
    local = hl.group(model.total.initializer, model.count.initializer)
    with pytest.raises(RuntimeError, match="Not initialised: eval_step"):
        train.evaluate_once(trainer.save(), scaffold=train.Scaffold(local_init_op=local), final_ops=model.weight)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory with a checkpoint, for those that only read it."""
    trainer = Trainer(tmp_path_factory.mktemp("trained"))
    trainer.save()
    trainer.session.close()
    return trainer.directory


@pytest.mark.parametrize("function", [train.evaluate_once, train.evaluate_repeatedly])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"master": "grpc://host:1"}, "hookline|master"),
        ({"scaffold": 3}, r"{who} requires a Scaffold \(or None\) as scaffold"),
        ({"eval_ops": 3}, r"{who} requires an operation, a tensor or a name \(or None\) as eval_ops"),
        ({"final_ops": 3}, r"{who} requires .* as final_ops"),
        ({"feed_dict": 3}, r"{who} requires a Mapping \(or None\) as feed_dict"),
        ({"final_ops_feed_dict": 3}, "{who} requires a Mapping"),
        ({"hooks": [3]}, r"hooks\[0\]"),
        ({"config": 3}, "requires a SessionConfig"),
    ],
)
def test_wrong_arguments_are_refused(directory, function, arguments, said):
    with pytest.raises((TypeError, ValueError), match=said.format(who=function.__name__)):
        function(directory, **arguments)


@pytest.mark.parametrize("path", [None, "", 3])
def test_checkpoint_is_required(path):
    with pytest.raises(ValueError, match=rf"evaluate_once requires the path of a checkpoint, got {path!r}"):
        train.evaluate_once(path)
    with pytest.raises(ValueError, match=rf"evaluate_repeatedly requires a directory of checkpoints, got {path!r}"):
        train.evaluate_repeatedly(path)


def test_directory_without_checkpoint_is_an_error(model, tmp_path):
    with pytest.raises(errors.NotFoundError, match="no checkpoint has been saved in it"):
        train.evaluate_once(str(tmp_path), final_ops=model.weight)


def test_variables_of_a_cluster_are_refused(trainer):
    class Target:
        def open_store(self, graph):
            raise AssertionError

        def hooks(self, summary_dir):
            return ()

    with pytest.raises(ValueError, match=r"evaluate_once: master must be ''.*must not touch the training's"):
        train.evaluate_once(trainer.save(), Target())


# The hooks -----------------------------------------------------------------------------------------------------------


def test_hook_logs_its_progress_about_ten_times(model, trainer, caplog):
    caplog.set_level(logging.INFO)
    for runs, lines in ((3, ["1/3", "2/3", "3/3"]), (25, [f"{n}/25" for n in (*range(2, 25, 2), 25)])):
        caplog.clear()
        train.evaluate_once(
            trainer.save(), eval_ops=model.update, feed_dict={"x:0": 1}, hooks=[train.StopAfterNEvalsHook(runs)]
        )
        said = [r.getMessage() for r in caplog.records if r.name.endswith("stop_after_n_evals")]
        assert said == [f"Evaluation [{line}]" for line in lines]


@pytest.mark.parametrize("runs", [0, -1, 1.5, "3", True])
def test_number_of_runs_must_be_a_positive_integer(runs):
    with pytest.raises((TypeError, ValueError), match="StopAfterNEvalsHook requires .*num_evals"):
        train.StopAfterNEvalsHook(runs)


def test_hook_needs_an_evaluation_step():
    with pytest.raises(RuntimeError, match=r"StopAfterNEvalsHook requires an evaluation step.*get_or_create_eval_step"):
        train.MonitoredSession(hooks=[train.StopAfterNEvalsHook(1)])


def test_evaluation_step_is_a_local_integer_once_per_graph(graph):
    with hl.name_scope("somewhere"):
        step = train.get_or_create_eval_step()
    assert (step.op.name, step.shape, step.trainable) == ("eval_step", (), False)
    assert graph.get_collection(hl.GraphKeys.LOCAL_VARIABLES) == [step]
    assert graph.get_collection(hl.GraphKeys.GLOBAL_VARIABLES) == []
    graph.add_to_collection(hl.GraphKeys.EVAL_STEP, step)
    with pytest.raises(ValueError, match="'eval_step' holds 2 items"):
        train.get_or_create_eval_step()


def written(directory):
    return [(event.step, value.tag, value) for event in read_events(directory) for value in event.summary.value]


@pytest.mark.parametrize("chosen", [None, "one", "list"])
def test_summaries_are_written_at_the_step_of_the_checkpoint(model, trainer, tmp_path, chosen):
    mean = summary.scalar("mean", model.mean)
    summary.scalar("fed", model.x)
    summary_op = {None: None, "one": mean, "list": [mean]}[chosen]
    hook = train.SummaryAtEndHook(tmp_path / "eval", summary_op=summary_op, feed_dict={model.x: 5.0})
    for _ in range(2):
        train.evaluate_once(
            trainer.save(2),
            eval_ops=model.update,
            feed_dict={model.x: 1.0},
            hooks=[train.StopAfterNEvalsHook(2), hook],
        )
    tags = ["mean", "fed"] if chosen is None else ["mean"]
    found = [(step, tag) for step, tag, _ in written(tmp_path / "eval")]
    assert found == [(step, tag) for step in (2, 4) for tag in tags]


def test_user_writer_writes_and_stays_open(model, trainer, tmp_path):
    summary.scalar("weight", model.weight)
    with summary.FileWriter(str(tmp_path / "mine")) as writer:
        for _ in range(2):
            train.evaluate_once(trainer.save(), hooks=[train.SummaryAtEndHook(summary_writer=writer)])
    assert [step for step, _, _ in written(tmp_path / "mine")] == [1, 2]


def test_missing_batch_of_a_summary_is_explained(trainer, tmp_path, caplog):
    train.get_or_create_global_step()
    batches = hl.data.iterator([1.0], resume=False)
    summary.scalar("batch", batches)
    with pytest.raises(errors.OutOfRangeError):
        train.evaluate_once(trainer.save(), eval_ops=batches, hooks=[train.SummaryAtEndHook(str(tmp_path / "eval"))])
    assert "SummaryAtEndHook met the end of the input" in caplog.text


def test_summary_needs_exactly_one_of_directory_and_writer(tmp_path):
    with summary.FileWriter(str(tmp_path)) as writer, pytest.raises(ValueError, match="exactly one .*, got both"):
        train.SummaryAtEndHook(str(tmp_path), writer)


# Each new checkpoint -------------------------------------------------------------------------------------------------


class SavesNow(train.SessionRunHook):
    """Lets the training save during an evaluation, as it would in another process."""

    def __init__(self, trainer, times):
        self.trainer, self.left = trainer, list(times)

    def end(self, session):
        for _ in range(self.left.pop(0) if self.left else 0):
            self.trainer.save()


def test_each_new_checkpoint_is_evaluated_or_the_newest_of_several(model, trainer, tmp_path):
    trainer.save()
    seen = []
    note = hl.host_op(lambda weight: seen.append(float(weight)))(model.weight)
    with FakeClock():
        got = train.evaluate_repeatedly(
            trainer.directory,
            eval_ops=note,
            final_ops=model.weight,
            hooks=[train.StopAfterNEvalsHook(2), SavesNow(trainer, [1, 2, 0])],
            timeout=600,
        )
    assert seen == [10.0, 10.0, 20.0, 20.0, 40.0, 40.0]
    assert got == 40.0


def test_evaluations_end_after_the_limit_and_respect_the_interval(model, trainer):
    trainer.save()
    began = []

    class Notes(train.SessionRunHook):
        def begin(self):
            began.append(clock.monotonic())

    with FakeClock() as clock:
        train.evaluate_repeatedly(
            trainer.directory,
            final_ops=model.weight,
            hooks=[Notes(), SavesNow(trainer, [1, 1, 1, 1])],
            eval_interval_secs=300,
            max_number_of_evaluations=3,
        )
    assert np.diff(began).tolist() == [300.0, 300.0]


def test_timeout_calls_its_function_and_no_checkpoint_gives_no_values(model, tmp_path):
    asked = []
    with FakeClock() as clock:
        start = clock.monotonic()

        def enough():
            asked.append(clock.monotonic() - start)
            return len(asked) == 3

        assert train.evaluate_repeatedly(str(tmp_path / "none"), timeout=10, timeout_fn=enough) is None
    assert asked == [10.0, 20.0, 30.0]


def test_checkpoint_removed_before_it_is_read_is_skipped(model, trainer, caplog):
    trainer.save()

    class Removes(train.SessionRunHook):
        """`begin` comes before the checkpoint is read."""

        done = False

        def begin(self):
            if not self.done:
                self.done = True
                shutil.rmtree(f"{trainer.directory}/model.ckpt-1")
                trainer.saver.recover_last_checkpoints([])
                trainer.save()

    with FakeClock():
        got = train.evaluate_repeatedly(trainer.directory, final_ops=model.weight, hooks=[Removes()], timeout=5)
    assert got == 20.0
    assert "model.ckpt-1' is skipped, because it was removed" in caplog.text


def test_graph_does_not_grow_with_the_evaluations(model, trainer, graph):
    trainer.save()
    sizes = []

    class Sizes(train.SessionRunHook):
        def end(self, session):
            sizes.append(graph.version)

    hooks = [Sizes(), SavesNow(trainer, [1, 1, 1])]
    with FakeClock():
        train.evaluate_repeatedly(trainer.directory, final_ops=model.weight, hooks=hooks, timeout=600)
    assert len(sizes) == 4
    assert len(set(sizes)) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"eval_interval_secs": -1}, "eval_interval_secs >= 0"),
        ({"eval_interval_secs": None}, "a number as eval_interval_secs"),
        ({"max_number_of_evaluations": 0}, "max_number_of_evaluations >= 1"),
        ({"timeout": "10"}, "a number as timeout"),
        ({"timeout_fn": 3}, "a function"),
    ],
)
def test_wrong_cadences_are_refused(arguments, said):
    with pytest.raises((TypeError, ValueError), match=f"evaluate_repeatedly requires {said}"):
        train.evaluate_repeatedly("runs/a", **arguments)


def test_wait_for_new_checkpoint_returns_the_next_checkpoint(trainer, tmp_path):
    with FakeClock() as clock:
        assert train.wait_for_new_checkpoint(str(tmp_path / "absent"), timeout=3) is None
        assert clock.monotonic() >= 3
        first = trainer.save()
        assert train.wait_for_new_checkpoint(trainer.directory) == first
        assert train.wait_for_new_checkpoint(trainer.directory, first, seconds_to_sleep=7, timeout=20) is None
        second = trainer.save()
        assert train.wait_for_new_checkpoint(trainer.directory, first) == second
