"""Several batches at once, as runs of several steps take them: stacked, in portions, and never one too many."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loop.devices import run

import hookline as hl
from hookline import errors
from hookline.data import reader as reading_ahead  # A size from which arrays are large, for small ones.
from hookline.data.from_arrays import ArrayIterator
from hookline.testing import FakeClock
from hookline.train import Coordinator, Saver

LENGTHS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
"""How long the blocks of a reader are, by the capacity that they were asked for."""


@contextlib.contextmanager
def reading(source, shared=False, **options):
    """The reader of one session, as runs use it, and its node."""
    with hl.Graph().as_default():
        node = hl.data.iterator(source, **options).op
        reader = node.open_for(node, shared)
        try:
            yield reader
        finally:
            reader.close()


def await_ready(reader, most, to_come=1):
    reader.wait(most, upcoming_steps=to_come)
    ready = reader.num_ready(most)
    assert 1 <= ready <= most
    reader.raise_error()
    return ready


def taken(reader, most, capacity=None, to_come=1):
    """Takes up to `most` batches, alone or in a block with that capacity; returns the item and its batches."""
    ready = await_ready(reader, most, to_come)
    if capacity is None:
        item = reader.take()
        assert item.count == 1
        return item, [np_tree(item.value)]
    item = reader.take_block(ready, capacity)
    assert item.count == ready
    (length,) = {np.shape(leaf)[0] for leaf in jax.tree.leaves(item.value)}
    assert length >= capacity
    lengths = LENGTHS.setdefault(reader, {})
    assert lengths.setdefault(capacity, length) == length, "a program is compiled for each length"
    rows = range(item.start, item.start + item.count)
    return item, [np_tree(jax.tree.map(lambda leaf, row=row: leaf[row], item.value)) for row in rows]


def used(reader, most, capacity=None):
    item, found = taken(reader, most, capacity)
    reader.mark_used(item)
    return found


def np_tree(tree):
    return jax.tree.map(np.asarray, tree)


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


# Any order of calls ---------------------------------------------------------------------------------------------------


def examples(count):
    return {"x": np.arange(count * 2, dtype=np.float32).reshape(count, 2), "y": np.arange(count)}


def padded(batch, size):
    missing = size - len(batch["y"])
    filled = jax.tree.map(lambda leaf: np.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)), batch)
    return filled, np.arange(size) < len(batch["y"])


SOURCES = ["arrays", "list", "function", "one-shot"]
STEPS = st.tuples(
    st.sampled_from(["use", "use", "use", "give back", "go to"]),
    st.integers(1, 9),  # At most so many batches,
    st.none() | st.integers(0, 3),  # alone, or in a block with so much more capacity,
    st.integers(0, 40),  # and back to the position of so many uses ago;
    st.integers(1, 40) | st.just(math.inf),  # and so many are to come.
)


@settings(deadline=None)
@given(
    kind=st.sampled_from(SOURCES),
    last_batch=st.sampled_from(["keep", "drop", "pad"]),
    prefetch=st.sampled_from([None, 0, 1, 3]),
    count=st.integers(3, 30),
    size=st.integers(1, 7),
    seed=st.none() | st.just(3),
    epochs=st.integers(1, 4),
    broken_at=st.none() | st.integers(1, 20),
    steps=st.lists(STEPS, max_size=20),
)
def test_any_order_of_calls_gives_the_batches_in_order(
    kind, last_batch, prefetch, count, size, seed, epochs, broken_at, steps
):
    arrays = hl.data.from_arrays(examples(count), size, shuffle_seed=seed, epochs=epochs)
    expected = list(arrays)
    if kind == "arrays":
        broken_at = None
    ends_with = ValueError if broken_at is not None and broken_at < len(expected) else errors.OutOfRangeError

    def read():
        for number, batch in enumerate(arrays):
            if number == broken_at:
                raise ValueError("broken")
            yield batch

    source = {"arrays": arrays, "list": list(arrays), "function": read}.get(kind)
    if kind == "list":
        ends_with, broken_at = errors.OutOfRangeError, None
    if kind == "one-shot":
        source = read()
    expected = expected[:broken_at]
    full = len(expected[0]["y"])
    if last_batch == "drop":
        expected = [batch for batch in expected if len(batch["y"]) == full]
    if last_batch == "pad":
        expected = [padded(batch, full) for batch in expected]
    with reading(source, last_batch=last_batch, prefetch=prefetch) as reader:
        at, reached = 0, [(0, reader.position().value)]
        for what, most, more, back, to_come in steps:
            if what == "go to":
                at, position = reached[max(len(reached) - 1 - back, 0)]
                reader.seek(position)
            if at == len(expected):
                with pytest.raises(ends_with):
                    await_ready(reader, most)
                assert reader.has_ended == (ends_with is errors.OutOfRangeError)
                continue
            item, found = taken(reader, most, None if more is None else most + more, to_come)
            assert_found(found, expected[at : at + len(found)])
            if what == "give back":
                reader.give_back(item)
            else:
                reader.mark_used(item)
                at += len(found)
            reached.append((at, reader.position().value))
        position = reader.position().value
        if kind != "one-shot":
            with reading(source, last_batch=last_batch) as other:
                other.seek(position)
                if at < len(expected):
                    assert_found(used(other, 1), expected[at : at + 1])


def assert_found(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_same(tuple(one) if isinstance(one, hl.data.Padded) else one, other)


# Bulk reads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1])
def test_arrays_give_a_block_at_once_across_epochs(seed):
    source = hl.data.from_arrays(examples(12), 3, shuffle_seed=seed, epochs=4)
    block, count = iter(source).read_many(10, 12)
    assert count == 10
    for row, batch in zip(range(count), source, strict=False):
        assert_same(jax.tree.map(lambda leaf, row=row: leaf[row], block), batch)
    assert block["x"].shape == (12, 3, 2)


def test_a_bulk_read_stops_before_a_smaller_batch_and_at_the_end():
    iterator = iter(hl.data.from_arrays(np.arange(7), 3, epochs=2))
    reads = [iterator.read_many(5, 5) for _ in range(4)]
    assert [block[:count].tolist() for block, count in reads] == [[[0, 1, 2], [3, 4, 5]], [[6]]] * 2
    with pytest.raises(StopIteration):
        iterator.read_many(5, 5)


@pytest.mark.parametrize(("to_come", "expected"), [(1, [4, 4, 4]), (10, [10, 4, 4]), (math.inf, [256])])
def test_small_arrays_are_read_at_once_for_all_coming_runs(to_come, expected, monkeypatch):
    reads, read_many = [], ArrayIterator.read_many

    def counted(self, count, capacity):
        block, size = read_many(self, count, capacity)
        reads.append(size)
        return block, size

    monkeypatch.setattr(ArrayIterator, "read_many", counted)
    with reading(hl.data.from_arrays(np.arange(600), 2)) as reader:
        for made in range(0, 20, 4):
            reader.wait(4, 4, to_come - made)
            reader.mark_used(reader.take_block(reader.num_ready(4), 4))
        assert reads[:3] == expected


def test_large_arrays_are_read_for_one_run_at_a_time():
    with reading(hl.data.from_arrays(np.zeros((64, 2**16), np.float32), 2)) as reader:
        reader.wait(4, 4, math.inf)
        assert reader.take_block(reader.num_ready(4), 4).value.shape == (4, 2, 2**16)
        assert not reader.num_ready(4)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_device_gets_small_arrays_in_one_transfer_for_single_step_runs(prefetch, monkeypatch):
    """As on a GPU, where each transfer takes longer than a small step. The device of the test is the processor."""
    puts, put = [], jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda what, *more: (puts.append(what), put(what, *more))[1])
    source = hl.data.from_arrays(examples(101), 3, shuffle_seed=1, epochs=3)
    device = jax.devices()[0]
    with jax.default_device(device), reading(source, prefetch=prefetch) as reader:
        expected = list(hl.data.from_arrays(examples(101), 3, shuffle_seed=1, epochs=3))
        for number, batch in enumerate(expected):
            (item, found), position = taken(reader, 1), reader.position().value
            assert_same(found[0], batch)
            assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(item.value))
            assert position.get("count", 0) == number
            if number == 40:  # It goes back, and on again.
                reader.give_back(item)
                (item, found) = taken(reader, 1)
                assert_same(found[0], batch)
            reader.mark_used(item)
        with pytest.raises(errors.OutOfRangeError):
            await_ready(reader, 1)
    assert len([what for what in puts if isinstance(what, dict)]) == 3 * 2, (
        "for each epoch its whole batches, and the smaller one at its end"
    )


def test_joint_transfer_works_under_a_transfer_guard():
    with jax.default_device(jax.devices()[0]), reading(hl.data.from_arrays(np.arange(400.0), 4), prefetch=0) as reader:
        with jax.transfer_guard_host_to_device("disallow"):
            items = [taken(reader, 1)[0] for _ in range(100)]
        assert [float(item.value[0]) for item in items] == list(range(0, 400, 4))


def test_blocks_are_prefetched_after_single_batches():
    """On one device runs may take single batches first, and blocks later."""
    source = hl.data.from_arrays(np.zeros((10_000, 1), np.float32), 1, epochs=None)
    with jax.default_device(jax.devices()[0]), reading(source, prefetch=2) as reader:
        for _ in range(100):
            used(reader, 1)
        for _ in range(5):
            used(reader, 100, 100)
        ahead = reader._prefetcher
        with ahead._lock:
            assert ahead._has_room() == (len(ahead.items) < 2)


class Numbers:
    """An iterator of a user's own that can give many batches at once."""

    def __init__(self, end=50):
        self.at, self.end, self.reads = 0, end, []

    def __iter__(self):
        return self

    def __next__(self):
        block, _ = self.read_many(1, 1)
        return block[0]

    def read_many(self, count, capacity):
        if self.at == self.end:
            raise StopIteration
        count = min(count, self.end - self.at)
        self.reads.append(count)
        block = np.empty((capacity, 2), np.float64)
        block[:count] = np.arange(self.at, self.at + count)[:, None]
        block[count:] = 1e300  # Anything.
        self.at += count
        return block, count

    def get_state(self):
        return self.at

    def set_state(self, state):
        self.at = state


