from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.stand_ins import DirectTransport, RayTransport

import hookline as hl
from hookline import GraphKeys, clock, errors
from hookline.distributed import Cluster, ParameterServer, StalenessHook

# Times of the protocol, which a test waits for by its own clock.
from hookline.distributed.protocol import BLOCKING_METHODS
from hookline.distributed.server.variable_owner import VariableOwner
from hookline.distributed.worker.pulls import FRESH_SECS
from hookline.testing import FakeClock, read_events

from .targets import Target, apart, at_once, until


class Model:
    """A small regression with Adam, and a worker's session on it."""

    def __init__(self, target="", rate=0.1):
        self.graph = hl.Graph()
        with self.graph.as_default():
            self.w = hl.Variable(jnp.ones((3, 2)), name="w")
            self.b = hl.Variable(jnp.zeros(2), name="b")
            self.step = hl.train.create_global_step()
            x = hl.placeholder(jnp.float32, (None, 3), name="x")
            self.loss = hl.op(lambda w, b, x: jnp.mean((x @ w + b - 3.0) ** 2))(self.w, self.b, x)
            updates = []
            for variable, grad in zip((self.w, self.b), hl.gradients(self.loss, [self.w, self.b]), strict=True):
                updates.append(descend(variable, grad, rate))
            self.train = hl.group(*updates, self.step.assign_add(1), name="train")
            self.init = hl.global_variables_initializer()
        self.session = hl.Session(target, graph=self.graph)

    def run(self, fetches=None, last_step=None):
        options = None if last_step is None else hl.RunOptions(last_step=last_step)
        x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
        return self.session.run(self.train if fetches is None else fetches, {"x:0": x}, options=options)


def descend(variable, grad, rate):
    rule = optax.adam(rate)
    opt_state = hl.Variable(hl.op(rule.init)(variable.initialized_value()), name=f"opt_state/{variable.op.name}")

    def apply(values, grad):
        params, state = values
        changes, state = rule.update(grad, state, params)
        return optax.apply_updates(params, changes), state

    return hl.update((variable, opt_state), apply, grad, name=f"descend/{variable.op.name}")


def in_process(count):
    return DirectTransport([ParameterServer() for _ in range(count)])


def pair(servers):
    """The chief, which has initialised the servers, and a worker."""
    transport = in_process(servers)
    chief, worker = Model(Target(transport)), Model(Target(transport, 1))
    chief.session.run(chief.init)
    return transport, chief, worker


def trained(target, steps):
    model = Model(target)
    model.session.run(model.init)
    for _ in range(steps):
        model.run()
    return model.session.snapshot()


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        for a, b in zip(jax.tree.leaves(left[name]), jax.tree.leaves(right[name]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.campaign), 3])
def test_training_on_servers_equals_local_training(servers):
    assert_same(trained(Target(in_process(servers)), 5), trained("", 5))


def test_worker_finds_no_values_until_the_chief_has_initialised():
    transport = in_process(2)
    chief, worker = Model(Target(transport)), Model(Target(transport, 1))
    assert len(worker.session.uninitialized()) == 5
    with pytest.raises(errors.FailedPreconditionError, match="the chief has to"):
        worker.run()

    chief.session.run(chief.init)

    assert worker.session.uninitialized() == []
    worker.run()
    chief.run()
    assert chief.session.global_step == 2


def test_worker_with_another_graph_gets_the_first_difference():
    transport = in_process(1)
    chief, worker = Model(Target(transport)), Model(Target(transport, 1), rate=0.2)
    chief.session.run(chief.init)

    with pytest.raises(
        errors.FailedPreconditionError,
        match="The first difference is the update 'descend/w', which is another one in the chief's graph",
    ):
        worker.session.uninitialized()


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.campaign), 2])
def test_workers_never_pass_the_last_step(servers):
    transport = in_process(servers)
    transport = Locked(transport)
    models = [Model(Target(transport, index)) for index in range(4)]
    models[0].session.run(models[0].init)

    def work(model):
        while model.session.global_step < 25:
            model.run(last_step=25)

    at_once(*(partial(work, model) for model in models))

    assert int(models[0].session.snapshot()["global_step"]) == 25
    assert [model.session.global_step for model in models] == [25] * 4


