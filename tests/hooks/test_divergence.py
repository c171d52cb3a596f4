"""NanTensorHook(on_nan="skip" | "rollback"): a training that meets a NaN and goes on."""

from __future__ import annotations

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.stand_ins import Servers, await_saves

import hookline as hl
from hookline import errors, train
from hookline.testing import RecordingHook
from hookline.train import Saver, get_checkpoint_state

NAN = float("nan")
LAG = 8  # by how many runs a rollback is delayed


def batches(count=40, nan_at=(), bad_slope_at=()):
    """Returns (x, z): a loss is NaN where x is, and where z is 0 it is finite and its gradient NaN."""
    rng = np.random.default_rng(1)
    made = [(rng.normal(size=4).astype("f"), np.float32(1)) for _ in range(count)]
    for i in nan_at:
        made[i][0][2] = NAN
    for i in bad_slope_at:
        made[i] = (made[i][0], np.float32(0))
    return made


class Job:
    """A model that keeps all that a step may change: weights, opt_state, averages, statistics of the batch, noise."""

    def __init__(self, data, drawn=None):
        self.graph = hl.Graph(seed=5)
        with self.graph.as_default():
            self.step = train.create_global_step()
            x, z = hl.data.iterator(data) if drawn is None else drawn(self.step)
            weight = hl.Variable(np.ones(4, np.float32), name="weight")
            noise = hl.op(lambda key: 0.01 * jax.random.normal(key, (4,)))(hl.random_key())
            self.loss = hl.op(
                lambda w, x, z, n: jnp.mean((w - x + n) ** 2) + 0.01 * jnp.sqrt(jnp.abs(w[0] * z)), name="loss"
            )(weight, x, z, noise)
            mean = hl.Variable(0.0, name="batch_mean", trainable=False)
            mean_op = mean.assign(hl.op(lambda m, x: 0.9 * m + 0.1 * x.mean())(mean, x))
            descend = train.Optimizer(optax.adam(0.05)).minimize(self.loss, self.step)
            with hl.control_dependencies([descend]):
                averaged = train.ExponentialMovingAverage(0.9).apply([weight])
            self.train = hl.group(averaged, mean_op)

    def run(self, *hooks, steps=None, directory=None, save_steps=10, **arguments):
        """Trains to the end of the data, or to a step, and returns the state at the end, by name."""
        state = {}

        class Look:
            def end(self, session):
                state.update(session.snapshot())

        stop = train.StopAtStepHook(last_step=steps or 100)  # Data that come again and again would never end.
        with (
            self.graph.as_default(),
            train.MonitoredTrainingSession(
                checkpoint_dir=directory and str(directory),
                save_checkpoint_steps=save_steps,
                save_summaries_steps=None,
                log_step_count_steps=None,
                hooks=[*hooks, stop, Look()],
                checkpoints=train.CheckpointOptions(recovery=train.RecoveryPolicy(initial_backoff_secs=0)),
                **arguments,
            ) as session,
        ):
            while not session.should_stop():
                session.run(self.train)
        return state


def differences(one, other, alike=np.array_equal):
    assert one.keys() == other.keys()
    leaves = {name: zip(jax.tree.leaves(one[name]), jax.tree.leaves(other[name]), strict=True) for name in one}
    return {name for name in one if not all(alike(*pair) for pair in leaves[name])}


def nearly(one, other):
    """Values that may be skipped are not written in place, and XLA may round them differently."""
    return np.allclose(one, other, rtol=1e-5)


def watching(on_nan, **arguments):
    return train.NanTensorHook("loss", on_nan=on_nan, **arguments)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "NanTensorHook" in record.getMessage()]


# Skipping -------------------------------------------------------------------------------------------------------------


def test_skipped_run_changes_nothing_but_the_step():
    bad = 6
    skipped = Job(batches(12, nan_at=[bad])).run(watching("skip"))

    class Undo:
        """Takes the updates of one run back by hand."""

        def before_run(self, run_context):
            self.before = run_context.session.snapshot()

        def after_run(self, run_context, run_values):
            if run_context.session.global_step == bad + 1:
                counted = ("global_step", "random_key/draws")
                run_context.session.load({k: v for k, v in self.before.items() if k not in counted})

    by_hand = Job(batches(12, nan_at=[bad])).run(Undo())
    assert differences(skipped, by_hand, nearly) == set()
    assert skipped["global_step"] == 12
    assert np.isfinite(skipped["weight"]).all()
    assert np.isfinite(skipped["batch_mean"])


