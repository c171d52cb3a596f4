"""The options of a training: one signature of `Loop`, and one way to give each in `MonitoredTrainingSession`."""

from __future__ import annotations

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import train
from hookline.testing import read_events

SAVER = train.Saver()
DAILY = ["logdir", "last_step", "epochs", "time_limit_secs", "hooks", "progress", "log_steps", "nan_check", "on_nan"]
DAILY += ["warm_start", "train_on"]


def step(state, batch):
    return {"w": state["w"] + batch.mean()}, {"loss": state["w"]}


def loop(**options):
    return train.Loop(step, {"w": jnp.zeros(())}, hl.data.from_arrays(np.ones(12, "float32"), 1), **options)


def session(**arguments):
    with hl.Graph().as_default():
        train.get_or_create_global_step()
        return train.MonitoredTrainingSession(**arguments)


def test_run_session_and_describe_take_the_same_arguments():
    run, opened, described = (
        {
            name: (parameter.kind, parameter.default)
            for name, parameter in inspect.signature(function).parameters.items()
        }
        for function in (train.Loop.run, train.Loop.session, train.Loop.describe)
    )
    assert run == opened == described
    assert list(run) == ["self", *DAILY, "checkpoints", "logging", "preemption"]


def saved(folder):
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("model.ckpt-*"))


def summarised(folder, tag):
    return [event.step for event in read_events(str(folder)) for value in event.summary.value if value.tag == tag]


def test_loop_saves_writes_and_measures_by_its_options(tmp_path):
    runs, events = tmp_path / "run", tmp_path / "events"
    loop().run(
        str(runs),
        progress=False,
        checkpoints=train.CheckpointOptions(save_steps=5, saver=train.Saver(max_to_keep=2)),
        logging=train.LoggingOptions(summary_steps=4, rate_steps=6, summary_dir=str(events)),
    )
    assert saved(runs) == [10, 12]
    assert summarised(events, "loss") == [1, 5, 9]
    assert summarised(events, "global_step/sec") == [7]


