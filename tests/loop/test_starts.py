"""Each row of the table in docs/loop.md of how `run` starts, and more: `run` does it, and logs it once."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import PIPE

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.python import Python

import hookline as hl

PAGE = Path(__file__).parents[2] / "docs" / "loop.md"
BATCHES = [np.full(2, number, np.float32) for number in range(4)]
MORE = """
| not given | has run | reached | trains nothing | `last_step=4 is reached already` |
| not given | has run | higher, its data ended | trains the next epoch | `the data ended at global step 8` |
| not given | has run, its data an iterator | not given; its data ended | trains nothing | `before the first step` |
| not given | has run, stopped early | higher | trains nothing | `enough. To continue training, pass train_on=True` |
| empty | new, its data an iterator | higher | trains from the given state | `gives each batch only once` |
| empty | new | not given | trains to the end of the data | |
| empty | has run | higher | continues in memory | |
| empty | has run | not given; its data ended | trains nothing | `the data ended before the first step` |
| a checkpoint at the end of the data | new | higher | trains nothing | `the data ended before the first step` |
| a checkpoint at the end of the data | new | not given, with `epochs=1` | trains nothing | `training, raise epochs=1` |
"""  # Rows that the page leaves out.


def step(state, batch):
    return state | {"w": state["w"] + batch.mean()}, {}


_TRAINS = """
import sys
from hookline.checkpoint.directory import lease

lease.acquire_lease(sys.argv[1])
print("has the lease", flush=True)
sys.stdin.read()
"""


class Enough(hl.train.SessionRunHook):
    def __init__(self):
        self.trigger = hl.train.at_steps(4)

    def on_trigger(self, firing):
        firing.context.request_stop(final="enough")


def endless():
    while True:
        yield from BATCHES


def loop(batches=lambda: endless(), **state):
    return hl.train.Loop(step, {"w": jnp.zeros(()), **state}, batches)


def table():
    """Returns the cells of each row."""
    text = PAGE.read_text(encoding="utf-8").partition("## How `run` starts")[2].partition("\n## ")[0]
    lines = [line for line in (text + MORE).splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows[0]) == 5
    return [pytest.param(*row, id="; ".join(row[:3])) for row in rows[2:]]


def broken(folder):
    """Breaks an array of the newest checkpoint."""
    newest = Path(hl.train.latest_checkpoint(folder))
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(b"\0" * largest.stat().st_size)


@pytest.fixture
def run(tmp_path, capsys, caplog, request):
    """Makes the start that a row describes; returns the steps it begins and ends at, its warnings, and its error."""

    def run(directory, which, last_step):
        folder = None if directory == "not given" else str(tmp_path / "logdir")
        at_end = "end of the data" in directory
        if "checkpoint" in directory:
            state = {"v": jnp.zeros(3)} if "another model" in directory else {}
            last, early = (9, [Enough()]) if "early" in directory else (None if at_end else 4, [])
            loop(BATCHES if at_end else lambda: endless(), **state).run(
                folder, last, progress=False, checkpoints=hl.train.CheckpointOptions(save_steps=2), hooks=early
            )
        if "broken" in directory:
            broken(folder)
        if "another process" in directory:
            other = Python("-c", _TRAINS, folder, stdin=PIPE)
            request.addfinalizer(other.communicate)
            assert other.stdout.readline() == "has the lease\n"
        ends = at_end or "data end" in last_step or (last_step == "not given" and "new" in which)
        data = BATCHES if ends else lambda: endless()
        started = loop((iter(data) if ends else endless()) if "an iterator" in which else data)
        if "has run" in which:
            last, early = (9, [Enough()]) if "early" in which else (3 if directory == "a checkpoint" else 4, [])
            started.run(None, None if ends else last, progress=False, hooks=early)
        begun = {}

        class Look(hl.train.SessionRunHook):
            def after_create_session(self, session, coord):
                begun["step"] = session.global_step

        number = {"not": None, "reached": 4, "lower": 3, "higher": 9}[re.match(r"\w+", last_step)[0]]
        more = dict(re.findall(r"with `(\w+)=([^`]+)`", last_step))
        names = {"hl": hl}
        more = {name: eval(value, names) for name, value in more.items()}
        caplog.clear()
        error, saved = "", None if folder is None else hl.train.latest_checkpoint(folder)
        try:
            started.run(folder, number, progress=False, hooks=[Look()], **more)
        except hl.errors.OpError as raised:
            error = str(raised)
            assert hl.train.latest_checkpoint(folder) == saved, "nothing is lost"
        warnings = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
        ended = started._memory.step if started._memory is not None and not error else None
        is_saved = folder is not None and hl.train.latest_checkpoint(folder) == f"{folder}/model.ckpt-{ended}"
        return begun.get("step"), ended, is_saved, warnings, error

    return run


@pytest.mark.parametrize(("directory", "which", "last_step", "does", "says"), table())
def test_start_acts_and_logs_as_its_row_says(directory, which, last_step, does, says, run, failed_reads):
    begun, ended, is_saved, warnings, error = run(directory, which, last_step)
    begins = {
        "trains the next": 4,
        "trains from": 0,
        "continues": 4,
        "resumes": 4,
        "trains to": 0,
        "trains nothing": 4,
        "raises an error": None,
    }
    wanted = next(value for start, value in begins.items() if does.startswith(start))
    assert begun == (2 if does.endswith("checkpoint before") else wanted)
    if does == "raises an error":
        assert (warnings, begun) == ([], None)
        assert says.strip("`") in error
        return
    assert error == ""
    assert ended == (8 if "epoch" in does else 4 if "nothing" in does.partition(",")[0] or "end of the" in does else 9)
    assert is_saved is (directory != "not given" and "saves nothing" not in does)
    assert len(warnings) == bool(says), warnings
    assert says.strip("`") in "".join(warnings)
    if does == "trains nothing":
        advice = "make a new Loop" if directory in ("not given", "empty") else "use another directory"
        assert warnings[0].endswith(f"; to start over, {advice}.")


def test_tuple_for_interleaved_parameters_names_the_dict_form():
    def make_step(model, x, y, opt_state):
        return model, opt_state, {"loss": jax.vmap(lambda x: x * model)(x).mean()}

    with pytest.raises(ValueError, match="vmap") as error:
        hl.train.Loop(make_step, (np.float32(1), np.float32(0)), [(np.ones(4), np.ones(4))])
    assert '{"model": model, "opt_state": opt_state}' in "".join(error.value.__notes__)


def test_unknown_argument_is_refused_by_the_name_of_the_class():
    with pytest.raises(TypeError, match=r"^Loop\(\) got an unexpected keyword argument 'epochs'"):
        hl.train.Loop(lambda state, batch: (state, {}), np.float32(0), [np.ones(4)], epochs=3)
