"""An iterator in the runs of one session: values, forms, ends, errors, threads."""

from __future__ import annotations

import collections
import gc
import threading
import traceback
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import RunMetadata, RunOptions, errors
from hookline.train import Coordinator

Point = collections.namedtuple("Point", "x y")


def batches(count=4, size=2):
    return [np.full(size, i, np.float32) for i in range(count)]


def until_the_end(session, fetches):
    """Every value that runs give before the data end."""
    values = []
    while True:
        try:
            values.append(session.run(fetches))
        except errors.OutOfRangeError:
            return values


@pytest.mark.parametrize("prefetch", [0, 1, 2, 7])
@pytest.mark.parametrize(
    "source",
    [
        batches,
        batches(),
        lambda: iter(batches()),
        lambda: (batch for batch in batches()),
        hl.data.from_arrays(np.repeat(np.arange(4.0), 2), 2),
    ],
    ids=["function", "list", "function of an iterator", "generator function", "arrays"],
)
def test_each_run_gets_the_next_batch_until_the_end(source, prefetch, session):
    batch = hl.data.iterator(source, prefetch=prefetch)
    assert [int(value[0]) for value in until_the_end(session, batch)] == [0, 1, 2, 3]
    with pytest.raises(errors.OutOfRangeError, match="have ended after 4 batches"):
        session.run(batch)


def test_plain_iterator_is_read_once(session):
    batch = hl.data.iterator(iter(batches()))
    assert len(until_the_end(session, batch)) == 4


@pytest.mark.parametrize("prefetch", [0, 2])
def test_empty_source_is_at_its_end_at_once(prefetch):
    batch = hl.data.iterator(list, prefetch=prefetch)
    with hl.Session() as session, pytest.raises(errors.OutOfRangeError, match="after 0 batches"):
        session.run(batch)


@pytest.mark.parametrize(
    "example",
    [
        {"image": np.ones((2, 3)), "label": [np.zeros(2, np.int32)]},
        (np.ones(2), np.zeros(2, bool)),
        Point(np.ones(2), np.zeros((2, 1))),
        3.5,
        np.float32(2),
        {"a": None, "b": np.ones(1, np.uint8)},
        jnp.ones((2, 2), jnp.bfloat16),
    ],
)
def test_batches_may_be_any_pytree(example, session):
    batch = hl.data.iterator([example, example])
    value = session.run(batch)
    assert jax.tree.structure(value) == jax.tree.structure(example) == jax.tree.structure(batch.spec)
    for got, given in zip(jax.tree.leaves(value), jax.tree.leaves(example), strict=True):
        assert isinstance(got, jax.Array)
        np.testing.assert_array_equal(got, given)


def test_parts_of_a_batch_are_views_with_jax_dtypes(session):
    x, y = hl.data.iterator([(np.ones((2, 3)), np.arange(2))])
    assert (x.shape, x.dtype, y.dtype) == ((None, 3), np.float32, np.int32)
    assert session.run(x.shape[1] * y)[1] == 3


def test_text_stays_on_the_host(session):
    text = hl.data.iterator([["a", "b"], ["c", "d"]])
    joined = hl.host_op("".join)(text)
    with pytest.raises(TypeError, match="host_op"):
        hl.op(jnp.sum)(text)
    assert [session.run(joined), session.run(joined)] == ["ab", "cd"]


def test_arrays_of_text_may_be_beside_arrays_of_numbers(session):
    batch = hl.data.iterator(hl.data.from_arrays((np.arange(3), np.array(["a", "b", "c"])), batch_size=2))
    numbers, text = session.run(batch)
    assert numbers.tolist() == [0, 1]
    assert text.tolist() == ["a", "b"]


def test_host_operation_may_process_a_batch_before_the_device(session):
    text = hl.data.iterator([["1", "2"], ["3"]])
    numbers = hl.host_op(lambda lines: np.array(lines, np.float32), spec=None)(text)
    total = hl.op(jnp.sum)(numbers)
    assert [float(value) for value in until_the_end(session, total)] == [3.0, 3.0]


def test_readers_in_one_run_get_the_same_batch_and_other_runs_none(session):
    batch = hl.data.iterator(batches())
    other = hl.constant(1.0) + 1
    first, again = session.run((batch, batch * 1))
    session.run(other)
    assert float(first[0]) == float(again[0]) == 0.0
    assert float(session.run(batch)[0]) == 1.0


