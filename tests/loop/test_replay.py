"""`Loop.replay`: the same bits as the run, in any stretch of it; and a folder that stays as it is."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
from pathlib import Path

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from tests import spmd
from tests.loop import steps as written
from tests.loop.replayed import KINDS, LAST_STEP, POISONED, fingerprint, made
from tests.python import Python

import hookline as hl
from hookline.errors import NotFoundError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns a function that returns the folder of a training of a kind, trained once, and killed midway."""

    @functools.cache
    def train(kind):
        folder = str(tmp_path_factory.mktemp("runs") / kind.replace(" ", "-"))
        job = Python("-m", "tests.loop.replayed", folder, kind, "57")
        _, printed = job.communicate(timeout=240)
        assert job.returncode == -signal.SIGKILL, printed
        loop, arguments = made(kind)
        loop.run(folder, **arguments)
        return folder

    return train


def step_of(path):
    return int(path.rpartition("-")[2])


def saved_between(folder, after, last):
    """Returns the steps of the checkpoints of a run after a step, up to another one."""
    paths = hl.train.get_checkpoint_state(folder).all_model_checkpoint_paths
    return [step for step in map(step_of, paths) if after < step <= last]


once = functools.cache(made)
"""Replays leave a loop as it is, so tests share the loops, which need not be compiled again."""


def replayed(folder, kind, steps, look=("loss", "grad_norm"), **other):
    loop, arguments = once(kind)
    return loop.replay(folder, steps, look, **arguments, **other)


@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.campaign) for kind in KINDS[1:])])
def test_steps_of_a_killed_and_resumed_run_have_the_same_bits_and_leave_its_folder_as_it_is(trained, kind):
    folder = trained(kind)
    before = fingerprint(folder)
    result = replayed(
        folder, kind, (23, 81), ["loss", "params/hidden", "ema/params/hidden", "opt_state/hyperparams/learning_rate"]
    )
    assert result.is_same
    assert [each.step for each in result.proof] == saved_between(folder, 20, 81)
    assert list(result.rows) == [*range(24, 82)]
    assert all(each.compared > 12 for each in result.proof)
    assert fingerprint(folder) == before


def test_looked_at_values_are_those_of_the_step_and_of_the_state_before_it(tmp_path):
    seen = {}

    class See(hl.train.SessionRunHook):
        trigger = hl.train.every(1)

        def __init__(self, loop):
            self.loop = loop

        def begin(self):
            self.fetches = {"loss": self.loop.metrics["loss"], "hidden": self.loop.state["params"]["hidden"]}

        def on_trigger(self, firing):
            seen[firing.global_step] = jax.device_get(firing.values)

    loop, arguments = made("single")
    loop.run(str(tmp_path), **{**arguments, "hooks": [*arguments["hooks"], See(loop)]})
    loop, arguments = made("single")
    arguments["hooks"].append(See(loop))
    saw = dict(seen)
    result = loop.replay(str(tmp_path), (40, 55), ["loss", "params/hidden"], **arguments)
    assert result.is_same
    for step, row in result.rows.items():
        np.testing.assert_array_equal(row["params/hidden"], saw[step]["hidden"])
        np.testing.assert_allclose(row["loss"], saw[step]["loss"], rtol=1e-5)


def test_rollback_after_a_nan_is_replayed(trained):
    result = replayed(trained("rollback"), "rollback", (POISONED - 4, POISONED + 30))
    assert result.is_same
    assert np.isnan(result.rows[POISONED + 1]["loss"])
    assert np.isfinite(result.rows[POISONED]["loss"])


@pytest.mark.parametrize("kind", ["single", "several"])
@hypothesis.settings(max_examples=100 if hypothesis.settings.default.max_examples >= 100 else 4)
@hypothesis.given(data=st.data())
def test_any_stretch_has_the_same_bits(trained, kind, data):
    first = data.draw(st.integers(0, LAST_STEP - 1))
    last = data.draw(st.integers(first + 1, LAST_STEP))
    every = data.draw(st.integers(1, 20))
    result = replayed(trained(kind), kind, (first, last), every=every)
    assert result.is_same is not False
    assert [each.step for each in result.proof] == saved_between(trained(kind), step_of(result.start), last)
    assert step_of(result.start) <= first
    assert list(result.rows) == [step for step in range(first + 1, last + 1) if step % every == 0]


def test_other_bits_are_found_out_with_the_first_array_and_the_interval(trained):
    loop, arguments = once("single")
    # Without the evaluation, which sets the learning rate at step 30.
    result = loop.replay(trained("single"), (20, 65), **{**arguments, "hooks": []})
    assert result.is_same is False
    array = "state/opt_state/hyperparams/learning_rate"
    assert re.search(
        rf"Not the bits of the run: {array} differs at step 30.* that of step 20\. Likely: other code",
        str(result),
    )