def test_session_of_a_graph_takes_the_same_options(tmp_path):
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path),
            hooks=[train.StopAtStepHook(last_step=6)],
            checkpoints=train.CheckpointOptions(save_steps=2, saver=train.Saver(max_to_keep=1)),
            logging=train.LoggingOptions(rate_steps=2, per_step={"tokens": 7}),
        ) as opened:
            while not opened.should_stop():
                opened.run(train_op)
    assert saved(tmp_path) == [6]
    assert summarised(tmp_path, "tokens/sec") == [3, 5]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"save_checkpoint_steps": 5, "checkpoints": train.CheckpointOptions(save_steps=5)},
            r"takes save_checkpoint_steps or CheckpointOptions\(save_steps=\.\.\.\), and got both",
        ),
        (
            {"summary_dir": "a", "logging": train.LoggingOptions(summary_dir="a")},
            r"takes summary_dir or LoggingOptions\(summary_dir=\.\.\.\), and got both",
        ),
        (
            {"scaffold": train.Scaffold(saver=SAVER), "checkpoints": train.CheckpointOptions(saver=SAVER)},
            r"takes scaffold.saver or CheckpointOptions\(saver=\.\.\.\), and got both",
        ),
        ({"checkpoints": train.CheckpointOptions(restore_hyperparams=False)}, "is for a Loop"),
        ({"logging": train.LoggingOptions(peak_flops=1e12)}, "XLA counts them for a Loop alone"),
        (
            {"logging": train.LoggingOptions(rate_steps=None, per_step={"tokens": 7})},
            "takes per_step with rate_steps, and these rates are off",
        ),
        (
            {"logging": train.LoggingOptions(per_step={"tokens": 7}), "log_step_count_steps": None},
            "takes per_step with rate_steps, and these rates are off",
        ),
    ],
)
def test_duplicate_or_ineffective_option_is_refused(arguments, said):
    with pytest.raises(ValueError, match=f"^MonitoredTrainingSession .*{said}"):
        session(**arguments)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: train.CheckpointOptions(save_steps=0), ValueError, "save_steps > 0, or None for none, got 0"),
        (lambda: train.CheckpointOptions(save_steps=2.5), TypeError, "a whole number as save_steps, got 2.5"),
        (lambda: train.CheckpointOptions(save_secs="x"), TypeError, "a number as save_secs, got 'x'"),
        (lambda: train.CheckpointOptions(saver="x"), TypeError, "a Saver .* as saver"),
        (lambda: train.CheckpointOptions(restore="newest"), ValueError, "^CheckpointOptions requires restore='latest'"),
        (lambda: train.LoggingOptions(per_step={"tokens": 0}), ValueError, r"above 0 as per_step\['tokens'\], got 0"),
        (lambda: train.LoggingOptions(peak_flops=0), ValueError, "^LoggingOptions requires peak_flops > 0, got 0"),
        (
            lambda: train.LoggingOptions(sinks=hl.sinks.Csv("a")),
            TypeError,
            "^LoggingOptions requires a list as sinks, got one sink",
        ),
        (lambda: train.LoggingOptions(sinks=[3]), TypeError, "^LoggingOptions requires objects of a subclass of Sink"),
        (lambda: train.LoggingOptions(hparams=np.ones(2)), TypeError, "a dict or a dataclass as hparams"),
        (lambda: train.CheckpointOptions(lock_timeout_secs=-1), ValueError, "lock_timeout_secs >= 0"),
        (lambda: train.LoggingOptions(rate_steps=0), ValueError, "rate_steps > 0"),
        (
            lambda: train.LoggingOptions(raise_on_write_errors=1),
            TypeError,
            "True or False as raise_on_write_errors, got 1",
        ),
        (lambda: train.PreemptionOptions(timeout_secs=0), ValueError, "timeout_secs > 0, got 0"),
        (lambda: train.CheckpointOptions(10), TypeError, "positional"),
        (lambda: train.CheckpointOptions(every=10), TypeError, "unexpected keyword argument 'every'"),
        (lambda: session(restore="latest"), TypeError, "unexpected keyword argument 'restore'"),
        (lambda: loop().run(save_checkpoint_steps=3), TypeError, "unexpected keyword argument 'save_checkpoint_steps'"),
    ],
)
def test_wrong_option_is_refused_at_its_construction(make, error, said):
    with pytest.raises(error, match=said):
        make()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"save_steps": 5, "saver": SAVER}, "save_steps=..., saver=..."),
        ({"restore": "latest-valid"}, "restore=..."),
        ({"save_steps": None, "recovery": None, "restore_hyperparams": True}, None),
    ],
)
def test_checkpoint_options_without_a_directory_need_one(tmp_path, caplog, options, names):
    checkpoints = train.CheckpointOptions(**options)
    loop().session(progress=False, checkpoints=checkpoints).close()
    session(checkpoints=checkpoints).close()
    session(save_checkpoint_steps=5).close()  # As TensorFlow, which gives no warning.
    saves = train.CheckpointSaverHook(str(tmp_path), save_steps=5, saver=train.Saver())
    session(checkpoints=checkpoints, hooks=[saves]).close()
    said = [line for line in caplog.messages if "saves no checkpoints" in line]
    assert said == (
        [
            f"{who} saves no checkpoints, because it has no directory, and CheckpointOptions({names}) needs one: give "
            f"it {name}."
            for who, name in (("Loop", "logdir"), ("MonitoredTrainingSession", "checkpoint_dir"))
        ]
        if names
        else []
    )


@pytest.mark.parametrize(("saver", "kept"), [(None, [0, 6, 12]), (train.Saver(max_to_keep=2), [6, 12])])
def test_options_may_be_used_for_several_trainings(tmp_path, saver, kept):
    saves = train.CheckpointOptions(save_steps=6, saver=saver)
    writes = train.LoggingOptions(sinks=iter([hl.sinks.Csv()]), summary_dir=tmp_path / "events")
    for name in "abc":
        loop().run(str(tmp_path / name), progress=False, checkpoints=saves, logging=writes)
    assert [saved(tmp_path / name) for name in "abc"] == [kept] * 3  # No training removes another's checkpoints.
    assert writes.summary_dir == str(tmp_path / "events")
    assert len(writes.sinks) == 1


def test_saver_of_the_options_is_set_on_the_scaffold_of_user_hooks(tmp_path):
    given = []
    scaffold = train.Scaffold(init_fn=lambda scaffold, session: given.append(scaffold))
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        hl.summary.scalar("x", hl.constant(1.0))
        for name in "ab":  # The second one finds the saver that the first one has put there.
            writer = train.SummarySaverHook(save_steps=1, output_dir=str(tmp_path / "events"), scaffold=scaffold)
            saves = train.CheckpointOptions(saver=train.Saver(max_to_keep=1))
            with train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path / name), scaffold=scaffold, hooks=[writer], checkpoints=saves
            ) as opened:
                opened.run(train_op)
    assert given == [scaffold, scaffold]
    assert summarised(tmp_path / "events", "x") == [1, 1]
    assert [saved(tmp_path / name) for name in "ab"] == [[1], [1]]