def test_fed_batch_takes_nothing_from_the_source(session):
    batch = hl.data.iterator(batches())
    assert float(session.run(batch * 2, {batch: np.full(2, 9.0)})[0]) == 18.0
    assert float(session.run(batch)[0]) == 0.0


def test_first_batch_is_read_for_its_spec_and_not_lost(session):
    made = []

    def source():
        made.append(1)
        yield from batches()

    batch = hl.data.iterator(source)
    assert batch.shape == (None,)
    assert float(session.run(batch)[0]) == 0.0
    assert made == [1], "the source is begun once for both"


def test_given_spec_reads_nothing_before_the_first_run():
    def source():
        raise AssertionError("read too early")

    batch = hl.data.iterator(source, spec=jax.ShapeDtypeStruct((2,), np.float32))
    assert batch.shape == (None,)


def test_generator_may_reuse_its_array(session):
    def source():
        buffer = np.zeros(2, np.float32)
        for i in range(5):
            buffer[:] = i
            yield buffer

    batch = hl.data.iterator(source, prefetch=3)
    assert [value.tolist() for value in until_the_end(session, batch)] == [[i, i] for i in range(5)]


# Batches that are not like the first ----------------------------------------------------------------------------------


def uneven(last_batch):
    return hl.data.iterator(hl.data.from_arrays({"x": np.arange(1.0, 6.0)}, batch_size=2), last_batch=last_batch)


@pytest.mark.parametrize(
    ("last_batch", "length", "totals", "programs"), [("keep", None, [3, 7, 5], 2), ("drop", 2, [3, 7], 1)]
)
def test_smaller_batch_is_kept_and_compiled_or_dropped(last_batch, length, totals, programs, caplog):
    batch = uneven(last_batch)
    assert batch["x"].shape == (length,)
    total = hl.op(jnp.sum)(batch["x"])
    with hl.Session() as session, caplog.at_level("INFO", "hookline"):
        assert [float(value) for value in until_the_end(session, total)] == totals
    assert sum("Compiling" in record.message for record in caplog.records) == programs


def test_smaller_batch_is_padded_with_a_mask(caplog):
    batch, mask = uneven("pad")
    assert (batch["x"].shape, mask.shape, mask.dtype) == ((2,), (2,), bool)
    total = hl.op(lambda x, mask: jnp.where(mask, x, 100.0))(batch["x"], mask)
    with hl.Session() as session, caplog.at_level("INFO", "hookline"):
        assert [value.tolist() for value in until_the_end(session, total)] == [[1, 2], [3, 4], [5, 100]]
    assert sum("Compiling" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (np.ones((2, 4)), r"has shape \(2, 4\)"),
        ({"x": np.ones((2, 3))}, "has the structure"),
        (np.ones((2, 3), complex), "complex128"),
        (np.full((2, 3), 1e300), "cannot hold"),
        (np.array([["a"] * 3] * 2), "holds text"),
    ],
)
def test_batch_of_another_structure_fails_its_run(second, said, session):
    batch = hl.data.iterator([np.ones((2, 3), np.float32), second], name="images")
    session.run(batch)
    with pytest.raises(errors.InvalidArgumentError, match=f"images.*{said}"):
        session.run(batch)


@pytest.mark.parametrize("last_batch", ["drop", "pad"])
def test_larger_batch_is_an_error_with_fixed_shapes(last_batch, session):
    batch = hl.data.iterator([np.ones(2), np.ones(3)], last_batch=last_batch)
    session.run(batch)
    with pytest.raises(errors.InvalidArgumentError, match="has shape"):
        session.run(batch)


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
def test_a_batch_whose_arrays_have_different_lengths_is_an_error(last_batch, session):
    wrong = {"x": np.ones(3), "y": np.ones(2)}
    batch = hl.data.iterator([{"x": np.ones(4), "y": np.ones(4)}, wrong], last_batch=last_batch)
    session.run(batch)
    with pytest.raises(errors.InvalidArgumentError, match=r"different lengths, \[2, 3\]"):
        session.run(batch)


@pytest.mark.parametrize("names", [list("ab"), np.array(list("ab"))])
def test_a_smaller_batch_with_text_is_dropped(names, session):
    full, short = {"x": np.ones(2), "names": names}, {"x": np.ones(1), "names": names[:1]}
    batch = hl.data.iterator([full, short, full], last_batch="drop")
    assert [len(session.run(batch)["x"]) for _ in range(2)] == [2, 2]
    with pytest.raises(errors.OutOfRangeError):
        session.run(batch)