class KnowingNumbers(Numbers):
    """One that knows its state within a block, too."""

    def state_after(self, state, count):
        return state + count


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("kind", [Numbers, KnowingNumbers])
def test_users_source_is_read_in_bulk_and_restored_within_a_block(kind, prefetch):
    source = kind()
    with reading(lambda: source, prefetch=prefetch, spec=np.zeros(2, np.float32)) as reader:
        assert [batch[0] for batch in used(reader, 20, 20)] == list(range(20))
        assert max(source.reads) == 20
        await_ready(reader, 20)
        reader.mark_used(reader.take_block(5, 20))
        position = reader.position().value
        assert position["count"] == 25
        assert ("skip" in position) == (kind is Numbers)
    other = kind()
    with reading(lambda: other) as reader:
        reader.seek(position)
        assert used(reader, 1)[0].tolist() == [25.0, 25.0]
        assert used(reader, 3, 4)[0].tolist() == [26.0, 26.0]


@pytest.mark.parametrize("answer", [(np.zeros((3, 2)), 3), (np.zeros((4, 2)), 0), (np.zeros((4, 2)), 5)])
def test_bulk_read_of_a_wrong_length_is_an_error(answer):
    class Wrong(Numbers):
        def read_many(self, count, capacity):
            return answer

    with reading(Wrong, spec=np.zeros(2, np.float32)) as reader:
        reader.wait(4)
        with pytest.raises(
            ValueError, match=r"read_many\(4, 4\) of its source, a Wrong, must return arrays of length 4"
        ):
            reader.raise_error()