class Locked(DirectTransport):
    """An actor runs one call at a time, but for those that wait."""

    def __init__(self, inner):
        super().__init__(inner.servers)
        self.lock = threading.RLock()

    def call(self, server, method, *args):
        with contextlib.nullcontext() if method in BLOCKING_METHODS else self.lock:
            return super().call(server, method, *args)


def test_restore_ends_other_sessions_and_counts_the_lost_steps(caplog):
    transport, chief, worker = pair(2)
    saved = chief.session.snapshot()
    for model in (chief, worker, chief):
        model.run()

    with caplog.at_level(logging.WARNING):
        chief.session.load(saved)

    assert "from global step 3 to 0: 3 steps are lost" in caplog.text
    with pytest.raises(errors.AbortedError, match="restored again"):
        worker.run()
    again = Model(Target(transport, 1))
    again.run()
    chief.run()
    assert chief.session.global_step == 2


def test_empty_restarted_server_stops_all_until_the_chief_restores():
    transport, chief, worker = pair(2)
    chief.run()
    saved = chief.session.snapshot()
    transport.servers[1] = ParameterServer()

    for model in (chief, worker):
        with pytest.raises((errors.AbortedError, errors.FailedPreconditionError)):
            model.run()
    again = Model(Target(transport))
    assert len(again.session.uninitialized()) == 5
    again.session.load(saved)

    assert_same(again.session.snapshot(), saved)
    assert again.session.global_step == 1


def test_restarted_chief_finds_the_servers_ready():
    transport = in_process(2)
    first = Model(Target(transport))
    first.session.run(first.init)
    first.run()

    second = Model(Target(transport))

    assert second.session.uninitialized() == []
    assert second.session.global_step == 1
    second.run()
    assert second.session.global_step == 2


def test_ended_servers_end_workers_like_an_end_of_input():
    _, chief, worker = pair(2)
    worker.run()
    chief.session.backend.end_training()

    with pytest.raises(errors.OutOfRangeError, match="has ended at global step 1"):
        worker.run()
    with pytest.raises(errors.OutOfRangeError, match="step 9 will not be reached"):
        worker.session.wait_for_step(9)
    assert int(chief.session.snapshot()["global_step"]) == 1


def test_restarted_chief_continues_a_finished_training(tmp_path):
    transport = in_process(2)
    for last_step in (3, 5):
        with hl.Graph().as_default():
            step = hl.train.get_or_create_global_step()
            total = hl.Variable(0.0, name="total")
            train = hl.group(total.assign_add(1.0), step.assign_add(1))
            hooks = [hl.train.StopAtStepHook(last_step=last_step)]
            with hl.train.MonitoredTrainingSession(
                Target(transport), checkpoint_dir=str(tmp_path), hooks=hooks
            ) as sess:
                while not sess.should_stop():
                    sess.run(train)
    assert hl.train.load_variable(str(tmp_path / "model.ckpt-5"), "total") == 5.0


def test_restarted_chief_knows_earlier_checkpoints(tmp_path):
    transport = in_process(1)
    for last_step in (4, 8):
        with hl.Graph().as_default():
            train = hl.train.get_or_create_global_step().assign_add(1)
            with hl.train.MonitoredTrainingSession(
                Target(transport),
                checkpoint_dir=str(tmp_path),
                save_checkpoint_steps=1,
                scaffold=hl.train.Scaffold(saver=hl.train.Saver(max_to_keep=2)),
                hooks=[hl.train.StopAtStepHook(last_step=last_step)],
            ) as sess:
                while not sess.should_stop():
                    sess.run(train)
    assert sorted(path.name for path in tmp_path.glob("model.ckpt-*")) == ["model.ckpt-7", "model.ckpt-8"]