def test_unsupported_options_for_text_are_refused():
    with pytest.raises(errors.InvalidArgumentError, match="'drop' requires batches whose arrays"):
        hl.data.iterator([list("ab"), list("c")], last_batch="drop")
    with pytest.raises(errors.InvalidArgumentError, match="'pad' requires batches of numbers"):
        hl.data.iterator([np.array(list("ab"))], last_batch="pad")


def test_padding_needs_a_number_of_examples():
    with pytest.raises(errors.InvalidArgumentError, match="number of examples"):
        hl.data.iterator([(np.ones(2), np.ones(3))], last_batch="pad")


# Errors and ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_source_error_is_raised_in_the_run_of_its_batch(prefetch, session):
    def broken_source():
        yield from batches(2)
        raise ValueError("record 7 is bad")

    batch = hl.data.iterator(broken_source, prefetch=prefetch)
    assert [float(session.run(batch)[0]) for _ in range(2)] == [0.0, 1.0]
    for _ in range(3):
        with pytest.raises(ValueError, match="record 7 is bad") as caught:
            session.run(batch)
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert frames.count("broken_source") == 1
        assert any("Iterator 'iterator'" in note for note in caught.value.__notes__)


class Interrupted:
    """Numbers; the first request for the third one raises a Ctrl-C."""

    def __init__(self):
        self.at, self.done = 0, False

    def __iter__(self):
        while True:
            self.at += 1
            if self.at == 3 and not self.done:
                self.done = True
                raise KeyboardInterrupt
            yield np.float32(self.at)

    def get_state(self):
        return self.at

    def set_state(self, state):
        self.at = state


def remade():
    source = Interrupted()

    def make():
        source.at = 0
        return iter(source)

    return make


@pytest.mark.parametrize("source", [Interrupted, remade])
def test_ctrl_c_in_the_source_ends_one_run_and_the_next_gets_the_batch(source, session):
    batch = hl.data.iterator(source(), prefetch=0)
    assert [session.run(batch) for _ in range(2)] == [1.0, 2.0]
    with pytest.raises(KeyboardInterrupt):
        session.run(batch)
    assert [session.run(batch) for _ in range(3)] == [3.0, 4.0, 5.0]


def test_iterator_ended_by_ctrl_c_is_not_at_its_end(session):
    batch = hl.data.iterator(iter(Interrupted()), prefetch=0)
    assert [session.run(batch) for _ in range(2)] == [1.0, 2.0]
    with pytest.raises(KeyboardInterrupt):
        session.run(batch)
    for _ in range(2):
        with pytest.raises(errors.FailedPreconditionError, match="Give a function that makes the iterator"):
            session.run(batch)


def test_error_at_the_first_batch_is_raised_in_the_first_run(caplog):
    def source():
        raise OSError("no such disk")
        yield

    with caplog.at_level("WARNING"):
        batch = hl.data.iterator(source)
    assert "The first run that needs a batch raises: OSError: no such disk" in caplog.text
    with hl.Session() as session, pytest.raises(OSError, match="no such disk"):
        session.run(batch)
    with pytest.raises(OSError, match="no such disk"):  # It cannot know that its arrays have a length in common.
        hl.data.iterator(source, last_batch="pad")


def test_failed_run_leaves_its_batch_to_the_next(session):
    batch = hl.data.iterator(batches())
    failures = [RuntimeError("not now"), None, None]

    def check(value):
        failure = failures.pop(0)
        if failure:
            raise failure
        return value

    early = hl.host_op(check)(batch)
    with pytest.raises(RuntimeError, match="not now"):
        session.run(early)
    assert [float(session.run(early)[0]) for _ in range(2)] == [0.0, 1.0]


def test_run_that_failed_after_its_device_program_has_used_its_batch(session):
    batch = hl.data.iterator(batches())
    total = hl.Variable(0.0, name="total")
    added = total.assign_add(hl.op(jnp.sum)(batch))
    late = hl.host_op(lambda value: 1 / 0)(added)
    session.run(total.initializer)
    with pytest.raises(ZeroDivisionError):
        session.run(late)
    session.run(added)
    assert float(session.run(total)) == 2.0, "batches 0 and 1, each once"