def test_block_of_wider_dtype_is_cast_and_a_misfit_is_refused():
    with reading(hl.data.from_arrays(np.arange(10, dtype=np.int64), 2)) as reader:
        item, found = taken(reader, 4, 4)
        assert item.value.dtype == np.int32
        assert np.concatenate(found).tolist() == list(range(8))


def test_only_the_misfit_batch_of_a_block_is_an_error():
    with reading(hl.data.from_arrays(np.arange(12, dtype=np.int64) * 2**29, 2)) as reader:
        assert np.concatenate(used(reader, 6, 6)).tolist() == [0, 2**29, 2**30, 2**30 + 2**29]
        with pytest.raises(errors.InvalidArgumentError, match="int32 holds only"):
            await_ready(reader, 6)
        assert reader.position().value["count"] == 2


def test_batches_of_a_block_may_be_used_in_portions_and_given_back():
    with reading(hl.data.from_arrays(np.arange(64), 2)) as reader:
        await_ready(reader, 16)
        first, second = reader.take_block(5, 16), reader.take_block(4, 16)
        assert [(item.start, item.count) for item in (first, second)] == [(0, 5), (5, 4)]
        assert first.value is second.value
        reader.give_back(second)
        reader.give_back(first)
        assert reader.num_ready(16) == 16, "they are in a row again"
        assert np.concatenate(used(reader, 1) + used(reader, 3, 16)).tolist() == list(range(8))
        assert reader.position().value["count"] == 4