def test_each_skipped_run_is_logged_once_with_its_step(caplog):
    Job(batches(12, nan_at=[3, 4, 8])).run(watching("skip"))
    said = warnings(caplog)
    assert len(said) == 3
    assert "found NaN in loss:0 at step 4. Its updates were skipped." in said[0]
    assert "This was number 2 in a row; more than 10 end the training." in said[1]
    assert "in a row" not in said[2]


def test_too_many_consecutive_skips_are_an_error():
    assert Job(batches(12, nan_at=[2, 3, 5, 6])).run(watching("skip", max_times=2))["global_step"] == 12
    with pytest.raises(errors.NanLossDuringTrainingError, match=r"step 7\. The 2 consecutive ones before it were skip"):
        Job(batches(12, nan_at=[4, 5, 6])).run(watching("skip", max_times=2))


def test_nan_gradient_is_skipped_if_gradients_are_checked():
    job = Job(batches(12, bad_slope_at=[5]))
    with job.graph.as_default():
        (grad,) = hl.gradients(job.loss, job.graph.get_collection("trainable_variables"))
    assert np.isfinite(job.run(train.NanTensorHook(grad, on_nan="skip"))["weight"]).all()
    assert np.isnan(Job(batches(12, bad_slope_at=[5])).run()["weight"]).any()


def test_check_without_a_nan_changes_nothing(tmp_path):
    plain = Job(batches(25)).run()
    assert differences(plain, Job(batches(25)).run(watching("skip")), nearly) == set()
    assert differences(plain, Job(batches(25)).run(watching("rollback"), directory=tmp_path)) == set()


# Going back -----------------------------------------------------------------------------------------------------------


def after_rollbacks(data, *ways):
    """Returns the state after training on data, going from one step to the weights of an earlier one by hand."""
    back = dict(ways)

    class ByHand:
        def begin(self):
            self.states = {}

        def after_create_session(self, session, coord):
            self.states[0] = session.snapshot()

        def after_run(self, run_context, run_values):
            session = run_context.session
            self.states[session.global_step] = session.snapshot()
            if session.global_step in back:
                state = self.states[back[session.global_step]]
                session.load({k: v for k, v in state.items() if k not in ("global_step", "random_key/draws")})

    return Job(data).run(ByHand())


def test_rollback_restores_the_last_good_checkpoint_and_repeats_no_batch(tmp_path, caplog):
    data = batches(40, nan_at=[23])
    state = Job(data).run(watching("rollback"), directory=tmp_path)
    assert differences(state, after_rollbacks(data, (24 + LAG - 2, 20))) == set()  # the save at 30 delivers results
    assert state["global_step"] == 40
    (said,) = warnings(caplog)
    assert "at step 24. The weights were restored from" in said
    assert "model.ckpt-20; the training continues at global step 30 with the next batch." in said


def test_rollback_comes_eight_runs_after_the_nan_on_any_device(tmp_path):
    data = batches(40, nan_at=[23])
    state = Job(data).run(watching("rollback"), directory=tmp_path, save_steps=20)
    assert differences(state, after_rollbacks(data, (24 + LAG, 20))) == set()


def test_strict_rolls_back_in_the_same_run(tmp_path):
    data = batches(40, nan_at=[23])
    state = Job(data).run(watching("rollback", strict=True), directory=tmp_path)
    assert differences(state, after_rollbacks(data, (24, 20))) == set()


def test_rollback_repeats_no_batch_computed_from_the_global_step(tmp_path):
    data, used = batches(40, nan_at=[23]), []

    def take(step):
        used.append(int(step))
        return data[int(step)]

    job = Job(None, drawn=lambda step: hl.host_op(take, spec=data[0])(step))
    state = job.run(watching("rollback"), directory=tmp_path, steps=40)
    assert used == list(range(40))
    assert differences(state, after_rollbacks(data, (30, 20))) == set()


@pytest.mark.parametrize("max_to_keep", [pytest.param(1, marks=pytest.mark.campaign), 5])
def test_nan_gradient_with_a_finite_loss_reaches_only_the_newest_checkpoint(tmp_path, max_to_keep):
    data = batches(40, bad_slope_at=[29])  # of the very run that leads to the checkpoint
    job = Job(data)
    with job.graph.as_default():
        scaffold = train.Scaffold(saver=Saver(max_to_keep=max_to_keep))
    state = job.run(watching("rollback", strict=True), directory=tmp_path, scaffold=scaffold)
    if max_to_keep > 1:
        assert np.isnan(train.load_variable(str(tmp_path / "model.ckpt-30"), "weight")).any()
    assert differences(state, after_rollbacks(data, (31, 20))) == set()
    assert np.isfinite(state["weight"]).all()