def test_run_interrupted_after_its_update_has_used_its_batch(monkeypatch, session):
    def interrupt(_):
        raise KeyboardInterrupt

    batch = hl.data.iterator(batches(3))
    total = hl.Variable(0.0)
    add = total.assign_add(batch[0] + 1)
    session.run(hl.global_variables_initializer())
    monkeypatch.setattr("jax.block_until_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.run(add, options=RunOptions(trace_level=1), run_metadata=RunMetadata())
    assert session.run(total) == 1.0
    assert session.run(batch)[0] == 1.0


def test_run_beyond_the_last_step_leaves_its_batch(session):
    step = hl.train.get_or_create_global_step()
    batch = hl.data.iterator(batches())
    train = hl.group(step.assign_add(1))
    session.run(hl.global_variables_initializer())
    seen = [float(session.run((batch, train), options=RunOptions(last_step=2))[0][0]) for _ in range(4)]
    assert seen == [0.0, 1.0, 2.0, 2.0]
    assert session.backend.values_with_positions([], ["iterator"])[1]["iterator"].value["count"] == 2


def test_run_of_two_iterators_uses_no_batch_if_one_is_at_its_end(session):
    short, long = hl.data.iterator(batches(1), name="short"), hl.data.iterator(batches(3), name="long")
    session.run((short, long))
    with pytest.raises(errors.OutOfRangeError, match="short"):
        session.run((long, short))
    assert float(session.run(long)[0]) == 1.0


def test_nested_run_gets_its_own_batch(session):
    batch = hl.data.iterator(batches())
    step = hl.train.get_or_create_global_step()
    inner = []
    nested = hl.host_op(lambda step, outer: inner.append(float(session.run(batch)[0])) or outer)(step, batch)
    session.run(step.initializer)
    assert float(session.run(nested)[0]) == 0.0
    assert inner == [1.0]
    assert float(session.run(batch)[0]) == 2.0
    assert session.backend.values_with_positions([], ["iterator"])[1]["iterator"].value["count"] == 3


# Threads --------------------------------------------------------------------------------------------------------------


def test_prefetch_is_bounded_by_the_argument(session):
    read, third = [], threading.Event()

    def source():
        for i in range(10):
            read.append(i)
            if i == 2:
                third.set()
            yield np.float32(i)

    batch = hl.data.iterator(source, prefetch=2)
    session.run(batch)
    assert third.wait(10)
    threading.Event().wait(0.02)
    assert read == [0, 1, 2]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_threads_get_each_batch_once_without_entering_the_source_together(prefetch, session):
    inside = threading.Lock()

    class Source:
        def __iter__(self):
            self.count = 0
            return self

        def __next__(self):
            assert inside.acquire(blocking=False), "two readers at once"
            try:
                self.count += 1
                if self.count > 200:
                    raise StopIteration
                return np.int32(self.count)
            finally:
                inside.release()

    source = Source()
    batch = hl.data.iterator(lambda: iter(source), prefetch=prefetch)
    total = hl.Variable(0, name="total")
    add = total.assign_add(batch)
    seen = []

    def work():
        try:
            while True:
                seen.append(int(session.run((batch, add))[0]))
        except errors.OutOfRangeError:
            pass

    session.run(total.initializer)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 201))
    assert int(session.run(total)) == sum(range(1, 201))


def test_wait_for_data_holds_no_lock(session):
    gate = threading.Event()

    def source():
        yield np.float32(0)
        gate.wait(10)
        yield np.float32(1)

    batch = hl.data.iterator(source, prefetch=1)
    session.run(batch)
    waiting = threading.Thread(target=session.run, args=(batch,))
    waiting.start()
    threading.Event().wait(0.01)
    assert session.run(hl.constant(1)) == 1
    session.snapshot([])
    gate.set()
    waiting.join()


def test_closing_the_session_wakes_a_run_that_waits_for_data():
    gate, outcome = threading.Event(), []

    def source():
        yield np.float32(0)
        gate.wait(10)

    def wait():
        try:
            session.run(batch)
        except RuntimeError as error:
            outcome.append(str(error))

    batch = hl.data.iterator(source, prefetch=1)
    session = hl.Session()
    session.run(batch)
    waiting = threading.Thread(target=wait)
    waiting.start()
    threading.Event().wait(0.01)
    session.close()
    waiting.join(5)
    gate.set()
    assert outcome == ["Attempted to use a closed Session."]


