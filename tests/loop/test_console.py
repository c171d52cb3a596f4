"""A run prints its start, its evaluations, the reason of its end and the place of its files on stderr."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest
from tests import python
from tests.loop.devices import on_devices
from tests.terminal import Terminal

import hookline as hl
from hookline.testing import FakeClock

TRAIN = """
import os, signal, sys
import jax.numpy as jnp, numpy as np
import hookline as hl

at, what = int(os.environ.get("AT", 0)), os.environ.get("WHAT", "")

def act(firing):
    if what == "raise":
        raise ValueError("no more memory\\nat all")
    os.kill(os.getpid(), getattr(signal, what))

loop = hl.train.Loop(
    lambda state, batch: ({"n": state["n"] + 1}, {"loss": 1.0 / state["n"]}),
    {"n": jnp.ones(())},
    hl.data.from_arrays(np.ones((8, 2)), 2, epochs=None),
)
hooks = [hl.train.FunctionHook(act, every=hl.train.at_steps(at))] if at else []
held_out = hl.data.from_arrays(np.ones((4, 2)), 2)
evaluate = hl.train.Evaluate(lambda state, batch: {"loss": (state["n"] - 5.0) ** 2}, held_out, every=3)
loop.run("runs/a", 9, hooks=[evaluate, *hooks], checkpoints=hl.train.CheckpointOptions(save_steps=2))
"""


def counting(n=0.0, epochs=None):
    def step(state, batch):
        return {"n": state["n"] + 1}, {"loss": 1.0 / (10 - state["n"])}

    return hl.train.Loop(step, {"n": jnp.asarray(n)}, hl.data.from_arrays(np.ones((8, 2)), 2, epochs=epochs))


def lines(text, progress=False):
    """Returns the lines of the console, without those of the progress and of the log."""
    found = [line for line in text.splitlines() if not re.match(r"(WARNING|Traceback|  )", line)]
    return [line for line in found if progress or not re.match(r"step \d", line)]


def run(tmp_path, env, **variables):
    return python.run("-c", TRAIN, cwd=tmp_path, env=env | {key: str(value) for key, value in variables.items()})


def test_first_run_says_where_it_starts_what_it_finds_and_why_it_ends(tmp_path, environment):
    done = run(tmp_path, environment())
    assert done.returncode == 0, done.stderr
    first, *rest = lines(done.stderr)
    assert re.fullmatch(r"starts at step 0; on 1 (of \d+ )?x cpu, 4 steps per epoch", first)
    assert [re.sub(r"after \d+ s", "after T", line) for line in rest] == [
        "eval at step 3, epoch 1  loss 1.000 (best)",
        "eval at step 6, epoch 2  loss 4.000 (best 1.000 at step 3)",
        "eval at step 9, epoch 3  loss 25.00 (best 1.000 at step 3)",
        "stopped at step 9 after T: the last step, 9, is reached",
        "best eval/loss 1.000 at step 3",
        "files in runs/a, saved at step 9; see tensorboard --logdir runs, hookline report runs/a",
    ]
    assert not re.search(r"[\r\x1b]", done.stderr), "a pipe gets whole lines without colours"

    again = run(tmp_path, environment())
    assert again.stderr.count("Nothing is trained") == 1
    assert lines(again.stderr) == []


def test_line_of_an_epoch_has_the_means_of_the_training_beside_the_evaluation(capsys):
    def step(w, batch):
        return w + 1.0, {"loss": w}

    data = hl.data.from_arrays(np.ones((8, 2)), 2)
    loop = hl.train.Loop(step, jnp.zeros(()), data, smoothing_steps="epoch", steps_per_run=3)
    loop.run(epochs=2, hooks=[hl.train.Evaluate(lambda w, batch: {"loss": 10.0 - w}, data, every="epoch")])
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("eval")] == [
        "eval at step 4, epoch 1  mean/loss 1.500  loss 6.000 (best)",
        "eval at step 8, epoch 2  mean/loss 5.500  loss 2.000 (best)",
    ]


@pytest.mark.parametrize(("level", "shown"), [("INFO", "{}:"), ("WARNING", "eval at")])
def test_evaluation_is_shown_once_on_a_terminal_that_shows_the_log(level, shown, tmp_path, environment):
    show = f"import logging; logging.basicConfig(); logging.getLogger('hookline').setLevel('{level}')"
    done = python.run("-c", f"{show}\n{TRAIN}", cwd=tmp_path, env=environment())
    found = [line for line in done.stderr.splitlines() if "eval at step 6, epoch 2  loss 4.000" in line]
    assert [line.startswith(shown.format("INFO:hookline.loop.evaluation.evaluate")) for line in found] == [True]
    assert "best eval/loss 1.000 at step 3" in done.stderr.splitlines()
    assert "[1]['loss']" not in done.stderr, "programs name their outputs in short"


@pytest.mark.parametrize("what", ["SIGKILL", "SIGTERM", "raise"])
def test_end_by_force_is_explained_and_the_next_run_says_what_it_restores(what, tmp_path, environment):
    done = run(tmp_path, environment(), AT=5, WHAT=what)
    why = {"SIGTERM": "SIGTERM was received", "raise": "ValueError: no more memory"}
    found = re.findall(r"^stopped at step 5 after \d+ s: (.*)$", done.stderr, re.MULTILINE)
    assert found == ([why[what]] if what in why else []), done.stderr

    again = run(tmp_path, environment())
    expected = r"restored step (\d) from runs/a/model.ckpt-\1 \(saved \d+ s ago\); on .* x cpu, 4 steps per epoch"
    restored = re.fullmatch(expected, lines(again.stderr)[0])
    assert restored is not None
    assert restored[1] in ("5" if what == "SIGTERM" else "24")  # Saves are written in the background.
    assert "best eval/loss 1.000 at step 3" in lines(again.stderr)


class Stop(hl.train.SessionRunHook):
    trigger = hl.train.every(3)

    def __init__(self, final):
        self._final = final

    def on_trigger(self, firing):
        if firing.global_step > 1:
            firing.context.request_stop(final=self._final)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"last_step": 3}, "the last step, 3, is reached"),
        ({"hooks": [Stop(None)]}, "Stop has requested it"),
        ({"hooks": [Stop("good enough")]}, "Stop has requested it: good enough"),
        ({}, "the data have ended"),
    ],
)
def test_stop_reason_of_the_session_is_the_one_shown(end, why, capsys):
    loop = counting(epochs=1)
    with loop.session(**end) as session:
        while not session.should_stop():
            assert session.stop_reason is None
            session.run(loop.train_op)
    assert session.stop_reason == why
    assert capsys.readouterr().err.splitlines()[-1].endswith(f": {why}")


def test_stop_by_the_script_and_by_its_own_request(capsys):
    for requests in (False, True):
        loop = counting()
        with loop.session() as session:
            session.run(loop.train_op)
            if requests:
                session.request_stop()
        is_named = re.match("test_stop_by_the_script.*, test_console.py:[0-9]+ has requested it", session.stop_reason)
        assert is_named if requests else session.stop_reason == "the script has left the session"


def test_stop_for_nan_keeps_the_finite_checkpoint_and_says_so(tmp_path, capsys, caplog):
    def train(**arguments):
        step = lambda state, batch: ({"n": state["n"] + batch}, {"loss": jnp.log(6.0 - batch)})  # noqa: E731
        loop = hl.train.Loop(step, {"n": jnp.zeros(())}, [np.float32(number) for number in range(20)])
        saves = hl.train.CheckpointOptions(save_steps=5)
        return loop.run(str(tmp_path), checkpoints=saves, **arguments)["n"]

    for start in ("starts at step 0", "restored step 5"):  # The restart meets the NaN again.
        train(on_nan="stop")
        first, *_, stopped, _ = lines(capsys.readouterr().err)
        assert first.startswith(start)
        # log(6 - 7) at step 8; the latch is read before the save of step 10.
        assert re.search(
            r"stopped at step 10 .*NanTensorHook found NaN in loss at step 8, and noticed it at step 10$", stopped
        )
        assert re.search(
            r"does not save the invalid state of step 10. The newest checkpoint is .*model.ckpt-5\.", caplog.text
        )
        assert hl.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-5")
    assert train(on_nan="skip", last_step=9) == 1 + 2 + 3 + 4 + 5 + 6


def test_given_nan_hook_replaces_that_of_the_loop(capsys):
    loop = hl.train.Loop(lambda state, batch: (state, {"loss": state["n"]}), {"n": jnp.nan}, [np.ones(2)] * 9)
    loop.run(hooks=[hl.train.NanTensorHook(loop.metrics["loss"], on_nan="skip", max_times=20)])
    assert "stopped at step 9" in lines(capsys.readouterr().err)[-1]


def test_nan_is_the_reason(capsys):
    loop = hl.train.Loop(lambda state, batch: (state, {"loss": state["n"]}), {"n": jnp.nan}, [np.ones(2)] * 9)
    with pytest.raises(hl.train.NanLossDuringTrainingError, match="No state after it is saved") as raised:
        loop.run()
    last = lines(capsys.readouterr().err)[-1]
    reason = r"NanTensorHook found NaN in loss at step \d, and noticed it at step \d"
    assert re.search(rf"^stopped at step \d after \d+ s: NanLossDuringTrainingError: {reason}$", last)
    assert [entry.name for entry in raised.traceback] == ["test_nan_is_the_reason"]


def test_nan_error_of_an_own_hook_keeps_its_traceback():
    def refuse(firing):
        raise hl.train.NanLossDuringTrainingError("a weight is NaN")

    loop = hl.train.Loop(lambda state, batch: (state, {}), {"n": jnp.zeros(())}, [np.ones(2)] * 9)
    with pytest.raises(hl.train.NanLossDuringTrainingError) as raised:
        loop.run(hooks=[hl.train.FunctionHook(refuse, every=1)], progress=False)
    assert raised.traceback[-1].name == "refuse"


def test_loop_that_continues_in_memory_says_so(capsys):
    loop = counting()
    loop.run(last_step=3)
    capsys.readouterr()
    loop.run(last_step=5)
    assert capsys.readouterr().err.startswith("continues in memory at step 3; on ")


class Lose(hl.train.SessionRunHook):
    lost = False

    def before_run(self, run_context):
        if run_context.session.global_step == 3 and not self.lost:
            self.lost = True
            raise hl.errors.AbortedError(None, None, "lost")


def test_recovery_says_once_what_is_restored(tmp_path, capsys):
    with FakeClock():
        counting().run(str(tmp_path / "a"), 5, hooks=[Lose()], checkpoints=hl.train.CheckpointOptions(save_steps=2))
    shown = [line for line in lines(capsys.readouterr().err) if "restored" in line]
    assert len(shown) == 1
    assert re.match(r"after the loss of the session: restored step 2 from .*model\.ckpt-2 \(saved", shown[0])


def test_evaluation_before_the_first_step_comes_after_the_start(capsys):
    evaluate = hl.train.Evaluate(lambda state, batch: {"score": state["n"]}, [np.ones(2)], every=9, on_start=True)
    counting().run(last_step=2, hooks=[evaluate])
    start, first, last, *_ = lines(capsys.readouterr().err)
    assert start.startswith("starts at step 0")
    assert (first, last) == ("eval at step 0  score 0.000", "eval at step 2, epoch 1  score 2.000")


def test_progress_false_is_silent(tmp_path, capsys):
    evaluate = hl.train.Evaluate(lambda state, batch: {"loss": state["n"]}, [np.ones(2)], every=2)
    counting().run(str(tmp_path), 4, hooks=[evaluate], progress=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("progress", [{}, {"progress": False}, {"progress": True}])
def test_monitored_training_session_talks_if_asked(progress, tmp_path, capsys):
    with hl.Graph().as_default():
        train_op = hl.train.get_or_create_global_step().assign_add(1)
        hooks = [hl.train.StopAtStepHook(last_step=2)]
        with hl.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path / "a"), hooks=hooks, **progress) as session:
            while not session.should_stop():
                session.run(train_op)
    out, err = capsys.readouterr()
    assert out == ""
    if progress != {"progress": True}:
        assert err == ""
        return
    start, one, two, end, files = err.splitlines()
    assert start.startswith("starts at step 0; on ")
    assert (one[:8], two[:8]) == ("step 1/2", "step 2/2")
    assert end.endswith(": the last step, 2, is reached")
    folder = tmp_path / "a"
    assert files == f"files in {folder}, saved at step 2; see tensorboard --logdir {tmp_path}, hookline report {folder}"


@pytest.mark.parametrize(("sharding", "devices"), [("", "1 of 4"), ("sharding=everywhere,", "4")])
def test_start_counts_the_devices_of_the_state(sharding, devices, tmp_path, environment):
    mesh = "everywhere = jax.NamedSharding(jax.make_mesh((4,), ('data',)), jax.P())\n"
    loop = f"loop = hl.train.Loop(lambda n: (n + 1, {{}}), jnp.ones(()), None, {sharding})\n"
    code = f"import jax, jax.numpy as jnp, hookline as hl\n{mesh}{loop}loop.run(last_step=2, nan_check=None)"
    done = python.run("-c", code, cwd=tmp_path, env=environment() | on_devices(4))
    assert f"starts at step 0; on {devices} x cpu\n" in done.stderr


def test_two_spmd_processes_speak_with_one_voice(tmp_path, environment):
    (tmp_path / "train.py").write_text(TRAIN)
    launch = ("-m", "hookline.cli", "launch", "--spmd", "--processes", "2", "train.py")
    done = python.run(*launch, cwd=tmp_path, env=environment())
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    for what in ("starts at step 0", "eval at step 3", "stopped at step 9", "files in runs/a"):
        assert re.findall(rf"^(\d) \| {what}", shown, re.MULTILINE) == ["0"], shown


def test_lines_are_printed_above_the_bar_of_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal(60)
    monkeypatch.setattr("sys.stderr", terminal.file)
    evaluate = hl.train.Evaluate(lambda state, batch: {"loss": state["n"]}, [np.ones(2)], every=2)
    counting().run(last_step=4, hooks=[evaluate])
    screen = [line.rstrip() for line in terminal.screen]
    assert [line.split(" ")[0] for line in screen if line] == ["starts", "eval", "eval", "step", "stopped", "best"]
    assert re.fullmatch(r"step 4/4 +━+ +100%  (epoch 1  )?loss 0\.1429.*", screen[3])


def test_evaluation_on_start_prints_the_steps_per_epoch(capsys):
    held_out = hl.data.from_arrays(np.ones((4, 2)), 2)
    evaluate = hl.train.Evaluate(lambda state, batch: {"loss": state["n"] + 1}, held_out, every=3, on_start=True)
    counting().run(last_step=2, hooks=[evaluate])
    first, second, *_ = lines(capsys.readouterr().err)
    assert re.fullmatch(r"starts at step 0; on 1 (of \d+ )?x cpu, 4 steps per epoch", first)
    assert second.startswith("eval at step 0  loss 1.000 (best)")


def test_progress_shows_the_newest_checkpoint(tmp_path, capsys):
    counting().run(str(tmp_path / "a"), 6)
    capsys.readouterr()
    counting().run(str(tmp_path / "a"), 9)
    shown = capsys.readouterr().err
    assert re.search(r"^step 7/9 .*  saved 6$", shown, re.MULTILINE)
    assert re.search(r"^step 9/9  100%  epoch 3/3  loss 0.5000$", shown, re.MULTILINE), "its save comes after it"


def test_end_is_explained_although_the_text_of_an_error_cannot_be_made(capsys):
    class Bad(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def fail(firing):
        raise Bad

    with pytest.raises(Bad):
        counting().run(last_step=3, hooks=[hl.train.FunctionHook(fail, every=1)])
    assert re.search(r"^stopped at step 1 after \d+ s: Bad$", capsys.readouterr().err, re.MULTILINE)


def test_end_of_the_last_epoch_is_named(capsys):
    counting(epochs=1).run(epochs=2)
    end = r"^stopped at step 8 after \d+ s: 2 epochs are done$"
    assert re.search(end, capsys.readouterr().err, re.MULTILINE)


def test_function_hook_requires_a_function_of_the_firing():
    with pytest.raises(TypeError, match=r"a function of one argument, .*lambda>\(epoch, logs\)"):
        hl.train.FunctionHook(lambda epoch, logs: None, every="epoch")
