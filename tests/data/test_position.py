"""Where data go on: after a restore, a recovery, a restart; and what happens to sources that cannot."""

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


# What `make test` has: each kind of place that a source goes back to, read ahead or not.
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
def test_a_restored_session_goes_on_with_the_next_batch_whatever_was_read_ahead(kind, prefetch, tmp_path):
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


def test_a_session_goes_back_when_it_restores_itself(tmp_path):
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


def test_a_position_that_was_restored_and_not_moved_is_saved_again(tmp_path):
    path = saved(plain, tmp_path, 3)
    with restored(plain, path) as (session, _):
        path = Saver().save(session, f"{tmp_path}/other.ckpt", 3)
    with restored(plain, path) as (session, batch):
        assert float(session.run(batch)[0]) == 3.0


def test_the_position_stands_in_the_checkpoint_under_the_name_of_the_iterator(tmp_path):
    path = saved(plain, tmp_path, 1, name="digits")
    assert {"digits/count", "digits/crc32c"} <= {name for name, _ in list_variables(path)}


def test_a_saver_of_some_variables_leaves_the_data_alone(tmp_path):
    with begun(plain, 1) as (session, train_op, weight, batch):
        whole = Saver(hl.global_variables()).save(session, f"{tmp_path}/model.ckpt", 1)
        part = Saver([weight]).save(session, f"{tmp_path}/weight.ckpt", 1)
        assert not [name for name, _ in list_variables(part) if name.startswith("iterator")]
        session.run(train_op)
        Saver([weight]).restore(session, whole)
        assert float(session.run(batch)[0]) == 2.0


def test_a_checkpoint_without_a_position_begins_the_data_anew_and_says_so(tmp_path, caplog):
    path = saved(plain, tmp_path, 1, name="old")
    with caplog.at_level(logging.WARNING), restored(plain, path, name="new") as (session, batch):
        assert float(session.run(batch)[0]) == 0.0
    assert "no position of the iterator 'new'" in caplog.text


def test_an_iterator_that_does_not_resume_begins_anew_in_each_session(tmp_path):
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


# Data that are not what they were -------------------------------------------------------------------------------------


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
def test_data_that_are_not_repeatable_are_an_error_that_says_so(later, said, tmp_path):
    error = errors.FailedPreconditionError if said else TypeError
    with restored(later, saved(plain, tmp_path)) as (session, batch), pytest.raises(error, match=said):
        session.run(batch)


def test_a_state_is_not_taken_for_a_place_of_another_source(tmp_path):
    refused = pytest.raises(errors.FailedPreconditionError, match="another kind of source")
    with restored(plain, saved(WithState, tmp_path)) as (session, batch), refused:
        session.run(batch)


def test_a_state_that_the_source_refuses_fails_the_run_with_its_own_error(tmp_path):
    path, refused = (
        saved(hl.data.from_arrays(np.arange(60.0), 2), tmp_path),
        pytest.raises(ValueError, match="cannot continue"),
    )
    with restored(hl.data.from_arrays(np.arange(50.0), 2), path) as (session, batch), refused:
        session.run(batch)


def test_a_state_that_no_checkpoint_can_hold_is_refused_when_it_is_saved(tmp_path):
    class Odd(WithState):
        def _get(self):
            return {1: "a number as the key of a dict"}

        def _set(self, state):
            raise AssertionError("nobody has read from it before")

    with pytest.raises(TypeError, match="cannot hold the state of its source"):
        saved(Odd(), tmp_path)


def test_a_state_that_no_checkpoint_can_hold_matters_only_where_it_is_saved(tmp_path):
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


def test_a_one_shot_iterator_goes_back_to_the_last_checkpoint_in_the_same_process(tmp_path):
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


def test_beyond_the_bound_a_recovery_is_refused(tmp_path):
    with begun(iter(plain()), 1, replay_bytes=3 * 8) as (session, train_op, _, batch):
        path = Saver().save(session, f"{tmp_path}/model.ckpt", 1)
        for _ in range(10):
            session.run(train_op)
        Saver().restore(session, path)
        with pytest.raises(errors.FailedPreconditionError, match=r"cannot go back to batch 1.*replay_bytes"):
            session.run(batch)


def test_what_a_checkpoint_holds_is_let_go(tmp_path):
    with begun(iter(plain()), replay_bytes=6 * 8, prefetch=0) as (session, train_op, _, batch):
        for step in range(4, 24, 4):  # Never more than four between two saves, of twenty in all.
            for _ in range(4):
                session.run(train_op)
            path = Saver().save(session, f"{tmp_path}/model.ckpt", step)
            session.run(train_op)
            Saver().restore(session, path)
        assert float(session.run(batch)[0]) == 20.0


def test_a_save_does_not_wait_for_an_iterator_that_has_nothing_yet(tmp_path):
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


def test_after_a_restart_a_one_shot_iterator_begins_anew_and_names_the_remedy_once(tmp_path, caplog):
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


def test_who_follows_that_advice_goes_on_where_the_checkpoint_is(tmp_path):
    with restored(lambda: iter(plain()), saved(iter(plain()), tmp_path)) as (session, batch):
        assert float(session.run(batch)[0]) == 5.0


def test_text_counts_among_the_bytes_that_are_kept(tmp_path, session):
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


def test_a_way_that_a_stop_breaks_off_is_begun_again_by_whoever_goes_on():
    """A worker's session that is lost while its data are read again is made anew, with the reader that there was."""
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


def test_a_restore_lets_go_of_what_was_read_ahead(tmp_path):
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


def test_data_that_are_restored_after_a_stop_hold_nobody_up(tmp_path):
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


def test_sessions_have_ways_of_their_own_through_a_source_that_can_be_begun_again():
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
def test_recovery_in_the_process_restores_the_data_without_anybody_calling_anything(kind, tmp_path, quick):
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


def test_without_a_checkpoint_a_recovery_begins_model_and_data_anew(quick):
    expected = trained(plain, 8)
    graph, train_op, weight, _ = model(plain)
    with graph.as_default(), train.MonitoredSession(hooks=[FailAt(after=[5])], recovery=quick) as session:
        for _ in range(4):
            session.run(train_op)
        session.run(train_op)  # The fifth, which is lost and becomes the first.
        for _ in range(7):
            session.run(train_op)
        assert float(session.raw_session().run(weight)) == expected


def test_the_end_of_the_data_ends_the_training_and_no_thread_is_left(tmp_path):
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


def test_a_limit_on_the_step_leaves_its_batch_to_the_job_that_goes_on(tmp_path):
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