class Counts(hl.train.SessionRunHook):
    count = 0

    def after_run(self, run_context, run_values):
        self.count += 1

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


def test_chief_that_lost_its_session_keeps_states_of_absent_hooks(tmp_path):
    for hooks in ([Counts()], [], [Counts()]):
        transport, faults = in_process(1), [errors.AbortedError(None, None, "lost")]  # Each finds a checkpoint only.
        with hl.Graph().as_default():
            lose = hl.host_op(lambda faults=faults: (_ for _ in ()).throw(faults.pop()) if faults else 0.0)
            with hl.control_dependencies([lose.node()] if not hooks else []):
                train = hl.train.get_or_create_global_step().assign_add(1)
            with hl.train.MonitoredTrainingSession(
                Target(transport),
                checkpoint_dir=str(tmp_path),
                hooks=hooks,
                checkpoints=hl.train.CheckpointOptions(recovery=hl.train.RecoveryPolicy(initial_backoff_secs=0)),
            ) as sess:
                for _ in range(3):
                    sess.run(train)
    assert hooks[0].count == 6


def test_restarted_chief_with_new_local_variables_restores_nothing():
    transport = in_process(1)
    seen = []
    for last_step in (3, 5):
        with hl.Graph().as_default():
            step = hl.train.get_or_create_global_step()
            hl.Variable(0.0, name="mine", trainable=False, collections=[hl.GraphKeys.LOCAL_VARIABLES])
            train = step.assign_add(1)
            with hl.train.MonitoredSession(hl.train.ChiefSessionCreator(master=Target(transport))) as sess:
                seen.append(sess.run_step_fn(lambda step_context: step_context.session.global_step))
                while sess.run(train) < last_step:
                    pass
    assert seen == [0, 3]


def test_restarted_chief_initialises_its_local_variables():
    transport = in_process(1)
    seen = []
    for _ in range(2):
        with hl.Graph().as_default():
            train = hl.train.get_or_create_global_step().assign_add(1)
            mine = hl.Variable(7.0, name="mine", trainable=False, collections=[hl.GraphKeys.LOCAL_VARIABLES])
            grow = hl.group(train, mine.assign_add(1.0))
            session = hl.train.ChiefSessionCreator(master=Target(transport)).create_session()
            session.run(grow)
            seen.append((session.global_step, float(session.run(mine))))
    assert seen == [(1, 8.0), (2, 8.0)]


