"""Positions in arrays are numbers of examples: another batch size, blocks or number of runs changes no epoch."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookline as hl
from hookline import errors, train


@contextlib.contextmanager
def reading(source, position=None, **options):
    """The reader of one session, at a position of an earlier one."""
    with hl.Graph().as_default():
        node = hl.data.iterator(source, prefetch=0, **options).op
        reader = node.open_for(node, False)
        try:
            if position is not None:
                reader.seek(position)
            yield reader
        finally:
            reader.close()


def taken(reader, most, to_come=1):
    """Uses up to `most` batches of a run, and returns the examples of each."""
    reader.wait(most, most, to_come)
    ready = reader.num_ready(most)
    reader.raise_error()
    if most == 1:
        reader.mark_used(item := reader.take())
        return [np.asarray(item.value).tolist()]
    reader.mark_used(item := reader.take_block(ready, most))
    return [np.asarray(item.value[row]).tolist() for row in range(item.start, item.start + item.count)]


def to_the_end(reader, most=1):
    found = []
    with contextlib.suppress(errors.OutOfRangeError):
        while True:
            found += taken(reader, most)
    return found


def position_after(count, *arguments, most=1, **options):
    """The position after a number of batches, which are read in blocks."""
    with reading(hl.data.from_arrays(*arguments, **options)) as reader:
        seen = []
        while len(seen) < count:
            seen += taken(reader, min(most, count - len(seen)))
        return reader.position().value, seen


@pytest.mark.parametrize("most", [1, 4, 16])
def test_another_batch_size_continues_at_the_next_example(most):
    position, _ = position_after(37, np.arange(240), 8, epochs=2, most=most)
    with reading(hl.data.from_arrays(np.arange(240), 16, epochs=2), position) as reader:
        found = to_the_end(reader, most)
    assert found[0] == list(range(56, 72))
    assert [len(batch) for batch in found] == [16] * 11 + [8]
    assert list(itertools.chain(*found)) == list(range(56, 240))


PARTS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(0, 9), st.sampled_from([1, 3, 40])),
    min_size=1,
    max_size=4,
)
"""For each session: the batch size, the batches of a run, the runs before it is killed, and those that are to come."""


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 24), seed=st.none() | st.just(3), epochs=st.integers(1, 3), parts=PARTS, in_rows=st.booleans())
def test_each_epoch_has_every_example_once_after_any_change_at_a_resume(n, seed, epochs, parts, in_rows):
    seen, position = [], None
    for number, (size, most, runs, to_come) in enumerate(parts):
        arrays = hl.data.from_arrays(np.arange(n), size, shuffle_seed=seed, epochs=epochs)
        with reading(arrays.iter_lazily if in_rows and number else arrays, position) as reader:
            if number == len(parts) - 1:
                seen += to_the_end(reader, most)
            for _ in range(runs):
                with contextlib.suppress(errors.OutOfRangeError):
                    seen += taken(reader, most, to_come)
            position = reader.position().value
    examples = list(itertools.chain(*seen))
    assert len(examples) == n * epochs
    for epoch in range(epochs):
        assert sorted(examples[epoch * n : (epoch + 1) * n]) == list(range(n))


@pytest.mark.parametrize(
    ("last_batch", "expected"),
    [
        ("keep", [[3, 4, 5, 6], [7, 8], [0, 1, 2, 3], [4, 5, 6, 7], [8]]),
        ("drop", [[3, 4, 5, 6], [0, 1, 2, 3], [4, 5, 6, 7]]),
        ("pad", [[3, 4, 5, 6], [7, 8, 0, 0], [0, 1, 2, 3], [4, 5, 6, 7], [8, 0, 0, 0]]),
    ],
)
@pytest.mark.parametrize("most", [1, 4])
def test_smaller_batch_at_the_end_of_that_epoch_is_a_last_batch(last_batch, expected, most):
    position, _ = position_after(1, np.arange(9), 3)
    with reading(hl.data.from_arrays(np.arange(9), 4, epochs=2), position, last_batch=last_batch) as reader:
        found = []
        with contextlib.suppress(errors.OutOfRangeError):
            while True:
                reader.wait(most, most)
                ready = reader.num_ready(most)
                reader.raise_error()
                reader.mark_used(item := reader.take() if most == 1 else reader.take_block(ready, most))
                value = item.value.batch if last_batch == "pad" else item.value
                rows = [value] if most == 1 else value[item.start : item.start + item.count]
                found += [np.asarray(row).tolist() for row in rows]
    assert found == expected


def test_log_names_both_batch_sizes_and_the_odd_batch(caplog):
    position, _ = position_after(37, np.arange(240), 8, epochs=2, most=4)
    with caplog.at_level(logging.INFO), reading(hl.data.from_arrays(np.arange(240), 16, epochs=2), position) as reader:
        taken(reader, 1)
    assert "batch_size=8" in caplog.text
    assert "example 56 of 240" in caplog.text
    assert "the last batch of this epoch has 8 examples" in caplog.text


def test_more_epochs_continue_and_fewer_are_at_the_end():
    position, _ = position_after(7, np.arange(10), 5, epochs=4)
    with reading(hl.data.from_arrays(np.arange(10), 5, epochs=5), position) as reader:
        assert len(to_the_end(reader)) == 3
    with reading(hl.data.from_arrays(np.arange(10), 5, epochs=3), position) as reader:
        assert to_the_end(reader) == []


# Other values ---------------------------------------------------------------------------------------------------------


def test_changed_values_of_the_same_length_are_logged_once(caplog):
    position, _ = position_after(3, np.arange(100.0), 5)
    cleaned = hl.data.from_arrays(np.arange(100.0) * 2, 5)
    with caplog.at_level(logging.WARNING):
        with reading(cleaned, position) as reader:
            assert taken(reader, 1) == [[30.0, 32.0, 34.0, 36.0, 38.0]]
            reader.seek(position)
            taken(reader, 1)
        with reading(hl.data.from_arrays(np.arange(100.0), 5), position) as reader:
            taken(reader, 1)
    (record,) = caplog.records
    assert "other values" in record.message


def test_a_position_without_a_checksum_is_accepted_silently(caplog):
    position = {
        "count": 1,
        "state": {"json": '{"epoch": 0, "example": 2, "of": {"examples": 6, "shuffle_seed": null}}'},
    }
    with caplog.at_level(logging.WARNING), reading(hl.data.from_arrays(np.arange(6) + 1, 2), position) as reader:
        assert taken(reader, 1) == [[3, 4]]
    assert not caplog.records


def test_checksum_of_huge_examples_samples_few():
    class Huge(np.ndarray):
        """An array that counts the bytes that are read from it, as of a file."""

        read = 0

        def __getitem__(self, index):
            found = super().__getitem__(index)
            Huge.read += np.asarray(found).nbytes
            return found

    huge = hl.data.from_arrays(np.zeros((100, 2**17)), 1)
    huge.tree = huge.tree.view(Huge)
    assert huge.sample_crc32c == hl.data.from_arrays(np.zeros((100, 2**17)), 1).sample_crc32c
    assert 0 < Huge.read <= 2**21


# A loop ---------------------------------------------------------------------------------------------------------------


def counting(state, batch):
    ones = jnp.ones(len(batch), jnp.int32)
    return {"seen": state["seen"].at[batch].add(ones)}, {"loss": jnp.float32(len(batch))}


@pytest.mark.parametrize("steps_per_run", [1, 16])
def test_loop_resumed_with_another_batch_size_trains_each_example_once(steps_per_run, tmp_path):
    for size, last_step in ((8, 37), (16, None)):
        batches = hl.data.from_arrays(np.arange(240), size, shuffle_seed=3, epochs=2)
        loop = train.Loop(counting, {"seen": jnp.zeros(240, jnp.int32)}, batches, steps_per_run=steps_per_run)
        state = loop.run(
            str(tmp_path), last_step=last_step, progress=False, checkpoints=train.CheckpointOptions(save_steps=1000)
        )
    assert collections.Counter(np.asarray(state["seen"]).tolist()) == {2: 240}