def test_coordinator_registers_the_thread_and_stops_it(session):
    def endless():
        while True:
            yield np.float32(0)

    batch = hl.data.iterator(endless, prefetch=2)
    coord = Coordinator()
    session.backend.attach_coordinator(coord)
    session.run(batch)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "hookline-data-iterator"]
    coord.request_stop()
    coord.join(stop_grace_period_secs=10)
    assert not thread.is_alive()
    with pytest.raises(errors.OutOfRangeError, match="stop was requested"):
        [session.run(batch) for _ in range(3)]  # Two were read ahead at most.


def test_stop_wakes_a_run_that_waits_for_data(session):
    gate, waiting = threading.Event(), threading.Event()

    def source():
        yield np.float32(0)
        waiting.set()
        gate.wait(10)

    batch = hl.data.iterator(source, prefetch=1)
    coord = Coordinator()
    session.backend.attach_coordinator(coord)
    session.run(batch)
    stopping = threading.Thread(target=lambda: (waiting.wait(10), coord.request_stop()))
    stopping.start()
    with pytest.raises(errors.OutOfRangeError, match="stop was requested"):
        session.run(batch)
    stopping.join()
    gate.set()


def test_garbage_collected_session_ends_its_thread_and_frees_its_batches():
    def endless():
        while True:
            yield np.zeros(1000, np.float32)

    batch = hl.data.iterator(endless, prefetch=2)
    session = hl.Session()
    session.run(batch)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "hookline-data-iterator"]
    gone = weakref.ref(session)
    del session
    gc.collect()
    thread.join(10)
    assert gone() is None
    assert not thread.is_alive()


def test_used_batch_is_freed(session):
    batch = hl.data.iterator(lambda: batches(6), prefetch=1)
    values = [weakref.ref(session.run(batch)) for _ in range(4)]
    gc.collect()
    assert [value() is None for value in values[:-1]] == [True] * 3


# Arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"source": 3}, TypeError, "requires a function that makes an iterable"),
        ({"source": {"x": np.ones(3)}}, TypeError, r"got {'x': float64.*hookline.data.from_arrays"),
        ({"source": np.ones(3)}, TypeError, r"got float64\[3\]\. .*hookline.data.from_arrays"),
        ({"source": [1.0], "prefetch": -1}, ValueError, "prefetch"),
        ({"source": [1.0], "prefetch": 1.5}, TypeError, "prefetch"),
        ({"source": [1.0], "last_batch": "cut"}, ValueError, "keep, drop, pad"),
        ({"source": [1.0], "replay_bytes": "1"}, TypeError, "replay_bytes"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(arguments, kind, said):
    with pytest.raises(kind, match=said):
        hl.data.iterator(**arguments)


def test_arrays_beside_text_get_the_sharding(session):
    rows = jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P("data"))
    source = [{"x": np.ones((2, 3)), "text": np.array(["a", "b"])}]
    batch = hl.data.iterator(source, sharding=rows)
    x, text = session.run((batch["x"], batch["text"]))
    assert x.sharding == rows
    assert text.tolist() == ["a", "b"]


def test_device_is_a_sharding_under_both_names(session):
    (device,) = jax.devices()[:1]
    one, other = (hl.data.iterator([np.ones(2)], **{name: device}) for name in ("sharding", "device"))
    assert all(array.committed and array.devices() == {device} for array in session.run((one, other)))


def test_finalized_graph_refuses_an_iterator_before_reading():
    hl.get_default_graph().finalize()
    read = []
    with pytest.raises(RuntimeError, match="finalized"):
        hl.data.iterator(lambda: read.append(1))
    assert read == []


def test_control_dependencies_do_not_delay_a_batch(session):
    step = hl.train.get_or_create_global_step()
    with hl.control_dependencies([step.assign_add(1)]):
        batch = hl.data.iterator(batches())
    session.run(step.initializer)
    session.run(batch)
    assert session.run(step) == 0


def test_spec_with_open_lengths_takes_batches_of_any_length(session):
    open_spec = hl.extend.specs.array_spec("float32", (None, None))
    batch = hl.data.iterator(lambda: iter([np.ones((2, 3)), np.ones((5, 1))]), spec=open_spec)

    assert batch.shape == (None, None)
    assert [session.run(batch).shape for _ in range(2)] == [(2, 3), (5, 1)]