def test_environment_that_has_changed_is_named(trained, monkeypatch):
    from hookline.checkpoint.saving import contents

    loop, arguments = made("single")
    arguments["hooks"] = []
    now = {**contents.environment(), "jax": "99.0", "flags": "XLA_FLAGS=--fast"}
    monkeypatch.setattr(contents, "environment", lambda: now)
    text = str(loop.replay(trained("single"), (20, 35), **arguments))
    assert re.search(r"Likely: jax was \d[\w.]+, is 99\.0; flags was .*, is XLA_FLAGS=--fast\.", text)


def test_steps_whose_checkpoint_is_gone_are_refused_with_those_that_can_be_replayed(tmp_path):
    loop, arguments = made("single", until=40)
    arguments |= {
        "checkpoints": hl.train.CheckpointOptions(save_steps=10, saver=hl.train.Saver(max_to_keep=2)),
        "hooks": [],
    }
    loop.run(str(tmp_path), **arguments)
    with pytest.raises(NotFoundError, match=r"Steps 5 to 12 of .* 2 checkpoints left: at 30, 40; a replay can begin"):
        loop.replay(str(tmp_path), (5, 12), **arguments)
    with pytest.raises(NotFoundError, match="Nothing of .* can be replayed: it has no checkpoint"):
        loop.replay(str(tmp_path / "none"), (5, 12), **arguments)


def test_run_that_goes_on_may_remove_the_checkpoint_meanwhile(trained, tmp_path):
    folder = str(tmp_path / "copy")
    shutil.copytree(trained("single"), folder)

    class Remove(hl.train.SessionRunHook):
        trigger, fetches = hl.train.every(1), ()

        def begin(self):  # Before the checkpoint is read.
            shutil.rmtree(folder)

    assert replayed(folder, "single", (50, 71), ["loss", Remove()]).is_same


class Reads(hl.train.SessionRunHook):
    trigger, fetches = hl.train.every(2), "global_step:0"


class Stops(Reads):
    def on_trigger(self, firing):
        firing.context.request_stop()


class Feeds(Reads):
    def before_trigger(self, run_context):
        return hl.train.SessionRunArgs(None, {"global_step:0": 5})


class Around(Reads):
    def after_run(self, run_context, run_values): ...


class Writes(Reads):
    def begin(self):
        self.fetches = hl.train.get_global_step().graph.get_operation_by_name("train_op")


class Loads(Reads):
    def on_trigger(self, firing):
        firing.context.session.load({"global_step": np.int32(3)})


class Idle(hl.train.SessionRunHook):
    fetches = "global_step:0"


@pytest.mark.parametrize(
    ("look", "why"),
    [
        (Stops, r"only reads, and this one calls request_stop\(\)"),
        (Feeds, "only reads, and the hook Feeds feeds tensors"),
        (Around, "only reads, and the hook Around has after_run"),
        (Writes, "only reads, and the fetches of one update 'state'"),
        (Loads, "only reads, and the hook Loads has changed variables at step 22"),
        (Idle, "hook with fetches and a trigger, and the hook Idle lacks a trigger"),
    ],
)
def test_look_that_does_more_than_read_is_refused(trained, look, why):
    folder = trained("single")
    before = fingerprint(folder)
    with pytest.raises(ValueError, match=why):
        replayed(folder, "single", (20, 25), [look()])
    assert fingerprint(folder) == before


def test_look_is_any_hook_that_reads_and_sees_the_steps_after_the_first_up_to_the_last(trained, capsys):
    seen = []

    class Look(hl.train.SessionRunHook):
        def begin(self):
            self.trigger, self.fetches = (
                hl.train.every(4),
                {"norm": hl.op(jnp.linalg.norm)(self.loop.state["params"]["out"])},
            )

        def on_trigger(self, firing):
            print("seen")
            seen.append((firing.global_step, firing.elapsed_steps, float(firing.values["norm"]) > 0))

        def end(self, session):
            seen.append("end")

    loop, arguments = made("several")
    look = Look()
    look.loop = loop
    assert loop.replay(trained("several"), (31, 44), [look], **arguments).is_same
    assert seen == [(32, None, True), (36, 4, True), (40, 4, True), (44, 4, True), "end"]
    assert capsys.readouterr().out == "seen\n" * 4


