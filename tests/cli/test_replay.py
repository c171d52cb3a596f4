"""`hookline replay`: the user's own script becomes a replay of its run."""

from __future__ import annotations

import csv
import io
import runpy
import sys
import textwrap
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.loop.replayed import fingerprint

from hookline.cli import main

SCRIPT = """
    import sys

    import numpy as np

    import hookline as hl

    class Show(hl.train.SessionRunHook):
        trigger, fetches = hl.train.every(3), "state:0"

        def on_trigger(self, firing):
            print("looks at step", firing.global_step, file=sys.stderr)

    if __name__ == "__main__":
        folder, rate = sys.argv[1], float(sys.argv[2])
        print("the script begins")

        def step(w, batch):
            loss = (w - batch).mean()
            return w - rate * loss, {"loss": loss}

        def run(*arguments, **more):
            loop = hl.train.Loop(step, np.zeros(2, "float32"), hl.data.from_arrays(np.arange(60, dtype="float32"), 2))
            loop.run(*arguments, 20, progress=False, checkpoints=hl.train.CheckpointOptions(save_steps=4), **more)

        run(None)
        run(folder)
        print("the script ends")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Returns a script that has trained in the folder `run`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    file = tmp_path / "train_it.py"
    file.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    return file


@pytest.fixture
def trained(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [str(script), "run", "0.1"])
    runpy.run_path(str(script), run_name="__main__")
    capsys.readouterr()
    return script


def replay(*arguments):
    return main(["replay", "run", *arguments])


def test_table_and_proof_are_printed_and_the_script_ends_with_the_replay(trained, capsys):
    before = fingerprint("run")
    assert (
        replay("--steps", "9:15", "--fetch", "loss", "--fetch", "state", "--every", "2", "train_it.py", "run", "0.1")
        == 0
    )
    out, err = capsys.readouterr()
    assert err.startswith("The replay begins at step 8; with the checkpoints of this run it can begin at 4, 8, 12")
    lines = out.splitlines()
    assert lines[0].split() == ["step", "loss", "|state|"]
    assert [line.split()[0] for line in lines[1:4]] == ["10", "12", "14"]
    assert lines[4:] == ["The same bits as the run at step 12."]
    assert ("the script begins" in err, "the script ends" in err) == (True, False)
    assert fingerprint("run") == before


def test_other_bits_have_a_status_of_their_own(trained, capsys):
    assert replay("--steps", "5:13", "train_it.py", "run", "0.2") == 3
    assert (
        "Not the bits of the run: state differs at step 8. The last equal state is that of step 4."
        in capsys.readouterr().out
    )


def test_look_is_a_class_beside_the_script_and_csv_goes_to_a_file(trained, capsys):
    given = ("--steps", "4:12", "--fetch", "loss", "--look", "train_it:Show", "--csv", "out.csv")
    assert replay(*given, "train_it.py", "run", "0.1") == 0
    out, err = capsys.readouterr()
    assert out == "The same bits as the run at step 8 and 12.\n"
    assert [line for line in err.splitlines() if "looks" in line] == [
        "looks at step 6",
        "looks at step 9",
        "looks at step 12",
    ]
    rows = list(csv.DictReader(io.StringIO(Path("out.csv").read_text(encoding="utf-8"))))
    assert [row["step"] for row in rows] == [str(step) for step in range(5, 13)]


def test_metrics_are_shown_by_default_and_events_go_to_a_folder(trained, capsys):
    assert replay("--steps", "9:13", "train_it.py", "run", "0.1") == 0
    header, *rows, proof = capsys.readouterr().out.splitlines()
    assert (header.split(), proof) == (["step", "loss"], "The same bits as the run at step 12.")
    names = ("--fetch", "state", "--fetch", "loss")
    assert replay("--steps", "9:13", "--events", "events", *names, "train_it.py", "run", "0.1") == 0
    assert capsys.readouterr().out == f"{proof}\n"
    events = EventAccumulator("events").Reload()
    assert events.Tags()["scalars"] == ["|state|", "loss"]
    shown = [(each.step, f"{each.value:.5g}") for each in events.Scalars("loss")]
    assert shown == [(int(step), f"{float(loss):.5g}") for step, loss in map(str.split, rows)]


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (
            ["--steps", "4:12", "train_it.py", "other", "0.1"],
            2,
            "trains in 'other', and the replay is for '",
        ),
        (["--steps", "12:4", "train_it.py", "run", "0.1"], 2, "--steps requires two steps, such as 1200:1300"),
        (["--steps", "4:12", "none.py"], 2, "there is no script 'none.py'"),
        (["--steps", "4:12", "--look", "a:B", "--csv", "a.csv", "empty.py"], 2, "--csv writes the values of --fetch"),
        (["--steps", "4:12", "--events", "run/events", "empty.py"], 2, "--events requires a folder outside of the run"),
        (["--steps", "4:12", "--look", "train_it:None_", "train_it.py", "run", "0.1"], 2, "Give module:Class"),
        (["--steps", "4:12", "--fetch", "lose", "train_it.py", "run", "0.1"], 2, "no array called 'lose'"),
        (["--steps", "4:12", "empty.py"], 2, "has trained nothing in '"),
        (["--steps", "4:12", "own_graph.py"], 2, "only the run of a train.Loop or a MonitoredTrainingSession can be"),
    ],
)
def test_mistakes_are_explained_and_leave_the_run_as_it_is(trained, capsys, arguments, status, why, tmp_path):
    (tmp_path / "empty.py").write_text("pass", encoding="utf-8")
    own_graph = "import hookline as hl\nhl.train.ChiefSessionCreator(checkpoint_dir='run')"
    (tmp_path / "own_graph.py").write_text(own_graph, encoding="utf-8")
    before = fingerprint("run")
    assert replay(*arguments) == status
    assert why in capsys.readouterr().err
    assert fingerprint("run") == before
    assert not (tmp_path / "other").exists()


NAN_SCRIPT = """
    import sys

    import jax.numpy as jnp
    import numpy as np

    import hookline as hl

    where = sys.argv[1]
    data = np.ones((60, 2), "float32")
    if where == "batch":
        data[13, 1] = np.inf

    def step(state, batch):
        a = jnp.where((state["n"] == 12) & (where == "state"), jnp.nan, state["a"])
        loss = jnp.where((state["n"] == 13) & (where == "step"), jnp.nan, state["a"] * batch["x"].sum())
        return {"n": state["n"] + 1, "a": a, "large": state["large"]}, {"loss": loss, "large": state["large"]}

    state = {"n": jnp.zeros((), "int32"), "a": jnp.ones(()), "large": jnp.full(4, 1e30)}
    loop = hl.train.Loop(step, state, hl.data.from_arrays({"x": data}, 1))
    saves = hl.train.CheckpointOptions(save_steps=8)
    loop.run("run", 40, progress=False, nan_check=None, checkpoints=saves)
