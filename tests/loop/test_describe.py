"""The state and the files of a loop, described without a run, a session's hooks, or a file."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline.loop.description import state_parts  # For a mesh of more devices than there are.
from hookline.testing import read_events

OPTIMIZER = optax.adam(1e-3)


def train_step(state, batch):
    params, opt_state = state["params"], state["opt_state"]
    loss, grads = jax.value_and_grad(lambda p: ((batch @ p["w"] + p["b"]) ** 2).mean())(params)
    changes, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return {"params": optax.apply_updates(params, changes), "opt_state": opt_state}, {"loss": loss}


def init():
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    return {"params": params, "opt_state": OPTIMIZER.init(params)}


def batches():
    return iter(np.ones((30, 8, 4), np.float32))


def test_description_has_the_state_and_the_files(tmp_path):
    loop = hl.train.Loop(train_step, init, batches)
    made = loop.describe(
        str(tmp_path / "run"),
        20,
        checkpoints=hl.train.CheckpointOptions(save_steps=10),
        logging=hl.train.LoggingOptions(summary_steps=None),
    )
    opt_state, params = made.parts
    assert (params.name, params.arrays, params.parameters, params.size_bytes) == ("params", 2, 10, 40)
    assert (opt_state.name, opt_state.arrays, opt_state.parameters) == ("opt_state", 5, 21)
    assert made.batch == "float32[8, 4]"
    assert made.start == "It begins with the given state, to step 20."
    run = tmp_path / "run"
    assert [(each.hook, each.what, each.when) for each in made.writes] == [
        (
            "CheckpointSaverHook",
            f"checkpoints '{run}/model.ckpt-<step>'",
            "at steps 0, 10, 20",
        ),
        (
            "StepCounterHook",
            f"the steps per second, events in '{run}'",
            "at no step up to 20",
        ),
    ]
    assert made.programs[0] == "outputs none; writes state, global_step"
    assert not run.exists(), "it writes nothing"
    loop.run(str(run), 20, progress=False)
    assert loop.describe(str(run)).start == f"It goes on from '{run}/model.ckpt-20'."
    left = f"No step is left: '{run}/model.ckpt-20' is at step 20, and the last is 8."
    assert loop.describe(str(run), 8).start == left
    assert loop.describe(last_step=8).start == "No step is left: it stopped at step 20, and the last is 8."


def test_without_a_folder_only_user_hooks_write(tmp_path):
    class Report(hl.train.SessionRunHook):
        output_description = "a report by mail"
        trigger = hl.train.every(5)

        def on_trigger(self, firing):
            pass

    loop = hl.train.Loop(train_step, init, batches, steps_per_run=4)
    assert "Nothing is written." in str(loop.describe())
    stopping = hl.train.FunctionHook(print, every=hl.train.at_steps(3))
    stopping.output_description = "a line"
    assert "FunctionHook writes a line; at step 3 and so on." in str(loop.describe(hooks=[stopping]))
    made = loop.describe(hooks=[Report()])
    assert [(each.hook, each.what, each.when) for each in made.writes] == [
        ("Report", "a report by mail", "at steps 5, 10, 15 and so on")
    ]
    assert made.programs[0].startswith("up to 4 steps; ")
    table = str(loop.describe(logging=hl.train.LoggingOptions(sinks=[hl.sinks.JsonLines("points.jsonl")])))
    assert "\nSinkHook writes all summaries to JsonLines.\n" in table


def tags(folder):
    """Returns the steps at which each tag was written to event files."""
    found: dict[str, list[int]] = {}
    for event in read_events(str(folder)):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(event.step)
    return found


def test_described_steps_are_those_that_a_run_writes(tmp_path):
    def run(last_step):
        loop = hl.train.Loop(train_step, init, batches)
        evaluate = hl.train.Evaluate(lambda state, batch: {"mean": batch.mean()}, [1.0], every=6, on_start=True)
        arguments = {
            "hooks": [evaluate, Report()],
            "checkpoints": hl.train.CheckpointOptions(save_steps=4, saver=hl.train.Saver(max_to_keep=None)),
            "logging": hl.train.LoggingOptions(summary_steps=5, rate_steps=3),
        }
        described = loop.describe(str(tmp_path), last_step, **arguments).writes
        sizes = [len(tags(tmp_path).get("loss", ())), len(tags(tmp_path).get("global_step/sec", ()))]
        loop.run(str(tmp_path), last_step, progress=False, **arguments)
        seen = tags(tmp_path)
        assert {each.hook: each.steps for each in described} == {
            "SummarySaverHook": tuple(seen["loss"][sizes[0] :]),
            "StepCounterHook": tuple(seen["global_step/sec"][sizes[1] :]),
            "CheckpointSaverHook": tuple(step for step in saved() if step not in before),
            "Evaluate": tuple(step for step in tags(tmp_path / "eval")["mean"] if step > max(before, default=-1)),
            "Report": tuple(reported),
        }

    class Report(hl.train.SessionRunHook):
        output_description = "a report"
        trigger = hl.train.every(4) | hl.train.at_steps(3)

        def on_trigger(self, firing):
            reported.append(firing.global_step)

    def saved():
        return sorted(int(path.name.rpartition("-")[2]) for path in tmp_path.glob("model.ckpt-*"))

    for last_step in (11, 20):
        before, reported = saved(), []
        run(last_step)
    assert (before, reported) == ([0, 4, 8, 11], [12, 16, 20]), "it has resumed"
    many = hl.train.Loop(train_step, init, batches).describe(str(tmp_path / "b"), 500_000).writes
    assert [each.when for each in many] == [
        "at steps 1, 101, 201, ..., 499901 (5000 times)",
        "each 600 seconds, at step 0 and at the end",
        "at steps 101, 201, 301, ..., 499901 (4999 times)",
    ]


def test_description_has_the_shardings_of_the_state():
    mesh = jax.sharding.AbstractMesh((4,), ("data",))
    whole, rows = (jax.NamedSharding(mesh, spec) for spec in (jax.P(), jax.P("data")))
    spec = jax.eval_shape(init)["params"]
    state = types.SimpleNamespace(spec=spec, shardings=(whole, rows))
    assert [
        (part.name, part.size_bytes, part.bytes_a_device, part.placement) for part in state_parts(state, {}, {})
    ] == [
        ("b", 8, 8, "1 whole"),
        ("w", 32, 8, "1 P('data',)"),
    ]
    alone = types.SimpleNamespace(spec=spec["w"], shardings=(), op=types.SimpleNamespace(name="state"))
    assert state_parts(alone, {}, {})[0] == (
        "state",
        1,
        8,
        32,
        32,
        "",
    )


def test_description_has_extra_values_and_parts_named_after_parameters():
    def step(model, opt_state, batch):
        after, told = train_step({"params": model, "opt_state": opt_state}, batch)
        return after["params"], after["opt_state"], told

    made = hl.train.Loop(step, tuple(init().values()), batches, ema=0.9, smoothing_steps=5).describe()
    assert [(part.name, part.parameters, part.size_bytes) for part in made.parts] == [
        ("model", 10, 40),
        ("opt_state", 21, 84),
        ("ema", 10, 40),
        ("smoothing_steps", 6, 24),
    ]
    assert str(made).startswith("47 numbers in 11 arrays, 188 B")


def test_description_has_the_mesh():
    whole = jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P())
    assert hl.train.Loop(train_step, init, batches, sharding=whole).describe().devices == (
        "1 device (cpu:0), a mesh of data=1"
    )


def test_wrong_arguments_are_refused_like_by_the_session():
    loop = hl.train.Loop(train_step, init, batches)
    with pytest.raises(ValueError, match="no metric 'accuracy'"):
        loop.describe(nan_check="accuracy")
    with pytest.raises(TypeError, match="hooks must be a list of hooks, got 3"):
        loop.describe(hooks=3)
    with pytest.raises(hl.errors.NotFoundError, match="/nope"):
        loop.describe(warm_start="/nope")


def test_loop_has_one_open_session(tmp_path):
    loop = hl.train.Loop(train_step, init, batches)
    with loop.session(last_step=2, progress=False) as session:
        with pytest.raises(
            RuntimeError, match=r"^This Loop has an open session, and it takes one at a time\. Close that first\.$"
        ):
            loop.run(last_step=2)
        session.run(loop.train_op)
    loop.run(last_step=2, progress=False)


def test_last_step_is_computed_from_epochs(tmp_path):
    data = hl.data.from_arrays(np.ones((24, 4), np.float32), 8)
    made = hl.train.Loop(train_step, init, data).describe(
        str(tmp_path), epochs=4, checkpoints=hl.train.CheckpointOptions(save_steps=5)
    )
    assert made.start == "It begins with the given state, to step 12."
    assert made.writes[1].when == "at steps 0, 5, 10, 12"
    assert hl.train.Loop(train_step, init, data).describe(None, 9, epochs=4).start.endswith("to step 9.")


def test_training_with_a_sticky_stop_has_no_step_left(tmp_path):
    def describe_or_run(method, patience, **arguments):
        loop = hl.train.Loop(lambda state, batch: (state, {"loss": batch.sum()}), {"w": jnp.zeros(())}, batches)
        evaluate = hl.train.Evaluate(lambda state, batch: {"loss": state["w"]}, batches, every=2)
        hooks = [evaluate, hl.train.StopIfNoImprovement("loss", patience)]
        return getattr(loop, method)(str(tmp_path), 20, hooks=hooks, **arguments)

    describe_or_run("run", 2, progress=False)
    made = describe_or_run("describe", 2)
    assert made.start == (
        "No step is left: it stopped early at step 6: loss of 'eval' has not improved for 2 evaluations; the best is 0 "
        "at step 2. To continue training, pass train_on=True."
    )
    assert made.writes == ()
    for more in (describe_or_run("describe", 3), describe_or_run("describe", 2, train_on=True)):
        assert more.start == f"It goes on from '{tmp_path}/model.ckpt-6', to step 20."
        assert more.writes


def test_description_ends_with_a_trigger_that_rarely_fires(tmp_path):
    class Rare(hl.train.SessionRunHook):
        trigger, output_description = hl.train.when_step(lambda step: step in (3, 7)), "its file"

        def on_trigger(self, firing): ...

    made = hl.train.Loop(train_step, init, batches).describe(str(tmp_path), hooks=[Rare()])
    (rare,) = [each for each in made.writes if each.hook == "Rare"]
    assert rare.steps == (3, 7)


def test_steps_of_a_trigger_are_known_unless_a_user_method_decides():
    class Named(hl.train.SecondOrStepTimer):
        name = "mine"

    class Odd(Named):
        def is_due(self, step):
            return step % 2 == 1

    class Logs(Named):
        def update_last_triggered_step(self, step):
            raise AssertionError("a description fires nothing")

    assert list(Named(every_steps=2).firing_steps(0, 4)) == [1, 3]
    assert Odd(every_steps=2).firing_steps(0, 4) is None
    assert Logs(every_steps=2).firing_steps(0, 4) is None
