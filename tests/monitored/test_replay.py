"""`train.replay`: the steps of a monitored session are run again by the function that made them, with the same bits."""

from __future__ import annotations

import contextlib
import contextvars
import io
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.loop.replayed import fingerprint
from tests.monitored.replayed_session import KINDS, LAST_STEP, train

import hookline as hl
from hookline.cli import main
from hookline.errors import NotFoundError


class Losses(hl.train.SessionRunHook):
    """Keeps the loss of each step."""

    fetches, trigger = "loss:0", hl.train.every(1)

    def __init__(self):
        self.by_step, self.ended = {}, False

    def on_trigger(self, firing):
        self.by_step[firing.global_step] = float(firing.values)

    def end(self, session):
        self.ended = True


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns a function that returns the folder of a run, and its losses by step."""
    made = {}

    def make(kind):
        if kind not in made:
            losses, folder = Losses(), str(tmp_path_factory.mktemp(kind))
            train(folder, kind, hooks=[losses])
            made[kind] = folder, losses.by_step
        return made[kind]

    return make


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [(23, 45), (0, 12), (50, LAST_STEP)])
def test_replay_has_the_bits_of_the_run_and_changes_nothing_in_its_folder(trained, kind, steps):
    folder, losses = trained(kind)
    before, hook, went_on = fingerprint(folder), Losses(), []
    result = hl.train.replay(
        lambda: train(folder, kind, hooks=[hook], after=lambda: went_on.append(1)),
        folder,
        steps,
        ["loss", "weights/out"],
    )
    assert result.is_same, str(result)
    assert {step: row["loss"] for step, row in result.rows.items()} == pytest.approx(
        {step: losses[step] for step in range(steps[0] + 1, steps[1] + 1)}, rel=1e-5
    )
    assert fingerprint(folder) == before
    assert (hook.ended, went_on) == (False, [])


def test_kill_and_a_restart_make_no_difference(tmp_path):
    command = [sys.executable, "-m", "tests.monitored.replayed_session", str(tmp_path), "iterator", "34"]
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    killed = subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": paths}, check=False)
    assert killed.returncode == -signal.SIGKILL
    train(str(tmp_path), "iterator")
    result = hl.train.replay(lambda: train(str(tmp_path), "iterator"), str(tmp_path), (25, 52))
    assert "The same bits as the run at step 30, 40 and 50." in str(result)
    assert list(result.rows[26]) == ["loss"]  # Without names: what NanTensorHook checks.


def test_replay_may_stop_before_its_last_step_like_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["-c"])  # In a script the message has the command.
    folder = str(tmp_path)
    with pytest.raises(hl.train.NanLossDuringTrainingError) as raised:
        train(folder, "iterator", poisoned=True)
    step = int(re.search(r"at step (\d+)", str(raised.value))[1])
    assert str(raised.value).endswith(
        f"To look at the steps before it: train.replay(FUNCTION, '{folder}', ({step - 10}, {step}), ['norms'])"
    )
    result = hl.train.replay(lambda: train(folder, "iterator", poisoned=True), folder, (step - 8, step + 5), ["norms"])
    assert f"It ended before step {step + 5}: NanLossDuringTrainingError: NanTensorHook found NaN in" in str(result)
    assert result.first_nonfinite() == (step, ["|batches|", "loss"])
    assert result.is_same is not False


def test_another_model_or_rate_is_told(trained):
    folder, _ = trained("iterator")
    assert hl.train.replay(lambda: train(folder, "iterator", rate=0.1), folder, (20, 35)).is_same is False
    with pytest.raises(hl.errors.InvalidArgumentError) as raised:
        hl.train.replay(lambda: train(folder, "iterator", width=7), folder, (20, 35))
    text = str(raised.value)
    assert text.startswith(f"Checkpoint '{folder}/model.ckpt-20' does not fit")
    assert "weights/out has shape (6,) in the checkpoint" in text
    assert text.endswith("The script builds another model than that of the run: give it the arguments of the run.")


def test_wrong_uses_are_told(trained, tmp_path):
    folder, _ = trained("iterator")
    before = fingerprint(folder)

    def replay(function, *look, steps=(20, 25)):
        hl.train.replay(function, folder, steps, look)

    with pytest.raises(ValueError, match="the function has trained nothing in"):
        replay(lambda: None)
    with pytest.raises(ValueError, match=r"trains in '.*other', and the replay is for"):
        replay(lambda: train(str(tmp_path / "other"), "iterator"))
    with pytest.raises(ValueError, match=r"no array called 'lose'. There are: loss, batches, weights/hidden"):
        replay(lambda: train(folder, "iterator"), "lose")
    with pytest.raises(ValueError, match="ChiefSessionCreator opens .* and only the run of a train.Loop or"):
        replay(lambda: hl.train.SingularMonitoredSession(checkpoint_dir=folder))
    with pytest.raises(ValueError, match="its variables on parameter servers"):
        replay(lambda: hl.train.MonitoredTrainingSession(checkpoint_dir=folder, is_chief=False))
    with pytest.raises(NotFoundError, match="has no checkpoint"):
        hl.train.replay(lambda: train(str(tmp_path), "iterator"), str(tmp_path), (20, 25))
    with pytest.raises(TypeError, match="requires a function as train, which is called without arguments, got None"):
        hl.train.replay(None, folder, (20, 25))
    with pytest.raises(ZeroDivisionError):
        replay(lambda: 1 / 0)
    assert fingerprint(folder) == before
    assert not (tmp_path / "other").exists()


def test_function_that_catches_errors_goes_no_further(trained):
    folder, _ = trained("iterator")
    went_on = []

    def catches():
        try:
            train(folder, "iterator")
        except Exception:
            went_on.append(1)

    assert hl.train.replay(catches, folder, (20, 30)).is_same
    assert went_on == []


class Bad(hl.train.SessionRunHook):
    fetches, trigger = "loss:0", hl.train.at_steps(22)

    def on_trigger(self, firing):
        raise ZeroDivisionError("a bad look")


@pytest.mark.parametrize("script", ["plain", "catches", "exits"])
def test_error_of_a_look_is_the_error_of_the_replay(trained, script):
    folder, _ = trained("iterator")

    def run():
        try:
            train(folder, "iterator")
        except ZeroDivisionError:
            if script == "plain":
                raise
            if script == "exits":
                sys.exit("It failed.")

    with pytest.raises(ZeroDivisionError, match="a bad look"):
        hl.train.replay(run, folder, (20, 25), [Bad()])


def test_exit_of_the_script_keeps_the_result(tmp_path):
    folder = str(tmp_path)

    def run():
        try:
            train(folder, "iterator", poisoned=True)
        except hl.train.NanLossDuringTrainingError:
            sys.exit("NaN!")

    with pytest.raises(SystemExit):
        run()
    result = hl.train.replay(run, folder, (36, 50))
    assert result.first_nonfinite() is not None
    assert "It ended before step 50: NanLossDuringTrainingError: " in str(result)
    with pytest.raises(ValueError, match="the function has trained nothing"):
        hl.train.replay(sys.exit, folder, (36, 50))
    with pytest.raises(SystemExit, match="wrong arguments"):
        hl.train.replay(lambda: sys.exit("wrong arguments"), folder, (36, 50))


def test_all_that_the_script_writes_goes_elsewhere(trained):
    folder, _ = trained("iterator")
    before, out = fingerprint(folder), io.StringIO()

    class Extra(hl.train.SessionRunHook):
        trigger = hl.train.every(10)

        def begin(self):
            self.saver = hl.train.Saver()

        def on_trigger(self, firing):
            self.saver.save(firing.context.session, f"{folder}/extra/model", firing.global_step)

    def run():
        with hl.Graph().as_default():
            saving = hl.train.CheckpointSaverHook(f"{folder}/pre", save_steps=1)
            step = hl.train.get_or_create_global_step()
            with hl.train.MonitoredTrainingSession(summary_dir=folder, hooks=[saving]) as sess:
                sess.run(step)
        hl.summary.FileWriterCache.get(folder).flush()
        with hl.summary.FileWriter(folder), contextlib.redirect_stdout(out):
            train(folder, "iterator", hooks=[Extra()])

    streams = sys.stdout, sys.stderr
    thread_result = []
    thread = threading.Thread(
        target=lambda: thread_result.append(hl.train.replay(run, folder, (20, 30), [])), name="trains"
    )
    thread.start()
    thread.join()
    assert thread_result[0].is_same
    assert hl.train.replay(lambda: contextvars.copy_context().run(run), folder, (20, 30)).is_same
    assert fingerprint(folder) == before
    assert (sys.stdout, sys.stderr) == streams
    hl.summary.FileWriterCache.clear()


def test_replay_inside_of_a_replay_is_refused(trained):
    folder, _ = trained("iterator")
    before = fingerprint(folder)

    def run():
        hl.train.replay(lambda: train(folder, "iterator"), folder, (20, 30))

    with pytest.raises(RuntimeError, match="A replay cannot begin inside of a replay"):
        hl.train.replay(run, folder, (20, 30))
    assert fingerprint(folder) == before
    assert hl.train.replay(lambda: train(folder, "iterator"), folder, (20, 30), ["loss:0", "weights/out"]).is_same


def test_steps_that_are_counted_by_two_are_refused(tmp_path):
    def run():
        with hl.Graph().as_default():
            train_op = hl.train.get_or_create_global_step().assign_add(2)
            stop = hl.train.StopAtStepHook(last_step=12)
            with hl.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), save_checkpoint_steps=4, hooks=[stop]
            ) as sess:
                while not sess.should_stop():
                    sess.run(train_op)

    run()
    with pytest.raises(ValueError, match="a global step that each step increments by 1, and .* increments it by 2"):
        hl.train.replay(run, str(tmp_path), (4, 8))


def test_second_training_during_the_replay_is_refused(trained, tmp_path):
    folder, _ = trained("iterator")

    class Nested(hl.train.SessionRunHook):
        trigger = hl.train.at_steps(22)

        def on_trigger(self, firing):
            train(str(tmp_path / "other"), "iterator")

    with pytest.raises(ValueError, match="a second training, in '.*other', begins during the replay"):
        hl.train.replay(lambda: train(folder, "iterator", hooks=[Nested()]), folder, (20, 25))
    assert not (tmp_path / "other").exists()


def test_session_without_a_with_block_is_closed(trained, tmp_path):
    folder = str(tmp_path)
    hook = Losses()

    def run():
        with hl.Graph().as_default():
            hl.constant(1.0, name="loss")
            train_op = hl.train.get_or_create_global_step().assign_add(1)
            stop = hl.train.StopAtStepHook(last_step=12)
            session = hl.train.MonitoredTrainingSession(
                checkpoint_dir=folder, save_checkpoint_steps=5, hooks=[stop, hook]
            )
            while not session.should_stop():
                session.run(train_op)
            session.close()

    run()
    hook.ended = False
    assert hl.train.replay(run, folder, (3, 7)).is_same
    assert not hook.ended
    run()  # The folder and the hooks are free.


def test_command_replays_a_script_with_a_monitored_session(trained, tmp_path, monkeypatch, capsys):
    folder, losses = trained("fed")
    script = tmp_path / "script.py"
    script.write_text("from tests.monitored.replayed_session import main\nimport sys\nmain(*sys.argv[1:])\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    assert main(["replay", folder, "--steps", "30:45", "--every", "5", str(script), folder, "fed"]) == 0
    header, *rows, proof = capsys.readouterr().out.splitlines()
    assert (header.split(), proof) == (["step", "loss"], "The same bits as the run at step 40.")
    found = {int(step): float(loss) for step, loss in map(str.split, rows)}
    assert found == pytest.approx({step: losses[step] for step in (35, 40, 45)}, rel=1e-5)