def test_chief_that_died_before_sending_its_updates_does_not_block_the_next(monkeypatch):
    transport = in_process(2)
    first = Model(Target(transport))
    with monkeypatch.context() as patch:
        patch.setattr(VariableOwner, "register", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            first.session.run(first.init)

    second = Model(Target(transport))
    second.session.run(second.init)
    second.run()
    assert second.session.global_step == 1


def test_refused_run_changes_no_local_variables():
    transport = in_process(1)
    step = hl.train.get_or_create_global_step()
    mine = hl.Variable(0, name="mine", trainable=False, collections=[hl.GraphKeys.LOCAL_VARIABLES])
    train = hl.group(step.assign_add(1), mine.assign_add(1))
    with hl.Session(Target(transport)) as sess:
        sess.run(hl.group(hl.global_variables_initializer(), hl.local_variables_initializer()))
        for applied in (True, False):
            metadata = hl.RunMetadata()
            sess.run(train, options=hl.RunOptions(last_step=1), run_metadata=metadata)
            assert metadata.applied is applied
            assert (sess.run(step), sess.run(mine)) == (1, 1)


@pytest.mark.parametrize("counts", [False, True])
def test_local_variables_of_a_worker_keep_their_values_between_all_runs(counts):
    """Runs that write only them, only the servers' variables, both, none because of a limit; and loads in between."""
    step = hl.train.get_or_create_global_step()
    shared = hl.Variable(0.0, name="shared")
    local = {"trainable": False, "collections": [hl.GraphKeys.LOCAL_VARIABLES]}
    number = hl.Variable(0, name="number", **local)
    total = hl.Variable(jnp.zeros(2), name="total", **local)
    own = hl.group(total.assign(total + shared), *[number.assign_add(1)] * counts)
    train = hl.group(step.assign_add(1), shared.assign_add(total[0] + 1.0))
    both = hl.group(train, own)
    noise = hl.op(lambda key: jax.random.uniform(key))(hl.random_key(3))
    with hl.Session(Target(in_process(2))) as sess:
        sess.run(hl.group(hl.global_variables_initializer(), hl.local_variables_initializer()))
        expected, drawn = [0, 0.0, 0.0, 0], []
        for kind in "tboobbtonrrbolbbono":
            if kind == "l":
                sess.load({"total": np.full(2, 0.5, np.float32), "number": 40})
                expected[2:] = 0.5, 40
                continue
            if kind == "n":
                drawn.append(float(sess.run(noise)))
                continue
            options = hl.RunOptions(last_step=0) if kind == "r" else None
            sess.run({"t": train, "o": own, "b": both, "r": both}[kind], options=options)
            _, was, sum_, _ = expected
            if kind in "tb":
                expected[0] += 1
                expected[1] = was + sum_ + 1
            if kind in "ob":
                expected[2] = sum_ + was
                expected[3] += counts
            found = [sess.global_step, *(float(np.ravel(value)[0]) for value in sess.run([shared, total, number]))]
            assert found == expected
        assert len(set(drawn)) == len(drawn) == 2
        assert sess.snapshot([number])["number"] == expected[3]


def test_worker_may_not_restore_end_or_reopen_the_training():
    _, _, worker = pair(1)
    worker.run()
    restore = partial(worker.session.load, worker.session.snapshot())
    for forbidden in (restore, worker.session.backend.end_training, worker.session.backend.publish):
        with pytest.raises(errors.FailedPreconditionError, match="Only the chief, worker 0, .* ends a training"):
            forbidden()
    worker.run()
    cluster = Cluster("10.0.0.1:6379", "worker", 0, num_workers=2)
    with pytest.raises(ValueError, match=r"Pass is_chief=cluster\.is_chief"):
        hl.train.MonitoredTrainingSession(cluster)


def test_checkpoint_is_named_after_its_step(tmp_path):
    _, chief, worker = pair(1)
    hook = hl.train.CheckpointSaverHook(str(tmp_path), save_steps=1, saver=hl.train.Saver())
    chief.run()
    with chief.session.graph.as_default():
        hook.begin()
    worker.run()
    assert chief.session.global_step == 1, "it has not heard of the other's step"
    hook.after_create_session(chief.session, None)
    hook.end(chief.session)
    assert hl.train.latest_checkpoint(tmp_path).endswith("model.ckpt-2")
    assert hl.train.load_variable(hl.train.latest_checkpoint(tmp_path), "global_step") == 2


def test_worker_waits_for_a_step_of_another():
    transport, chief, worker = pair(1)
    worker.session.uninitialized()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(worker.session.wait_for_step(2, 60)))
    thread.start()
    while not transport.servers[0]._waiting.count:
        clock.sleep(0.001)

    chief.run()
    chief.run()
    thread.join()

    assert seen == [2]


def test_loading_one_variable_changes_no_other_and_ends_no_session():
    _, chief, worker = pair(2)
    worker.run()

    chief.session.load({"b": np.array([7.0, 8.0])})

    snapshot = worker.session.snapshot()
    assert snapshot["b"].tolist() == [7.0, 8.0]
    assert snapshot["b"].dtype == jnp.float32
    assert int(snapshot["global_step"]) == 1
    worker.run()