def test_hooks_of_the_run_print_nothing_write_elsewhere_and_get_no_end(trained, tmp_path, capsys):
    folder, calls = trained("single"), []
    before = fingerprint(folder)

    class Tell(hl.train.SessionRunHook):
        trigger = hl.train.every(5)

        def on_trigger(self, firing):
            calls.append(firing.global_step)
            print("step", firing.global_step)

        def end(self, session):
            calls.append("end")

        def on_exception(self, session, exception):
            calls.append(str(exception))

    class Service(hl.sinks.Sink):
        def write(self, points):
            calls.append("written")

    loop, arguments = made("single")
    arguments["hooks"] += [
        Tell(),
        hl.train.ProfilerHook(save_steps=8, output_dir=folder),
        hl.train.StepCounterHook(every_n_steps=4, output_dir=str(tmp_path / "other")),
        hl.train.SinkHook([Service()]),
    ]
    arguments |= {"progress": True, "logging": hl.train.LoggingOptions(sinks=[Service()], summary_dir=folder)}
    assert loop.replay(folder, (40, 56), **arguments).is_same
    assert calls == [45, 50, 55, "The replay is over."]
    assert capsys.readouterr() == ("", "")
    assert fingerprint(folder) == before
    assert list(tmp_path.iterdir()) == []


def test_loop_goes_on_after_a_replay_as_if_there_was_none(trained, caplog):
    def trains(last_step, *, replays):
        if replays:
            loop.replay(trained("single"), (40, 42), **arguments, last_step=LAST_STEP)
        loop.run(**arguments, last_step=last_step)
        return loop.result["params"]["hidden"]

    after_replays, alone = [], []
    for found, replays in ((after_replays, True), (alone, False)):
        loop, arguments = made("single")
        arguments = {"progress": False}
        found += [trains(10, replays=replays), trains(20, replays=replays)]
        assert (loop.logdir, loop.history["loss"].steps) == (None, [1])
    np.testing.assert_array_equal(after_replays, alone)
    assert not [record for record in caplog.records if "goes on from the checkpoint" in record.getMessage()]


def test_names_and_steps_are_checked(trained):
    loop, arguments = made("single")
    with pytest.raises(ValueError, match=r"no metric and no array called 'lose'. There are: grad_norm, loss"):
        loop.replay(trained("single"), (40, 50), ["lose"], **arguments)
    with pytest.raises(ValueError, match="a first step below the last one, got 50 and 50"):
        loop.replay(trained("single"), (50, 50), **arguments)
    with pytest.raises(TypeError, match=r"a pair of steps, such as \(1200, 1300\), got 5"):
        loop.replay(trained("single"), 5, **arguments)


def test_steps_that_ended_in_a_nan_are_replayed_up_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["-c"])  # In a script the message has the command.
    loop, arguments = made("rollback")
    arguments |= {"on_nan": "raise", "hooks": []}
    with pytest.raises(hl.train.NanLossDuringTrainingError, match="To look at the steps before it: ") as raised:
        loop.run(str(tmp_path), **arguments)
    assert str(raised.value).endswith(
        f"loop.replay('{tmp_path}', (25, 35), ['grad_norm', 'loss', 'learning_rate'], ...), with the arguments of the "
        "run"
    )
    loop, again = made("rollback")
    again |= {"on_nan": "raise", "hooks": []}
    result = loop.replay(str(tmp_path), (30, 60), ["loss"], **again)
    assert "It ended before step 60: NanLossDuringTrainingError: NanTensorHook found NaN in" in str(result)
    assert np.isnan(result.rows[POISONED + 1]["loss"])
    assert np.isfinite(result.rows[POISONED]["loss"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: written.nnx_objects(False),
        pytest.param(written.nnx_functional, marks=pytest.mark.campaign),
        pytest.param(lambda: written.equinox(written.as_it_is), marks=pytest.mark.campaign),
    ],
)
def test_models_of_flax_and_equinox_have_the_same_bits_over_epochs(tmp_path, make):
    arguments = {"epochs": 4, "progress": False, "log_steps": "epoch"}
    arguments |= {"checkpoints": hl.train.CheckpointOptions(save_steps="epoch")}
    trained, asked = make(), make()
    hl.train.Loop(trained.step, trained.state, written.batches(1)).run(str(tmp_path), **arguments)
    before = jax.device_get(asked.weights(asked.state))
    result = hl.train.Loop(asked.step, asked.state, written.batches(1)).replay(
        str(tmp_path), (10, 28), ["loss"], **arguments
    )
    assert ([each.step for each in result.proof], result.is_same, len(result.rows)) == ([16, 24], True, 18)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(asked.weights(asked.state)), before)


def check_printed_replays(printed):
    single, several = printed.splitlines()[:4], printed.splitlines()[4:]
    assert single == several
    assert [line.split()[0] for line in single[1:3]] == ["40", "50"]
    assert single[3] == "The same bits as the run at step 40 and 50."


def test_sharded_state_on_four_devices_has_the_same_bits(tmp_path):
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    job = Python("-m", "tests.loop.replayed_on_devices", str(tmp_path), env=environment)
    printed, errors = job.communicate(timeout=240)
    assert job.returncode == 0, errors
    check_printed_replays(printed)


def test_sharded_state_in_two_processes_has_the_same_bits(tmp_path):
    for process in spmd.run(str(Path(__file__).with_name("replayed_on_devices.py")), str(tmp_path)):
        assert process.status == 0, process.err
        check_printed_replays(process.out)