def test_last_good_checkpoint_is_kept_until_a_later_one_is_good(tmp_path):
    seen = {}

    class Files:
        def before_run(self, run_context):
            found = get_checkpoint_state(str(tmp_path))
            paths = [path.rpartition("-")[2] for path in found.all_model_checkpoint_paths]
            seen[run_context.session.global_step] = (paths, found.last_good and found.last_good.rpartition("-")[2])

    job = Job(batches(33, bad_slope_at=[19]))
    with job.graph.as_default():
        scaffold = train.Scaffold(saver=Saver(max_to_keep=1))

    class Completes(train.CheckpointSaverListener):
        def after_save(self, session, global_step):
            pass

    saving = train.CheckpointSaverHook(str(tmp_path), save_steps=10, scaffold=scaffold, listeners=[Completes()])
    job.run(saving, watching("rollback", strict=True), Files(), scaffold=scaffold)
    assert seen[10] == (["0", "10"], "0")
    assert seen[20] == (["10", "20"], "10")
    assert seen[30] == (["10", "30"], "10")
    assert get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths == (
        str(tmp_path / "model.ckpt-30"),
        str(tmp_path / "model.ckpt-33"),
    )


def test_job_killed_with_nan_in_its_newest_checkpoint_ends_like_an_uninterrupted_one(tmp_path):
    data = batches(40, bad_slope_at=[29])
    whole = Job(data).run(watching("rollback"), directory=tmp_path / "whole")
    assert np.isfinite(whole["weight"]).all()
    Job(data).run(watching("rollback"), directory=tmp_path / "cut", steps=30)
    resumed = Job(data).run(watching("rollback"), directory=tmp_path / "cut")
    assert differences(whole, resumed) == set()


class CopyAt(train.SessionRunHook):
    """Copies the files that a kill at a step, with no save under way, would leave."""

    def __init__(self, directory, step, copy):
        self.directory, self.step, self.copy = directory, step, copy

    def after_run(self, run_context, run_values):
        if run_context.session.global_step == self.step:
            await_saves()
            shutil.copytree(self.directory, self.copy)


def end_of(data, hooks, directory, save_steps):
    """Returns the last state, or the error."""
    try:
        return Job(data).run(*hooks, directory=directory, save_steps=save_steps)
    except errors.NanLossDuringTrainingError as error:
        return str(error)


@pytest.mark.parametrize(
    ("bad", "hook", "save_steps", "kills"),
    [
        pytest.param({"nan_at": [23]}, {"on_nan": "rollback"}, 10, (29,), marks=pytest.mark.campaign),
        ({"bad_slope_at": [29, 33]}, {"on_nan": "rollback", "strict": True}, 10, (31,)),
        pytest.param(
            {"bad_slope_at": [29, 33]}, {"on_nan": "rollback", "strict": True}, 10, (28,), marks=pytest.mark.campaign
        ),
        pytest.param(
            {"nan_at": [12, 13, 14, 15]},
            {"on_nan": "rollback", "strict": True, "max_times": 3},
            2,
            (15,),
            marks=pytest.mark.campaign,
        ),
        ({"nan_at": [12, 13, 14, 15]}, {"on_nan": "skip", "max_times": 3}, 2, (15,)),
    ],
)
def test_killed_job_ends_like_an_uninterrupted_one(tmp_path, bad, hook, save_steps, kills):
    data = batches(36, **bad)
    whole = end_of(data, [train.NanTensorHook("loss", **hook)], tmp_path / "whole", save_steps)
    for step in kills:
        killed, left = tmp_path / f"killed-{step}", tmp_path / f"left-{step}"
        end_of(data, [train.NanTensorHook("loss", **hook), CopyAt(killed, step, left)], killed, save_steps)
        resumed = end_of(data, [train.NanTensorHook("loss", **hook)], left, save_steps)
        assert resumed == whole if isinstance(whole, str) else differences(resumed, whole) == set(), step


def test_recovery_and_rollback_work_together(tmp_path):
    data = batches(40, nan_at=[23])
    whole = Job(data).run(watching("rollback"), directory=tmp_path / "whole")
    lose = RecordingHook(failures={"after_run": [None] * 35 + [errors.AbortedError(None, None, "lost")]})
    assert differences(whole, Job(data).run(watching("rollback"), lose, directory=tmp_path / "lost")) == set()


def test_nan_in_the_last_runs_is_rolled_back_before_the_last_save(tmp_path):
    Job(batches(24, nan_at=[23])).run(watching("rollback"), directory=tmp_path)
    last = train.latest_checkpoint(str(tmp_path))
    assert last.endswith("-24")
    assert np.isfinite(train.load_variable(last, "weight")).all()