def test_staleness_hook_writes_in_its_next_session(tmp_path):
    hook = StalenessHook(every_n_steps=1, output_dir=str(tmp_path))
    for _ in range(2):
        model = Model()
        with (
            model.graph.as_default(),
            hl.train.MonitoredSession(hl.train.ChiefSessionCreator(master=Target(in_process(1))), [hook]) as sess,
        ):
            sess.run(model.train, {"x:0": np.zeros((4, 3), np.float32)})
    tags = [value.tag for event in read_events(tmp_path) for value in event.summary.value]
    assert tags.count("staleness/chief/mean") == 2


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.campaign), 3])
def test_staleness_counts_the_updates_of_others(servers):
    _, chief, worker = pair(servers)
    with FakeClock():
        chief.run()
        worker.run()
        assert [model.session.backend.store.staleness() for model in (chief, worker)] == [(1, 0.0, 0)] * 2
        chief.run()
        for _ in range(3):
            worker.run()
        chief.run()

    # The chief's first run has values from before the worker's; its second from before the worker's three.
    assert chief.session.backend.store.staleness() == (2, 2.0, 3)
    assert chief.session.backend.store.staleness() == (0, 0.0, 0)


@pytest.mark.parametrize("overlap", [False, True])
def test_worker_stopped_for_long_continues_with_current_values(overlap):
    """Those that came with its last update are as old as that."""
    transport = in_process(2)
    chief, worker = Model(Target(transport, overlap=overlap)), Model(Target(transport, 1))
    with FakeClock() as fake:
        chief.session.run(chief.init)
        chief.run()
        for _ in range(3):
            worker.run()
        chief.session.backend.store.staleness()
        fake.advance(FRESH_SECS * 2)
        chief.run()

    assert chief.session.backend.store.staleness() == (1, 0.0, 0)


@pytest.mark.parametrize(
    ("overlap", "servers"),
    [(False, 1), (True, 2), *[pytest.param(*each, marks=pytest.mark.campaign) for each in ((False, 2), (True, 1))]],
)
def test_staleness_is_bounded_and_a_fast_worker_waits(servers, overlap):
    transport = Locked(in_process(servers))
    models = [Model(Target(transport, index, max_staleness=2, overlap=overlap)) for index in range(5)]
    models[0].session.run(models[0].init)

    def work(model):
        while model.session.global_step < 60:
            model.run(last_step=60)
        model.session.close()

    stores = [model.session.backend.store for model in models]
    at_once(*(partial(work, model) for model in models))

    reports = [store.staleness() for store in stores]
    assert sum(count for count, _, _ in reports) == 60
    assert 0 < max(largest for _, _, largest in reports) <= 2


def test_run_waits_for_a_slower_worker_until_it_leaves():
    transport = Locked(in_process(1))
    chief, slow, fast = (Model(Target(transport, index, max_staleness=0)) for index in range(3))
    chief.session.run(chief.init)
    entered, leave = threading.Event(), threading.Event()
    with slow.graph.as_default():
        hold = hl.host_op(lambda w: (entered.set(), leave.wait(60), w)[-1])(slow.w)
        held = hl.group(slow.train, hl.host_op(lambda value: None)(hold))
    threads = [threading.Thread(target=slow.run, args=(held,))]
    threads[0].start()
    assert entered.wait(60)
    # A host operation on the device's results: the update of this run has been sent, so nobody waits for it.
    fast.run()
    leave.set()
    threads[0].join()
    assert transport.call(0, "admit", ticket(fast), "silent", 1, 0, 0.0).get() is not None

    threads = [threading.Thread(target=fast.run)]
    threads[0].start()
    until(lambda: transport.servers[0]._waiting.count)
    assert fast.session.global_step == 2
    transport.call(0, "leave", ticket(fast), "silent", 1).get()
    threads[0].join()
    assert fast.session.global_step == 3


def ticket(model):
    return model.session.backend.store._members.ticket(0)