"""


@pytest.mark.parametrize(("where", "found"), [("batch", "|batch/x|, loss"), ("state", "|a|, loss"), ("step", "loss")])
def test_first_value_that_is_not_finite_is_found(tmp_path, monkeypatch, capsys, where, found):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "nan_script.py").write_text(textwrap.dedent(NAN_SCRIPT), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["nan_script.py", where])
    runpy.run_path("nan_script.py", run_name="__main__")
    assert main(["replay", "run", "--steps", "9:20", "--nan", "nan_script.py", where]) == 0
    out = capsys.readouterr().out
    assert f"Step 14 is the first with a value that is not finite: {found}.\n" in out
    assert out.split("\n")[0].split() == ["step", "11", "step", "12", "step", "13", "step", "14"]
    assert main(["replay", "run", "--steps", "8:12", "--nan", "nan_script.py", where]) == 0
    assert "All values are finite up to step 12." in capsys.readouterr().out


def test_nan_is_looked_for_at_each_step(trained, capsys):
    assert main(["replay", "run", "--steps", "4:12", "--nan", "--every", "2", "train_it.py", "run", "0.1"]) == 2
    assert "--nan looks at each step" in capsys.readouterr().err


PROCESSES_SCRIPT = """
    import sys

    import numpy as np

    import hookline as hl

    def train_loop(folder):
        step = lambda w, batch: (w - 0.1 * (w - batch).mean(), {"loss": ((w - batch) ** 2).mean()})
        source = hl.data.from_arrays(np.arange(64, dtype="float32"), 4, shuffle_seed=2, epochs=None)
        saves = hl.train.CheckpointOptions(save_steps=4)
        hl.train.Loop(step, np.float32(0), source).run(folder, 20, progress=False, checkpoints=saves)

    def train_session(folder):
        batch = hl.data.iterator(
            hl.data.from_arrays(np.arange(64, dtype="float32"), 4, shuffle_seed=2, epochs=None), name="batches"
        )
        w = hl.Variable(0.0, name="w")
        loss = hl.op(lambda w, batch: ((w - batch) ** 2).mean(), name="loss")(w, batch)
        with hl.control_dependencies([w.assign(hl.op(lambda w, batch: w - 0.1 * (w - batch).mean())(w, batch)), loss]):
            train_op = hl.train.get_or_create_global_step().assign_add(1)
        hooks = [hl.train.StopAtStepHook(last_step=20), hl.train.NanTensorHook(loss)]
        with hl.train.MonitoredTrainingSession(checkpoint_dir=folder, save_checkpoint_steps=4, hooks=hooks) as sess:
            while not sess.should_stop():
                sess.run(train_op)

    {"loop": train_loop, "session": train_session}[sys.argv[2]](sys.argv[1])
    print("trained")
"""


@pytest.mark.parametrize("kind", ["loop", "session"])
def test_run_of_two_processes_is_replayed_by_two(tmp_path, monkeypatch, capfd, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(textwrap.dedent(PROCESSES_SCRIPT), encoding="utf-8")
    assert main(["launch", "--spmd", "--processes", "2", "script.py", "run", kind]) == 0
    before = fingerprint("run")
    capfd.readouterr()
    assert main(["replay", "run", "--steps", "6:13", "--every", "3", "script.py", "run", kind]) == 0
    out, err = capfd.readouterr()
    header, *rows, proof = out.splitlines()
    assert (header.split(), proof) == (["step", "loss"], "The same bits as the run at step 8 and 12.")
    assert [row.split()[0] for row in rows] == ["9", "12"]
    assert "trained" not in err
    assert main(["replay", "run", "--steps", "6:13", "--fetch", "lose", "script.py", "run", kind]) == 2
    assert "no array called 'lose'" in capfd.readouterr().err
    assert fingerprint("run") == before