def test_repeated_rollbacks_to_one_checkpoint_are_an_error(tmp_path):
    bad = [22, 24, 26]
    hook = watching("rollback", strict=True, max_times=2)
    with pytest.raises(errors.NanLossDuringTrainingError, match="2 consecutive ones before it were rolled back to the"):
        Job(batches(40, nan_at=bad)).run(hook, directory=tmp_path / "same")
    spread = [12, 14, 22, 24, 32, 34]
    assert Job(batches(40, nan_at=spread)).run(hook, directory=tmp_path / "spread")["global_step"] == 40


def test_several_hooks_roll_back_once(tmp_path, caplog):
    job = Job(batches(40, bad_slope_at=[13, 23]))
    with job.graph.as_default():
        (grad,) = hl.gradients(job.loss, job.graph.get_collection("trainable_variables"))
    # The gradient is NaN in run 14, and the loss in the next, which is reported first.
    hooks = [watching("rollback", strict=True), train.NanTensorHook(grad, on_nan="rollback")]
    state = job.run(*hooks, directory=tmp_path)
    assert [said.partition("weights were restored from ")[2].partition(";")[0][-2:] for said in warnings(caplog)] == [
        "10",
        "20",
    ]
    assert differences(state, after_rollbacks(batches(40, bad_slope_at=[13, 23]), (15, 10), (25, 20)), nearly) == set()


def test_checkpoint_of_a_rollback_may_still_be_marked_good(tmp_path):
    data = batches(20, nan_at=[0], bad_slope_at=[9])
    state = Job(data).run(watching("rollback", strict=True), directory=tmp_path)
    assert differences(state, after_rollbacks(data, (1, 0), (11, 0))) == set()


def test_newest_checkpoint_is_used_before_any_is_marked_good(tmp_path):
    data = batches(12, nan_at=[0])
    state = Job(data).run(watching("rollback", strict=True), directory=tmp_path)
    assert differences(state, after_rollbacks(data, (1, 0))) == set()


# Refused combinations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"on_nan": "skip", "fail_on_nan_loss": False}, "takes fail_on_nan_loss or on_nan, got both"),
        ({"on_nan": "ignore"}, "requires on_nan to be one of raise, stop, skip, rollback, got 'ignore'"),
        ({"on_nan": "stop", "max_times": 3}, "takes max_times with on_nan='skip' or 'rollback', got 'stop'"),
        ({"max_times": 3}, "takes max_times with on_nan='skip' or 'rollback', got 'raise'"),
        ({"on_nan": "skip", "max_times": -1}, "requires max_times >= 0, got -1"),
        ({"on_nan": "skip", "saver": Saver()}, "takes a saver with on_nan='rollback', got 'skip'"),
    ],
)
def test_contradictory_arguments_are_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        train.NanTensorHook("loss", **arguments)


def test_rollback_needs_exactly_one_saver(tmp_path):
    with pytest.raises(RuntimeError, match="exactly one saver for rollbacks, found 0"):
        Job(batches(4)).run(watching("rollback"))
    job = Job(batches(4))
    both = [train.CheckpointSaverHook(str(tmp_path / name), save_steps=5, saver=Saver()) for name in "ab"]
    with pytest.raises(RuntimeError, match="exactly one saver for rollbacks, found 2"):
        job.run(watching("rollback"), *both)


def test_saver_may_be_given(tmp_path):
    job = Job(batches(20, nan_at=[12]))
    with job.graph.as_default():
        saver = Saver()
    hook = train.CheckpointSaverHook(str(tmp_path), save_steps=5, saver=saver)
    other = train.CheckpointSaverHook(str(tmp_path / "other"), save_steps=5, saver=Saver())
    state = job.run(watching("rollback", saver=saver, strict=True), hook, other)
    assert differences(state, after_rollbacks(batches(20, nan_at=[12]), (13, 10))) == set()


@pytest.mark.parametrize("on_nan", ["skip", "rollback"])
def test_rollback_and_skip_are_refused_with_parameter_servers(on_nan, tmp_path):
    with pytest.raises(ValueError, match=f"does not support on_nan='{on_nan}' with variables on parameter servers"):
        Job(batches(4)).run(watching(on_nan), directory=tmp_path, master=Servers())


def test_skip_updates_if_is_refused_with_parameter_servers():
    with hl.Graph().as_default():
        weight = hl.Variable(1.0, name="weight")
        run = (weight.assign_add(1.0), hl.skip_updates_if(hl.op(jnp.isnan)(weight)))
        with hl.Session(Servers()) as session:
            session.run(hl.global_variables_initializer())
            session.backend.publish()
            with pytest.raises(errors.UnimplementedError, match="which happens on a parameter server"):
                session.run(run)