def test_failed_run_blocks_no_other():
    transport = Locked(in_process(1))
    chief, other = (Model(Target(transport, index, max_staleness=0)) for index in range(2))
    with chief.graph.as_default():
        tick = hl.host_op(lambda step: 1 / 0)(chief.step)
        broken = hl.group(chief.train, tick)
    chief.session.run(chief.init)
    with pytest.raises(ZeroDivisionError):
        chief.run(broken)
    other.run()
    assert other.session.global_step == 1


def test_bounded_session_that_was_not_closed_leaves_no_thread():
    def renewing():
        return {thread for thread in threading.enumerate() if thread.name == "hookline-renew"}

    before = renewing()
    with FakeClock() as fake:
        model = Model(Target(in_process(1), max_staleness=0))
        model.session.run(model.init)
        model.run()
        (thread,) = renewing() - before
        fake.await_waiters()
        del model
        gc.collect()
        fake.advance(60)
        thread.join(10)
        assert not thread.is_alive()


def test_max_staleness_must_equal_the_chiefs():
    transport = in_process(1)
    chief, worker = Model(Target(transport, max_staleness=1)), Model(Target(transport, 1, max_staleness=2))
    chief.session.run(chief.init)
    with pytest.raises(errors.FailedPreconditionError, match="max_staleness is 2, and the chief's is 1"):
        worker.run()


def test_bounded_chief_continues_after_loading_values():
    model = Model(Target(in_process(2), max_staleness=0))
    model.session.run(model.init)
    saved = model.session.snapshot()
    first = [float(model.run([model.loss, model.train])[0]) for _ in range(3)]
    model.session.load(saved)

    assert [float(model.run([model.loss, model.train])[0]) for _ in range(3)] == first


def test_prefetched_values_are_not_used_by_a_later_run():
    _, chief, worker = pair(2)
    chief.run()
    chief.run([chief.b])
    for _ in range(3):
        worker.run()

    np.testing.assert_array_equal(chief.run([chief.w])[0], worker.run([worker.w])[0])
    chief.session.backend.store.staleness()
    chief.run()
    assert chief.session.backend.store.staleness() == (1, 0.0, 0)


class Host:
    """The chief and a worker of a job, each in a thread of its own."""

    def __init__(self, init_fn):
        self.transport = Locked(in_process(2))
        self.init_fn = init_fn
        self.seen = []

    def chief(self):
        model = Model()
        with model.graph.as_default():
            assign = model.w.assign(jnp.full((3, 2), 7.0))
            scaffold = hl.train.Scaffold(init_fn=lambda scaffold, session: self.init_fn(session, assign))
            with hl.train.MonitoredSession(hl.train.ChiefSessionCreator(scaffold, Target(self.transport))):
                pass

    def worker(self):
        model = Model()
        with model.graph.as_default():
            creator = hl.train.WorkerSessionCreator(master=Target(self.transport, 1))
            self.seen.append(float(creator.create_session().run(model.w)[0, 0]))


def test_workers_wait_for_init_fn_and_start_at_once_afterwards():
    entered, leave = threading.Event(), threading.Event()

    def init_fn(session, assign):
        entered.set()
        assert leave.wait(60)
        session.run(assign)

    host = Host(init_fn)
    with FakeClock() as fake:
        threads = [threading.Thread(target=target) for target in (host.chief, host.worker)]
        for thread in threads:
            thread.start()
        assert entered.wait(60)
        with_real_time = threading.Event()
        while not host.transport.servers[0]._waiting.count:
            with_real_time.wait(0.005)
        assert host.seen == []
        before = fake.monotonic()
        leave.set()
        for thread in threads:
            thread.join(60)
        assert fake.monotonic() - before <= 0.2
    assert host.seen == [7.0]


