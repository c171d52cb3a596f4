"""The passes of a loop over its data: `run(epochs=)`, and a second run without a directory."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl

X = np.arange(8, dtype=np.int32)
LIST = [X[:3], X[3:6], X[6:]]
# Of seed 1, in batches of 3.
SHUFFLED = [[5, 0, 1], [4, 2, 6], [3, 7], [6, 1, 4], [0, 3, 2], [5, 7], [6, 0, 7], [5, 1, 4], [3, 2], [3, 0, 2]]


class Stateful:
    """Batches with a state, as of a Grain loader."""

    def __init__(self):
        self.place = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.place == 3:
            raise StopIteration
        self.place += 1
        return LIST[self.place - 1]

    def __len__(self):
        return 3

    def get_state(self):
        return self.place

    def set_state(self, place):
        self.place = place


def shuffled(**arguments):
    return hl.data.from_arrays(X, 3, shuffle_seed=1, **arguments)


SOURCES = {
    "arrays": (shuffled, SHUFFLED),
    "a function that makes arrays": (lambda: shuffled, SHUFFLED),
    "a list": (lambda: LIST, [batch.tolist() for batch in LIST] * 4),
    "a source with a state": (Stateful, [batch.tolist() for batch in LIST] * 4),
    "a function that makes an iterator": (lambda: lambda: iter(LIST), [batch.tolist() for batch in LIST] * 4),
}


class Watched:
    """A loop, and the batches that its steps have got."""

    def __init__(self, source, steps_per_run=1):
        self._got = []

        def step(state, batch):
            jax.debug.callback(lambda batch: self._got.append(batch.tolist()), batch, ordered=True)
            return {"sum": state["sum"] + batch.sum()}, {}

        self.loop = hl.train.Loop(step, {"sum": jnp.zeros((), jnp.int32)}, source, steps_per_run=steps_per_run)

    def run(self, *arguments, **keywords):
        """Runs the loop, and returns the batches."""
        self._got.clear()
        self.loop.run(*arguments, progress=False, **keywords)
        jax.effects_barrier()
        return list(self._got)


@pytest.mark.parametrize("kind", SOURCES)
def test_run_at_the_end_trains_the_next_epoch_and_one_in_the_middle_finishes_it(kind, caplog):
    caplog.set_level("INFO", "hookline")
    make, order = SOURCES[kind]
    watched = Watched(make())
    assert watched.run() == order[:3]
    assert watched.run() == order[3:6]
    assert watched.run(last_step=6) == []  # It is reached, which starts no pass that counts.
    assert watched.run(last_step=8) == order[6:8]
    assert watched.run() == order[8:9]
    assert watched.run(last_step=10) == order[9:10]  # The previous run had stopped exactly at the end.
    assert "Loop: its data had ended at step 3, and it makes the next pass." in caplog.text


@pytest.mark.parametrize("kind", [kind for kind in SOURCES if "iterator" not in kind])
def test_new_loop_in_a_later_epoch_trains_nothing_unless_more_epochs_are_given(kind, tmp_path):
    make, order = SOURCES[kind]
    for folder, arguments, more in (("a", {}, []), ("b", {"epochs": 1}, []), ("c", {"epochs": 2}, order[4:6])):
        assert Watched(make()).run(str(tmp_path / folder), last_step=4, epochs=3) == order[:4]
        assert Watched(make()).run(str(tmp_path / folder), **arguments) == more


@pytest.mark.parametrize("kind", [kind for kind in SOURCES if "iterator" not in kind])
def test_fewer_epochs_than_are_done_are_told_apart_from_data_that_have_ended(kind, tmp_path, caplog, capsys):
    make, _ = SOURCES[kind]
    Watched(make()).run(str(tmp_path), epochs=3)
    Watched(make()).loop.run(str(tmp_path), epochs=2)
    told = "3 epochs are done already, and epochs=2 is lower"
    assert f"No step was trained: {told}, at global step 9 (restored from " in caplog.text
    assert "). To continue training, raise epochs=2; to start over, use another directory." in caplog.text
    assert re.search(rf"^stopped at step 9 after \d+ s: {told}$", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize("steps_per_run", [1, 4])
@pytest.mark.parametrize("kind", [kind for kind in SOURCES if "iterator" not in kind])
def test_epochs_count_from_step_0_over_restarts(kind, steps_per_run, tmp_path, caplog):
    make, order = SOURCES[kind]

    def run(**arguments):
        return Watched(make(), steps_per_run).run(str(tmp_path), **arguments)

    assert run(epochs=3, last_step=4) == order[:4]
    assert run(epochs=2) == order[4:6]
    assert run(epochs=2) == []
    assert "To continue training, raise epochs=2; to start over, use another directory." in caplog.text
    assert run(epochs=3, last_step=8e0) == order[6:8]
    assert run(epochs=3) == order[8:9]
    assert run() == []


@pytest.mark.parametrize(
    ("source", "resumes", "epochs", "said"),
    [
        (lambda: shuffled(epochs=2), True, 3, "its data have epochs of their own, .*epochs=2.*Leave out one"),
        (lambda: lambda: shuffled(epochs=None), True, 3, "epochs of their own, .*epochs=None"),
        (lambda: lambda: iter(LIST), True, 3, "the number of its batches is not known. Give it, .*num_batches="),
        (lambda: iter(LIST), True, 3, "its batches come from an iterator, which gives each once"),
        (lambda: LIST, False, 3, r"each start reads its data from the beginning \(resume_data=False\)"),
        (lambda: LIST, True, 0, "Loop requires epochs >= 1, got 0"),
    ],
)
def test_epochs_that_cannot_be_counted_are_refused(source, resumes, epochs, said):
    loop = hl.train.Loop(lambda state, batch: (state, {}), {"w": 0}, source(), resume_data=resumes)
    with pytest.raises(ValueError, match=said):
        loop.run(epochs=epochs, progress=False)


def test_epochs_of_a_source_of_unknown_length_count_with_its_length(capsys):
    with hl.Graph().as_default():
        batches = hl.data.iterator(lambda: iter(LIST), num_batches=3)
    assert Watched(batches).run(epochs=2) == [batch.tolist() for batch in LIST] * 2


def test_progress_line_has_the_last_step_of_epochs(capsys):
    hl.train.Loop(lambda state, batch: (state, {}), {"w": 0}, LIST).run(epochs=4)
    assert "step 12/12  100%" in capsys.readouterr().err


def test_epochs_with_another_batch_size_end_at_the_last_example(tmp_path):
    first = Watched(hl.data.from_arrays(X, 2)).run(str(tmp_path), epochs=2, last_step=5)
    then = Watched(hl.data.from_arrays(X, 4)).run(str(tmp_path), epochs=2)
    assert [example for batch in first + then for example in batch] == [*X, *X]