@pytest.mark.parametrize("prefetch", [0, 2])
def test_jax_arrays_and_random_keys_are_stacked(prefetch):
    keys = jax.random.split(jax.random.key(0), 6)
    source = [(jnp.full(3, number), keys[number]) for number in range(6)]
    with reading(source, prefetch=prefetch) as reader:
        reader.wait(4)
        item = reader.take_block(reader.num_ready(4), 4)
        assert (item.value[0].shape, item.value[1].shape) == ((4, 3), (4,))
        for row, (numbers, key) in zip(range(item.start, item.start + item.count), source, strict=False):
            assert (item.value[0][row] == numbers).all()
            assert (jax.random.key_data(item.value[1][row]) == jax.random.key_data(key)).all()
        reader.give_back(item)
        assert (jax.random.key_data(reader.take().value[1]) == jax.random.key_data(keys[0])).all()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ([["a", "b"]], "text or objects"),
        ([{"x": np.ones(2), "names": np.array(["a", "b"])}], "text or objects"),
        (list, "not known before the first run"),
        ([np.ones(2)], None),
    ],
)
def test_source_without_blocks_gives_its_reason_and_is_read_batch_by_batch(source, said):
    batch = hl.data.iterator(source)
    why = batch.op.block_error
    assert why is None if said is None else said in why
    reader = batch.op.open_for(batch.op, False)
    reader.wait(8)
    assert reader.num_ready(8) == 1


@pytest.fixture(scope="module")
def on_four_devices(environment):
    return json.loads(run(4, ["-m", "tests.data.blocks_on_mesh"], environment()).stdout)


SPLIT = "P(None, 'data') of 4", "P('data',) of 4"
WHOLE = "P(None,) of 4", "P() of 4"
ONE = "one device of 1", "one device of 1"


@pytest.mark.parametrize(
    ("case", "leaves"),
    [
        ("automatic", [SPLIT] * 2),
        ("automatic_without_a_thread", [SPLIT] * 2),
        ("explicit", [SPLIT] * 2),
        ("a_list", [SPLIT] * 2),
        ("a_tree", [SPLIT, WHOLE]),
        ("padded", [SPLIT] * 3),
        ("a_device", [ONE] * 2),
        ("random_keys", [SPLIT] * 2),
    ],
)
def test_block_is_put_over_a_mesh_with_its_first_dimension_whole(case, leaves, on_four_devices):
    blocks, singles, are_the_same, count = on_four_devices[case]
    assert [blocks, singles] == [[" and ".join(places)] for places in zip(*leaves, strict=True)]
    assert are_the_same
    assert count > 6


# Errors, stops, checkpoints -------------------------------------------------------------------------------------------


class Interrupted:
    """Numbers; a Ctrl-C comes while the fourth is read, once."""

    done = False

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 3 and not Interrupted.done:
            Interrupted.done = True
            raise KeyboardInterrupt
        self.at += 1
        return np.float32(self.at)


@pytest.mark.parametrize("has_state", [True, False])
def test_ctrl_c_in_a_bulk_read_ends_that_run_and_loses_no_batch(has_state):
    class Source(Interrupted):
        if has_state:

            def get_state(self):
                return self.at

            def set_state(self, state):
                self.at = state

    Interrupted.done = False
    with reading(Source, prefetch=0) as reader:
        reader.wait(6)
        assert reader.num_ready(6) == 1
        with pytest.raises(KeyboardInterrupt):
            reader.raise_error()
        found = [float(number) for _ in range(3) for number in used(reader, 2, 6)]
        assert found == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_stop_ends_the_reading_after_the_batches_already_read():
    with reading(lambda: iter(np.ones((100, 2))), prefetch=2) as reader:
        reader.attach_coordinator(coord := Coordinator())
        used(reader, 8, 8)
        coord.request_stop()
        coord.join(stop_grace_period_secs=10)
        with pytest.raises(errors.OutOfRangeError, match="a stop was requested"):
            [used(reader, 8, 8) for _ in range(100)]
        assert reader.position().value["count"] < 100


def test_reader_that_outlives_its_session_continues_within_a_block():
    source = hl.data.from_arrays(np.arange(40), 2)
    with reading(source, shared=True) as reader:
        await_ready(reader, 8)
        reader.mark_used(reader.take_block(3, 8))
        reader.close()
        again = reader._node.open_for(reader._node, True)
        assert again is reader
        assert np.concatenate(used(again, 2, 8)).tolist() == [6, 7, 8, 9]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("seed", [None, 2])