def test_worker_may_wait_for_the_chief_beyond_the_call_timeout(monkeypatch):
    transport = in_process(1)
    worker, waits = Model(Target(transport, 1)), []
    wait = transport.servers[0].wait_until_ready
    monkeypatch.setattr(transport.servers[0], "wait_until_ready", lambda secs: waits.append(secs) or wait(secs))
    with FakeClock(autojump_secs=0.001) as fake:
        start = fake.monotonic()
        assert not worker.session.backend.wait_until_ready(20.0)
        assert fake.monotonic() - start == pytest.approx(20)
    assert 0 < max(waits) <= 1.0


def test_chief_with_a_plain_session_admits_workers():
    _, chief, worker = pair(2)
    manager = hl.train.SessionManager(graph=worker.graph)
    with pytest.raises(errors.DeadlineExceededError, match="the chief to make the model ready .*still initialises"):
        manager.wait_for_session(worker.session.backend._target, max_wait_secs=0)
    chief.session.backend.publish()
    assert manager.wait_for_session(worker.session.backend._target, max_wait_secs=0).global_step == 0


def test_chief_that_died_in_init_fn_runs_it_again():
    calls = []

    def init_fn(session, assign):
        calls.append(session)
        if len(calls) == 1:
            raise KeyboardInterrupt
        session.run(assign)

    host = Host(init_fn)
    with pytest.raises(KeyboardInterrupt):
        host.chief()
    host.chief()
    host.worker()
    assert len(calls) == 2
    assert host.seen == [7.0]


def test_worker_with_overlap_computes_without_its_last_update():
    transport = in_process(2)
    model = Model(Target(transport, overlap=True))
    with FakeClock():
        model.session.run(model.init)
        losses = [float(model.run([model.loss, model.train])[0]) for _ in range(4)]

    assert losses[0] == losses[1] > losses[2] > losses[3]
    assert model.session.backend.store.staleness() == (4, 0.75, 1)


def test_local_variables_stay_in_the_worker():
    transport = in_process(1)
    shared = hl.Variable(0.0, name="shared")
    key = hl.random_key()
    mine = hl.Variable(1.0, name="mine", collections=[GraphKeys.LOCAL_VARIABLES])
    change = hl.group(shared.assign_add(1.0), mine.assign_add(1.0))
    session = hl.Session(Target(transport))
    session.run(hl.group(hl.global_variables_initializer(), hl.local_variables_initializer()))
    session.run([change, key])

    assert transport.servers[0].status().initialized == {"shared"}
    assert float(session.run(mine)) == 2.0
    assert session.snapshot().keys() >= {"shared"}


def test_variable_of_any_pytree_is_read_as_created():
    value = {"key": jax.random.key(4), "half": (jnp.ones(2, jnp.bfloat16), None)}
    tree = hl.Variable(value, name="tree", trainable=False)
    double = hl.update(tree, lambda t: {**t, "half": (t["half"][0] * 2, None)})
    drawn = hl.op(lambda t: jax.random.normal(t["key"]) + t["half"][0].sum())(tree)
    session = hl.Session(Target(in_process(1)))
    session.run(hl.global_variables_initializer())
    session.run(double)

    assert float(session.run(drawn)) == pytest.approx(float(jax.random.normal(jax.random.key(4)) + 4), rel=1e-2)
    assert session.snapshot()["tree"]["half"][0].dtype == jnp.bfloat16


@pytest.mark.parametrize("name", ["left", "right"])
def test_update_that_does_not_fit_a_new_shape_fails_alone(name):
    """The shapes of this variable are unknown; the same update fitted before."""
    x = hl.placeholder(np.float32, (None,), name="x")
    v = hl.Variable(hl.host_op(lambda: np.zeros(2, np.float32))(), name=name)
    put, add = v.assign(x), v.assign_add(x)
    session = hl.Session(apart(in_process(2)))
    session.run(hl.global_variables_initializer())
    for size in (2, 3):
        session.run(put, {x: np.ones(size, np.float32)})
        session.run(add, {x: np.ones(size, np.float32)})

    with pytest.raises(TypeError, match="incompatible shapes"):
        session.run(add, {x: np.ones(2, np.float32)})

    assert session.run(v).tolist() == [2, 2, 2]


