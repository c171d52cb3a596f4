from __future__ import annotations

import pytest

import hookline as hl
import hookline.numpy as hnp
from hookline import train
from hookline.testing import RecordingHook, check_hook, read_events
from hookline.train import LoggingTensorHook, SessionRunHook, StopAtStepHook, SummarySaverHook, every, only_for


@pytest.fixture
def gan():
    """Two training operations, each with a loss that needs an input of its own."""
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        real, noise = hl.placeholder("float32", name="real"), hl.placeholder("float32", name="noise")
        d_loss, g_loss = hnp.multiply(real, 2.0), hnp.multiply(noise, 3.0)
        with hl.control_dependencies([d_loss]):
            d_step = hl.no_op(name="d_step")
        with hl.control_dependencies([g_loss]):
            g_step = hl.group(step.assign_add(1), name="g_step")
        yield {"d": (d_step, {real: 1.0}), "g": (g_step, {noise: 1.0}), "d_loss": d_loss, "g_loss": g_loss}


def play(gan, hooks, names):
    with train.MonitoredSession(hooks=hooks) as session:
        for name in names:
            session.run(*gan[name])


def test_hook_is_called_only_for_its_runs(gan):
    d, g, both = RecordingHook(fetches=gan["d_loss"]), RecordingHook(fetches=gan["g_loss"]), RecordingHook()
    play(gan, [only_for(gan["d"][0], d), only_for(gan["g"][0], g), only_for([gan["d"][0], "g_step"], both)], "dgdd")
    runs = [sum(event.callback == "after_run" for event in hook.events) for hook in (d, g, both)]
    assert runs == [3, 1, 4]
    assert [event.callback for event in g.events] == [
        "begin", "after_create_session", "before_run", "after_run", "end",
    ]  # fmt: skip


def test_run_of_a_group_counts_as_a_run_of_its_members(gan):
    both = hl.group(gan["d"][0], gan["g"][0])
    hook = RecordingHook()
    with train.MonitoredSession(hooks=[only_for(gan["g"][0], hook)]) as session:
        session.run([{"nested": both}], {**gan["d"][1], **gan["g"][1]})
    assert "after_run" in [event.callback for event in hook.events]


def test_hook_due_in_another_run_fires_in_its_next_run(gan, tmp_path):
    loss = hl.summary.scalar("d", gan["d_loss"])
    saver = SummarySaverHook(trigger=every(10), output_dir=str(tmp_path), summary_op=loss)
    play(gan, [only_for(gan["d"][0], saver)], "d" + "ggggg" * 5 + "d" + "d" + "ggggg" + "d")
    assert [event.step for event in read_events(str(tmp_path)) if event.summary.value] == [25, 30]


def test_hook_with_a_trigger_is_called_when_it_fires(gan):
    seen = []

    class Seldom(SessionRunHook):
        trigger = every(10)

        def before_trigger(self, run_context):
            seen.append(run_context.session.global_step)

    play(gan, [only_for(gan["g"][0], Seldom())], "g" * 25)
    assert seen == [9, 19]


def test_stop_hook_stops(gan):
    with train.MonitoredSession(hooks=[only_for(gan["g"][0], StopAtStepHook(num_steps=2))]) as session:
        runs = 0
        while not session.should_stop():
            session.run(*gan["d"])
            session.run(*gan["g"])
            runs += 1
    assert runs == 2


def test_error_names_the_wrapped_hook(gan):
    class Bad(SessionRunHook):
        def before_run(self, run_context):
            return "loss"

    with pytest.raises(TypeError, match="The hook Bad must return None or a SessionRunArgs"):
        play(gan, [only_for(gan["g"][0], Bad())], "g")


def test_fetches_must_be_in_the_graph(gan):
    with pytest.raises(KeyError, match="nowhere"):
        play(gan, [only_for("nowhere", RecordingHook())], "g")


@pytest.mark.parametrize(
    ("fetches", "hook", "error"),
    [("train", StopAtStepHook, TypeError), ("train", 3, TypeError), ([], RecordingHook(), ValueError)],
)
def test_wrong_arguments_are_refused(fetches, hook, error):
    with pytest.raises(error, match="only_for requires"):
        only_for(fetches, hook)


def test_wrapped_hook_keeps_the_contract():
    check_hook(lambda: only_for("loss:0", LoggingTensorHook(["loss"], every_n_iter=2)))


def test_hook_is_wrapped_once(gan):
    with pytest.raises(TypeError, match="hook that is not bound yet"):
        only_for(gan["d"][0], only_for(gan["g"][0], StopAtStepHook(1)))
    with pytest.raises(TypeError, match="operations, tensors or names of them, got 3"):
        only_for([gan["d"][0], 3], StopAtStepHook(1))


def test_unknown_name_gives_an_error_that_names_the_hook(gan):
    with pytest.raises(KeyError, match=r"train.only_for of StopAtStepHook: .*no_such"):
        play(gan, [only_for("no_such", StopAtStepHook(1))], [])