def test_checkpoint_holds_a_position_within_a_block(seed, prefetch, tmp_path):
    source = hl.data.from_arrays(np.arange(30.0), 2, shuffle_seed=seed, epochs=3)
    batch = hl.data.iterator(source, prefetch=prefetch)
    step = hl.train.get_or_create_global_step()
    with hl.Session() as session:
        session.run(step.initializer)
        reader = session.backend.source(batch.op)
        await_ready(reader, 16)
        reader.mark_used(reader.take_block(reader.num_ready(13), 16))
        at = reader.position().value["count"]
        path = Saver().save(session, f"{tmp_path}/model.ckpt", 0)
    with hl.Session() as session:
        Saver().restore(session, path)
        expected = list(source)[at:]
        assert_same(np_tree(session.run(batch)), expected[0])
        reader = session.backend.source(batch.op)
        found: list[float] = []
        with contextlib.suppress(errors.OutOfRangeError):
            while True:
                found += np.concatenate(used(reader, 16, 16)).tolist()
    assert found == np.concatenate(expected[1:]).tolist()


# Threads that read ----------------------------------------------------------------------------------------------------


class Watched:
    """Numbers that take a given time each; the name of each reading thread is recorded."""

    def __init__(self, clock, secs):
        self.clock, self.secs, self.readers = clock, secs, []

    def __call__(self):
        for number in range(200):
            self.readers.append(threading.current_thread().name)
            self.clock.advance(self.secs)
            yield np.float32(number)


@pytest.mark.parametrize(
    ("prefetch", "secs", "reads_ahead"), [(None, 0.01, True), (2, 0.01, True), (2, 0, False), (0, 0.01, False)]
)
def test_single_cpu_prefetches_only_from_a_slow_source(prefetch, secs, reads_ahead, session):
    with FakeClock() as clock:
        source = Watched(clock, secs)
        batch = hl.data.iterator(source, prefetch=prefetch, spec=np.float32(0))
        assert [float(session.run(batch)) for _ in range(200)] == list(range(200))
    assert {name.startswith("hookline-data") for name in source.readers[100:]} == {reads_ahead}


@pytest.mark.parametrize(("prefetch", "has_thread"), [(None, False), (1, True)])
@pytest.mark.parametrize("source", [[np.float32(1)] * 4, hl.data.from_arrays(np.arange(4), 1)], ids=["list", "arrays"])
def test_data_in_memory_has_a_thread_only_on_request(source, prefetch, has_thread, session):
    session.run(hl.data.iterator(source, prefetch=prefetch, name="at_hand"))
    names = [thread.name for thread in threading.enumerate()]
    assert ("hookline-data-at_hand" in names) == has_thread


def test_thread_prefetches_again_when_the_source_becomes_slow(session):
    with FakeClock() as clock:
        source = Watched(clock, 0)
        batch = hl.data.iterator(source, prefetch=2, spec=np.float32(0))
        for number in range(200):
            source.secs = 0.01 if number >= 100 else 0
            assert float(session.run(batch)) == number
    assert not source.readers[90].startswith("hookline-data")
    assert source.readers[190].startswith("hookline-data")


# Results of a run -----------------------------------------------------------------------------------------------------


def test_single_cpu_program_gets_numpy_arrays_and_the_caller_jax_arrays(session):
    batch = hl.data.iterator(hl.data.from_arrays((np.arange(6.0), np.arange(6)), 2))
    (x, y), total = session.run((batch, hl.op(lambda x, y: (x * y).sum())(*batch)))
    assert (x.dtype, y.dtype, float(total)) == (np.float32, np.int32, 1.0)
    assert isinstance(x, jax.Array)
    assert isinstance(session.run(batch[0]), jax.Array)
    kinds = hl.host_op(lambda x: isinstance(x, jax.Array))(batch[0])
    assert session.run(kinds), "a host operation cannot change what the program reads"


def test_session_at_the_end_of_its_data_is_freed():
    def trained():
        with hl.Graph().as_default():
            batch = hl.data.iterator([np.ones(3)] * 3)
            session = hl.Session()
            while True:
                try:
                    session.run(batch)
                except errors.OutOfRangeError:
                    return weakref.ref(session)

    session = trained()
    gc.collect()
    assert session() is None


def test_large_blocks_are_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(reading_ahead, "_LARGE_BYTES", 1000)
    for steps_per_run in (1, 4, 40):
        loop = hl.train.Loop(lambda state, _: (state + 1, {}), 0, [np.ones(10, "f4")] * 50, steps_per_run=steps_per_run)
        loop.run(progress=False)
    (line,) = [line for line in caplog.messages if "a block of 40 batches takes" in line]
    assert "a block of 40 batches takes 0.0 GB" in line
    assert "steps_per_run" in line