def test_update_may_read_what_another_of_the_run_wrote():
    w = hl.Variable(1.0, name="w")
    average = hl.Variable(0.0, name="average")
    with hl.control_dependencies([w.assign_add(3.0)]):
        follow = hl.update(average, lambda old, new: old + new, w)
    session = hl.Session(Target(in_process(2)))
    session.run(hl.global_variables_initializer())
    session.run(follow.op)

    assert float(session.run(average)) == 4.0


# Ray ---------------------------------------------------------------------------------------------------------------


@pytest.mark.campaign  # As in test_ray_actors.py, with another model.
@pytest.mark.parametrize("servers", [1, 2])
def test_training_on_ray_actors_equals_local_training(actors, servers):
    assert_same(trained(Target(RayTransport(actors(servers))), 5), trained("", 5))


def run_three_times(model):
    # With two servers the first run may end before the message that is lost is missed.
    for _ in range(3):
        model.run()


@pytest.mark.parametrize("over_ray", [pytest.param(False, marks=pytest.mark.campaign), True])
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.campaign), 1])
def test_killed_actor_is_never_a_silent_success(actors, pid_of, victim, over_ray):
    handles = actors(2, over_ray=over_ray)
    transport = RayTransport(handles, timeout_secs=60)
    chief, worker = Model(Target(transport)), Model(Target(transport, 1))
    chief.session.run(chief.init)
    worker.run()
    saved = chief.session.snapshot()
    worker.run()

    os.kill(pid_of(handles[victim]), signal.SIGKILL)

    for model in (worker, chief):
        with pytest.raises(errors.PREEMPTION_ERRORS):
            run_three_times(model)
    deadline = clock.monotonic() + 60
    while clock.monotonic() < deadline:
        again = Model(Target(transport))
        try:
            missing = again.session.uninitialized()
            break
        except errors.UnavailableError:
            clock.sleep(0.2)
    assert len(missing) == 5
    # The restarted instance answers, but not to callers of the earlier one.
    with pytest.raises(errors.PREEMPTION_ERRORS):
        worker.run()
    again.session.load(saved)
    assert_same(again.session.snapshot(), saved)
    Model(Target(transport, 1)).run()
    assert int(again.session.snapshot()["global_step"]) == 2


def test_error_of_an_update_function_reaches_the_worker_unchanged(actors):
    w = hl.Variable(jnp.zeros(3), name="w")
    grown = hl.update(w, lambda old, by: old + by, hl.placeholder(jnp.float32, None, name="by"))
    session = hl.Session(Target(RayTransport(actors(1))))
    session.run(hl.global_variables_initializer())

    with pytest.raises(ValueError, match="'w'"):
        session.run(grown.op, {"by:0": np.ones((2, 3), np.float32)})
    session.run(grown.op, {"by:0": np.ones(3, np.float32)})
    assert session.run(w).tolist() == [1.0] * 3


def test_update_that_cannot_be_sent_is_named(actors):
    lock = threading.Lock()
    w = hl.Variable(0.0, name="w")
    hl.update(w, lambda old: old + lock.locked(), name="holds_a_lock")
    session = hl.Session(Target(RayTransport(actors(1))))

    with pytest.raises(TypeError, match="Update 'holds_a_lock' cannot be sent"):
        session.run(hl.global_variables_initializer())


def test_global_step_beyond_the_end_is_refused_without_a_change():
    model = Model(Target(in_process(2)))
    model.session.run(model.init)
    model.session.load({"global_step": 2**31 - 1})
    before = model.session.snapshot()
    with pytest.raises(errors.FailedPreconditionError, match="cannot count to 2147483648: its dtype is int32"):
        model.run()
    assert model.session.global_step == 2**31 - 1
    jax.tree.map(np.testing.assert_array_equal, model.session.snapshot(), before)
