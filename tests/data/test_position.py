"""The position in the data after a restore, a recovery and a restart; and sources without one."""

from __future__ import annotations

import contextlib
import gc
import logging
import queue
import threading
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import RunOptions, errors, train
from hookline.testing import FakeClock
from hookline.train import Saver, list_variables

BATCHES = 30


def plain(start=0):
    return [np.array([i, i * i], np.float32) for i in range(start, BATCHES)]


class WithState:
    """An iterator with a state, as Grain's are: of any type that a checkpoint can hold."""

    def __init__(self, kind=dict, names=("get_state", "set_state")):
        self.next, self.kind = 0, kind
        setattr(self, names[0], self._get)
        setattr(self, names[1], self._set)

    def __iter__(self):
        return self

    def __next__(self):
        if self.next == BATCHES:
            raise StopIteration
        self.next += 1
        return plain()[self.next - 1]

    def _get(self):
        if self.kind is bytes:
            return b"at %d" % self.next
        return {"next": self.next, "none": None, "deep": [{"x": 1.5}]} if self.kind is dict else np.array(self.next)

    def _set(self, state):
        if self.kind is bytes:
            self.next = int(state.split()[1])
        else:
            self.next = state["next"] if self.kind is dict else int(state)


class Loader:
    """An iterable that has the state of the iterator it made last, as torchdata's loader."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < BATCHES:
            self.at += 1
            yield plain()[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


SOURCES = {
    "function": lambda: plain,
    "list": plain,
    "generator function": lambda: lambda: (batch for batch in plain()),
    "arrays": lambda: hl.data.from_arrays(np.arange(60.0), 4, shuffle_seed=5, epochs=2),
    "state in a dict": lambda: lambda: WithState(),
    "state in bytes": lambda: lambda: WithState(bytes),
    "state in an array": lambda: lambda: WithState(np.ndarray),
    "state_dict": lambda: lambda: WithState(dict, ("state_dict", "load_state_dict")),
    "iterator with a state": WithState,
    "loader with a state": Loader,
}


def model(source, **options):
    """A graph in which the order of the batches shows in the last bit of the weight."""
    graph = hl.Graph()
    with graph.as_default():
        step = hl.train.get_or_create_global_step()
        batch = hl.data.iterator(source, **options)
        weight = hl.Variable(1.0, name="weight")
        moved = weight.assign(hl.op(lambda w, x: w * 1.01 + jnp.sum(x))(weight, batch))
        with hl.control_dependencies([moved]):
            train_op = hl.group(step.assign_add(1))
    return graph, train_op, weight, batch


@contextlib.contextmanager
def begun(source, steps=0, **options):
    """A session of a model after its first steps."""
    graph, train_op, weight, batch = model(source, **options)
    with graph.as_default(), hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for _ in range(steps):
            session.run(train_op)
        yield session, train_op, weight, batch


@contextlib.contextmanager
def restored(source, path, **options):
    """A session of a model that goes on where a checkpoint is, and the batch of a run."""
    graph, _, _, batch = model(source, **options)
    with graph.as_default(), hl.Session() as session:
        Saver().restore(session, path)
        yield session, batch


def trained(source, steps=BATCHES, **options):
    """The weight after steps that nothing interrupted."""
    with begun(source, steps, **options) as (session, _, weight, _):
        return float(session.run(weight))


# Part of `make test`: each kind of position that a source seeks to, prefetched or not.
QUICK = {
    ("function", 0),
    ("generator function", 3),
    ("arrays", 0),
    ("arrays", 3),
    ("state in bytes", 3),
    ("state in an array", 0),
    ("state_dict", 3),
    ("iterator with a state", 0),
    ("loader with a state", 3),
}


@pytest.mark.parametrize(
    ("kind", "prefetch"),
    [
        pytest.param(kind, prefetch, marks=() if (kind, prefetch) in QUICK else pytest.mark.campaign)
        for kind in SOURCES
        for prefetch in (0, 3)
    ],
)
def test_restored_session_continues_with_the_next_batch_despite_prefetch(kind, prefetch, tmp_path):
    expected = trained(SOURCES[kind](), prefetch=prefetch)
    graph, train_op, weight, _ = model(SOURCES[kind](), prefetch=prefetch)
    with graph.as_default():
        saver = Saver()
        with hl.Session() as session:
            session.run(hl.global_variables_initializer())
            for _ in range(11):
                session.run(train_op)
            path = saver.save(session, f"{tmp_path}/model.ckpt", 11)
            for _ in range(5):
                session.run(train_op)
        for restarted in (False, True):
            if restarted:  # As in another process: nothing of the graph and the source is left.
                graph, train_op, weight, _ = model(SOURCES[kind](), prefetch=prefetch)
            with graph.as_default(), hl.Session() as session:
                Saver().restore(session, path)
                for _ in range(BATCHES - 11):
                    session.run(train_op)
                assert float(session.run(weight)) == expected


def test_session_that_restores_a_checkpoint_rewinds_its_data(tmp_path):
    with begun(plain) as (session, train_op, _, batch):
        saver = Saver()
        start = saver.save(session, f"{tmp_path}/model.ckpt", 0)
        session.run(train_op)
        second = saver.save(session, f"{tmp_path}/model.ckpt", 1)
        seen = []
        for path in (start, second, start):
            session.run(train_op)
            saver.restore(session, path)
            seen.append(float(session.run(batch)[0]))
        assert seen == [0.0, 1.0, 0.0]


def test_restored_position_is_saved_again_unchanged(tmp_path):
    path = saved(plain, tmp_path, 3)
    with restored(plain, path) as (session, _):
        path = Saver().save(session, f"{tmp_path}/other.ckpt", 3)
    with restored(plain, path) as (session, batch):
        assert float(session.run(batch)[0]) == 3.0


def test_position_is_saved_under_the_iterators_name(tmp_path):
    path = saved(plain, tmp_path, 1, name="digits")
    assert {"digits/count", "digits/crc32c"} <= {name for name, _ in list_variables(path)}


def test_saver_of_some_variables_does_not_change_the_position(tmp_path):
    with begun(plain, 1) as (session, train_op, weight, batch):
        whole = Saver(hl.global_variables()).save(session, f"{tmp_path}/model.ckpt", 1)
        part = Saver([weight]).save(session, f"{tmp_path}/weight.ckpt", 1)
        assert not [name for name, _ in list_variables(part) if name.startswith("iterator")]
        session.run(train_op)
        Saver([weight]).restore(session, whole)
        assert float(session.run(batch)[0]) == 2.0


def test_checkpoint_without_a_position_starts_the_data_again_with_a_warning(tmp_path, caplog):
    path = saved(plain, tmp_path, 1, name="old")
    with caplog.at_level(logging.WARNING), restored(plain, path, name="new") as (session, batch):
        assert float(session.run(batch)[0]) == 0.0
    assert "no position of the iterator 'new'" in caplog.text


def test_iterator_with_resume_false_starts_again_in_each_session(tmp_path):
    graph, train_op, _, batch = model(plain, resume=False)
    with graph.as_default():
        for _ in range(2):
            with hl.Session() as session:
                session.run(hl.global_variables_initializer())
                session.run(train_op)
                path = Saver().save(session, f"{tmp_path}/model.ckpt", 1)
                Saver().restore(session, path)
                assert float(session.run(batch)[0]) == 1.0
        assert not [name for name, _ in list_variables(path) if name.startswith("iterator")]


# Changed data ---------------------------------------------------------------------------------------------------------


def saved(source, path, steps=5, **options):
    with begun(source, steps, **options) as (session, *_):
        return Saver().save(session, f"{path}/model.ckpt", steps)


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (lambda: plain(1), "batch 5 differs from the one"),
        (lambda: plain()[:3], "it ended after 3 batches, and 5 were used"),
        (lambda: WithState(), "another kind of source"),
        (iter, None),
    ],
    ids=["shifted", "shorter", "with a state", "unmade"],
)
def test_source_that_does_not_repeat_is_an_error(later, said, tmp_path):
    error = errors.FailedPreconditionError if said else TypeError
    with restored(later, saved(plain, tmp_path)) as (session, batch), pytest.raises(error, match=said):
        session.run(batch)


def test_state_of_another_kind_of_source_is_refused(tmp_path):
    refused = pytest.raises(errors.FailedPreconditionError, match="another kind of source")
    with restored(plain, saved(WithState, tmp_path)) as (session, batch), refused:
        session.run(batch)


def test_state_refused_by_the_source_fails_the_run_with_its_error(tmp_path):
    path, refused = (
        saved(hl.data.from_arrays(np.arange(60.0), 2), tmp_path),
        pytest.raises(ValueError, match="cannot continue"),
    )
    with restored(hl.data.from_arrays(np.arange(50.0), 2), path) as (session, batch), refused:
        session.run(batch)


def test_state_that_cannot_be_saved_is_refused_at_the_save(tmp_path):
    class Odd(WithState):
        def _get(self):
            return {1: "a number as the key of a dict"}

        def _set(self, state):
            raise AssertionError("nobody has read from it before")

    with pytest.raises(TypeError, match="cannot hold the state of its source"):
        saved(Odd(), tmp_path)


def test_state_that_cannot_be_saved_fails_only_saves_that_include_it(tmp_path):
    class Odd(WithState):
        def _get(self):
            return {1: "not text"}

    with begun(Odd(), 1) as (session, _, weight, batch):
        Saver([weight]).save(session, f"{tmp_path}/part", 1)
        for _ in range(BATCHES - 1):
            session.run(batch)
        with pytest.raises(errors.OutOfRangeError, match="ended after 30 batches"):
            session.run(batch)


# One-shot iterators ---------------------------------------------------------------------------------------------------


def test_plain_iterator_rewinds_to_the_last_checkpoint_in_the_same_process(tmp_path):
    expected = trained(plain)
    graph, train_op, weight, _ = model(iter(plain()))
    with graph.as_default():
        saver, path = Saver(), None
        for at in (0, 4, 4, 9):  # The second recovery finds nothing new saved.
            with hl.Session() as session:
                session.run(hl.global_variables_initializer())
                if path:
                    saver.restore(session, path)
                while int(session.run(train.get_global_step())) < at:
                    session.run(train_op)
                path = saver.save(session, f"{tmp_path}/model.ckpt", at)
                for _ in range(3):
                    session.run(train_op)
        with hl.Session() as session:
            saver.restore(session, path)
            for _ in range(BATCHES - 9):
                session.run(train_op)
            assert float(session.run(weight)) == expected


def test_recovery_beyond_replay_bytes_is_refused(tmp_path):
    with begun(iter(plain()), 1, replay_bytes=3 * 8) as (session, train_op, _, batch):
        path = Saver().save(session, f"{tmp_path}/model.ckpt", 1)
        for _ in range(10):
            session.run(train_op)
        Saver().restore(session, path)
        with pytest.raises(errors.FailedPreconditionError, match=r"cannot go back to batch 1.*replay_bytes"):
            session.run(batch)


def test_batches_before_a_checkpoint_are_freed(tmp_path):
    with begun(iter(plain()), replay_bytes=6 * 8, prefetch=0) as (session, train_op, _, batch):
        for step in range(4, 24, 4):  # Never more than four between two saves, of twenty in all.
            for _ in range(4):
                session.run(train_op)
            path = Saver().save(session, f"{tmp_path}/model.ckpt", step)
            session.run(train_op)
            Saver().restore(session, path)
        assert float(session.run(batch)[0]) == 20.0


def test_save_does_not_wait_for_a_slow_iterator(tmp_path):
    batches, path = queue.Queue(), []
    batches.put(plain()[0])

    def arriving():
        while (batch := batches.get()) is not None:
            yield batch

    with begun(arriving(), 1) as (session, *_):
        save = threading.Thread(target=lambda: path.append(Saver().save(session, f"{tmp_path}/model.ckpt", 1)))
        save.start()
        save.join(20)
        saved = list(path)
        batches.put(None)  # Now the iterator has come to its end.
        save.join()
    assert saved


def test_plain_iterator_starts_again_after_a_restart_with_one_warning(tmp_path, caplog):
    path = saved(iter(plain()), tmp_path)
    graph, train_op, _, batch = model(iter(plain(10)))
    with graph.as_default(), caplog.at_level(logging.WARNING):
        for _ in range(2):
            with hl.Session() as session:
                Saver().restore(session, path)
                assert float(session.run(batch)[0]) == 10.0
                session.run(train_op)
    warnings = [record.message for record in caplog.records if "starts from the beginning" in record.message]
    assert len(warnings) == 1
    assert "Give a function that makes the iterator" in warnings[0]


def test_function_that_returns_an_iterator_resumes_at_the_checkpoint(tmp_path):
    with restored(lambda: iter(plain()), saved(iter(plain()), tmp_path)) as (session, batch):
        assert float(session.run(batch)[0]) == 5.0


def test_source_that_is_read_again_for_long_says_so(tmp_path, caplog):
    path = saved(iter(plain()), tmp_path)
    with FakeClock() as clock, caplog.at_level(logging.INFO, "hookline"):

        def slow():
            for batch in plain():
                clock.advance(2)
                yield batch

        with restored(slow, path) as (session, batch):
            assert float(session.run(batch)[0]) == 5.0
    (said,) = [record for record in caplog.records if "was read again up to batch 5" in record.message]
    assert said.levelname == "WARNING"
    assert "continue at once" in said.message


def test_text_counts_in_replay_bytes(tmp_path, session):
    texts = []

    class Text(str):
        pass

    def source():
        while True:
            text = Text("x" * 1000)
            texts.append(weakref.ref(text))
            yield text

    batch = hl.data.iterator(source(), replay_bytes=5000)
    for _ in range(50):
        session.run(batch)
    assert sum(text() is not None for text in texts) < 15


def test_one_source_serves_one_session_at_a_time():
    for source in (iter(plain()), WithState(), Loader()):
        batch = hl.data.iterator(source, prefetch=0)
        with hl.Session() as first, hl.Session() as second:
            first.run(batch)
            second.run(batch)
            with pytest.raises(errors.FailedPreconditionError, match="another session has begun to read"):
                first.run(batch)


def test_seek_interrupted_by_a_stop_is_repeated_by_the_next_session():
    """A worker's session that is lost during a seek is created again with the same reader."""
    on_the_way, gate = threading.Event(), threading.Event()

    def source():
        for number, batch in enumerate(plain()):
            if number == 2 and way_back:
                on_the_way.set()
                gate.wait(10)
            yield batch

    def following():
        reader.wait()
        reader.raise_error()
        reader.mark_used(item := reader.take())
        return float(item.value[0])

    way_back = []
    node = hl.data.iterator(source).op
    reader = node.open_for(node, True)
    assert [following() for _ in range(5)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    way_back.append(True)
    reader.seek(reader.position().value)
    waiting = threading.Thread(target=reader.wait)
    waiting.start()
    on_the_way.wait(10)
    reader.close()
    gate.set()
    waiting.join()
    for thread in threading.enumerate():
        if thread.name.startswith("hookline-data"):
            thread.join(10)
    assert node.open_for(node, True) is reader
    assert following() == 5.0
    reader.close()


def test_restore_discards_prefetched_batches(tmp_path):
    class Record:
        pass

    records = weakref.WeakSet()

    def source():
        while True:
            yield record()

    def record():
        records.add(made := Record())
        return made

    graph, _, _, _ = model(plain())
    with graph.as_default():
        other = hl.data.iterator(source, prefetch=5, name="records")
        with hl.Session() as session:
            session.run(hl.global_variables_initializer())
            path = Saver().save(session, f"{tmp_path}/model.ckpt", 0)
            for _ in range(10):
                session.run(other)
                Saver().restore(session, path)
            gc.collect()
            assert len(records) < 20


def test_data_restored_after_a_stop_block_nothing(tmp_path):
    class Hook(train.SessionRunHook):
        def after_create_session(self, session, coord):
            self.coord = coord
            self.path = Saver().save(session, f"{tmp_path}/model.ckpt", 0)

        def end(self, session):
            Saver().restore(session, self.path)
            with pytest.raises(errors.OutOfRangeError, match="a stop was requested"):
                session.run(batch)

    graph, train_op, _, batch = model(plain, prefetch=2)
    with graph.as_default(), train.MonitoredTrainingSession(hooks=[hook := Hook()]) as session:
        session.run(train_op)
        hook.coord.request_stop()


def test_sessions_read_a_restartable_source_independently():
    batch = hl.data.iterator(plain)
    with hl.Session() as first, hl.Session() as second:
        seen = [float(session.run(batch)[0]) for session in (first, first, second, first, second)]
    assert seen == [0.0, 1.0, 0.0, 2.0, 1.0]


# Monitored sessions ---------------------------------------------------------------------------------------------------


class FailAt(train.SessionRunHook):
    """Raises once before and once after the runs of certain steps, and once inside a run."""

    def __init__(self, before=(), after=()):
        self.before, self.after = set(before), set(after)

    def before_run(self, run_context):
        self._fail(self.before, run_context)

    def after_run(self, run_context, run_values):
        self._fail(self.after, run_context)

    def _fail(self, steps, run_context):
        step = run_context.session.global_step
        if step in steps:
            steps.remove(step)
            raise errors.AbortedError(None, None, f"lost at {step}")


@pytest.fixture
def quick():
    return train.RecoveryPolicy(max_attempts=100, initial_backoff_secs=0)


@pytest.mark.parametrize(
    "kind",
    [
        "arrays",
        "iterator with a state",
        "one-shot",
        *[pytest.param(kind, marks=pytest.mark.campaign) for kind in ("list", "loader with a state")],
    ],
)
def test_recovery_in_the_process_restores_the_data_automatically(kind, tmp_path, quick):
    sources = {**SOURCES, "one-shot": lambda: iter(plain())}
    expected = trained(sources[kind]())
    graph, train_op, weight, _ = model(sources[kind]())
    with graph.as_default():
        hook = FailAt(before=[3, 4, 17], after=[3, 12, 20, 21])
        creator = train.ChiefSessionCreator(checkpoint_dir=str(tmp_path))
        saver = train.CheckpointSaverHook(str(tmp_path), save_steps=4)
        with train.MonitoredSession(creator, [hook, saver], recovery=quick) as session:
            last = None
            while not session.should_stop():
                last = float(session.run((train_op, weight))[1])
                if session.raw_session().global_step == BATCHES:
                    last = float(session.raw_session().run(weight))
                    break
    assert not hook.before
    assert not hook.after
    assert last == expected


def test_recovery_without_a_checkpoint_restarts_model_and_data(quick):
    expected = trained(plain, 8)
    graph, train_op, weight, _ = model(plain)
    with graph.as_default(), train.MonitoredSession(hooks=[FailAt(after=[5])], recovery=quick) as session:
        for _ in range(4):
            session.run(train_op)
        session.run(train_op)  # The fifth, which is lost and becomes the first.
        for _ in range(7):
            session.run(train_op)
        assert float(session.raw_session().run(weight)) == expected


def test_end_of_the_data_ends_the_training_and_its_threads(tmp_path):
    graph, train_op, _, _ = model(plain)
    with graph.as_default():
        with train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_summaries_steps=0) as session:
            while not session.should_stop():
                session.run(train_op)
        assert train.latest_checkpoint(str(tmp_path)).endswith(f"-{BATCHES}")
        with train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
            with pytest.raises(errors.OutOfRangeError, match=f"after {BATCHES} batches"):
                session.run(train_op)
            raise StopIteration


def test_step_limit_leaves_its_batch_to_the_resumed_job(tmp_path):
    expected = trained(plain)
    for last_step in (7, 8, BATCHES):
        graph, train_op, weight, _ = model(plain)
        with graph.as_default():
            hooks = [train.StopAtStepHook(last_step=last_step)]
            with train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as session:
                while not session.should_stop():
                    session.run(train_op)
                if last_step < BATCHES:
                    session.raw_session().run(train_op, options=RunOptions(last_step=last_step))
                found = float(session.raw_session().run(weight))
    assert found == expected
