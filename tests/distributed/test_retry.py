"""A retried run does not repeat its updates of variables on servers."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from tests.stand_ins import DirectTransport

import hookline as hl
from hookline import errors
from hookline.distributed import ParameterServer, RemoteStore
from hookline.distributed.codec import CodecError
from hookline.distributed.server.server import Decisions

# Delayed or duplicate messages, which a worker sends only when a network fails.
from hookline.distributed.staleness_bound import LEASE_SECS, AdmissionClient
from hookline.testing import FakeClock
from hookline.train import latest_checkpoint

from .targets import Target

BATCHES = [1, 2, 4, 8, 16, 32]


class Unanswered:
    def get(self):
        raise errors.UnavailableError(None, None, "Parameter server 0 gave no answer in time.")


class Network(DirectTransport):
    """Loses the answers of calls, or delays calls."""

    def __init__(self, count, max_staleness=None):
        super().__init__([ParameterServer() for _ in range(count)])
        self.max_staleness = max_staleness
        self.lost = {}
        self.late = None
        self.then = lambda: None

    def lose(self, method, times=1, *, after=0, late=False, then=lambda: None):
        self.lost[method] = [after, times]
        self.late = [] if late else None
        self.then = then

    def call(self, server, method, *args):
        counts = self.lost.get(method, [0, 0])
        if counts[0] > 0:
            counts[0] -= 1
        elif counts[1] > 0:
            counts[1] -= 1
            if self.late is None:
                super().call(server, method, *args)
            else:
                self.late.append((server, method, *args))
            then, self.then = self.then, lambda: None
            then()
            return Unanswered()
        return super().call(server, method, *args)

    def open_store(self, graph):
        return RemoteStore(graph, self, max_staleness=self.max_staleness)

    def hooks(self, summary_dir):
        return []


@pytest.fixture(autouse=True)
def clock():
    with FakeClock() as fake:
        yield fake


class Sums:
    """Adds each batch to a sum on the last server; the sum shows which batches were applied."""

    def __init__(self, servers, **options):
        self.network = Network(servers, **options)
        self.x = hl.placeholder(np.int32, (), name="x")
        self.total = hl.Variable(np.int32(0), name="total")
        self.other = hl.Variable(np.zeros(1000, np.float32), name="other")
        self.step = hl.train.create_global_step()
        self.train = hl.group(self.total.assign_add(self.x), self.other.assign_add(1.0), self.step.assign_add(1))
        self.jump = self.total.assign_add(1000)

    def session(self, *hooks, checkpoint_dir=None):
        creator = hl.train.ChiefSessionCreator(master=self.network, checkpoint_dir=checkpoint_dir)
        return hl.train.MonitoredSession(creator, hooks=hooks)

    def plain_session(self):
        """Without hooks and recovery, and initialised."""
        session = hl.Session(self.network)
        session.run(hl.global_variables_initializer())
        return session

    def saving_session(self, save_steps, directory, *hooks):
        saver = hl.train.CheckpointSaverHook(str(directory), save_steps=save_steps)
        return self.session(saver, *hooks, checkpoint_dir=str(directory))

    def run(self, sess, batches=BATCHES):
        for batch in batches:
            sess.run(self.train, {self.x: batch})

    def values(self, sess):
        total, other, step = sess.run([self.total, self.other, self.step])
        return int(total), int(other[0]), int(step)


# One server decides alone; two have to agree, as in most of these tests.
@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.campaign), 2])
def sums(request):
    return Sums(request.param)


ONE_AND_TWO = pytest.mark.parametrize("sums", [1, 2], indirect=True)
WHOLE = (sum(BATCHES), len(BATCHES), len(BATCHES))


@ONE_AND_TWO
@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.campaign), 3])
def test_update_is_not_applied_again_after_a_lost_answer(sums, times):
    with sums.session() as sess:
        sums.network.lose("commit", times, after=2)
        sums.run(sess)
        assert sums.values(sess) == WHOLE
    assert sums.network.lost["commit"] == [0, 0]


@ONE_AND_TWO
def test_delayed_update_is_refused_after_it_was_given_up(sums):
    with sums.session() as sess:
        sums.network.lose("commit", after=2, late=True)
        sums.run(sess, BATCHES[:3])
        (late,) = sums.network.late
        sums.network.late = None
        with pytest.raises(errors.InternalError, match="given up"):
            DirectTransport.call(sums.network, *late).get()
        sums.run(sess, BATCHES[3:])
        assert sums.values(sess) == WHOLE


def test_outcome_request_is_repeated_until_it_is_answered(sums):
    with sums.session() as sess:
        sums.network.lose("commit", after=2)
        sums.network.lose("outcome", 4)
        sums.run(sess)
        assert sums.values(sess) == WHOLE
    assert sums.network.lost["outcome"] == [0, 0]


def test_hook_that_fails_after_the_update_does_not_repeat_it(sums, tmp_path):
    with sums.saving_session(2, tmp_path) as sess:
        # Saving after a run takes a snapshot, which the network does not let through.
        sums.network.lose("begin_snapshot", after=1)
        sums.run(sess)
        assert sums.values(sess) == WHOLE
    assert sums.network.lost["begin_snapshot"] == [0, 0]


def test_step_function_repeats_none_of_its_updates(sums):
    def step_fn(step_context):
        for batch in BATCHES[:3]:
            step_context.session.run(sums.train, {sums.x: batch})
        return step_context.run_with_hooks(sums.jump)

    with sums.session() as sess:
        sums.network.lose("commit", after=3)
        sess.run_step_fn(step_fn)
        assert sums.values(sess) == (1007, 3, 3)
        sess.run_step_fn(step_fn)
        assert sums.values(sess) == (2014, 6, 6)


def test_failure_between_two_updates_repeats_only_the_unapplied_one(sums):
    def step_fn(step_context):
        step_context.session.run(sums.train, {sums.x: 1})
        # Reading fails once, in the second attempt.
        step_context.session.run(sums.other)
        return step_context.run_with_hooks(sums.train, {sums.x: 1000})

    with sums.session() as sess:
        sums.network.lose("commit", after=1, then=lambda: sums.network.lost.update(pull=[1, 1]))
        sess.run_step_fn(step_fn)
        assert sums.values(sess) == (1001, 2, 2)


def test_hooks_update_during_session_recovery_is_no_part_of_the_run(sums):
    class Adds(hl.train.SessionRunHook):
        def after_create_session(self, session, coord):
            session.run(sums.train, {sums.x: 100})

    with sums.session(Adds()) as sess:
        # The second run fails before it has sent anything.
        sums.run(sess, [1])
        pull = "pull" if sums.network.count == 1 else "pull_after"
        sums.network.lose(pull)
        sess.run([sums.train, sums.other], {sums.x: 2})
        assert sums.network.lost[pull] == [0, 0]
        assert sums.values(sess) == (203, 4, 4)


def test_outcome_is_known_though_the_sender_continued(sums):
    def step_fn(step_context):
        try:
            step_context.session.run(sums.train, {sums.x: 1})
        except errors.UnavailableError:
            step_context.session.run(sums.jump)
            raise
        step_context.session.run(sums.jump)

    with sums.session() as sess:
        sums.network.lose("commit")
        sess.run_step_fn(step_fn)
        assert sums.values(sess) == (1001, 1, 1)


@ONE_AND_TWO
def test_update_in_the_restored_checkpoint_is_not_repeated(sums, tmp_path):
    class FailsBehindItsSave(hl.train.CheckpointSaverHook):
        times = 1

        def save(self, session, global_step):
            super().save(session, global_step)
            if self.times and global_step == 4:
                self.times -= 1
                sums.network.servers[-1] = ParameterServer()
                session.run(sums.total)
            return False

    saver = FailsBehindItsSave(str(tmp_path), save_steps=2)
    with sums.session(saver, checkpoint_dir=str(tmp_path)) as sess:
        sums.run(sess)
        assert sums.values(sess) == WHOLE


def test_accepted_update_is_not_repeated_after_its_owner_dies():
    sums = Sums(2)
    chief = hl.Session(sums.network)
    chief.run(hl.global_variables_initializer())
    chief.backend.publish()

    class Restored(hl.train.SessionRunHook):
        sessions = 0

        def after_create_session(self, session, coord):
            self.sessions += 1
            if self.sessions == 2:
                saved = chief.snapshot()
                sums.network.servers[1] = ParameterServer()
                chief.load(saved)

    restored = Restored()
    with hl.train.MonitoredSession(hl.train.WorkerSessionCreator(master=sums.network), hooks=[restored]) as sess:
        # The owner has its part, and its answer is lost.
        sums.network.lose("stage", after=2)
        sums.run(sess)
        assert sums.values(sess) == WHOLE
    assert restored.sessions == 3


def test_update_without_a_step_is_repeated_if_the_checkpoint_may_be_older(sums, tmp_path):
    class Fails(hl.train.SessionRunHook):
        armed = False

        def after_run(self, run_context, run_values):
            if self.armed:
                self.armed = False
                sums.network.servers[-1] = ParameterServer()
                run_context.session.run([sums.total, sums.other])

    fails = Fails()
    with sums.saving_session(1, tmp_path, fails) as sess:
        sums.run(sess, BATCHES[:2])
        fails.armed = True
        sess.run(sums.jump)
        assert sums.values(sess) == (1003, 2, 2)


def test_hook_that_fails_once_in_each_run_is_always_retried(sums):
    class Fails(hl.train.SessionRunHook):
        last = 0

        def after_run(self, run_context, run_values):
            if self.last != run_context.session.global_step:
                self.last = run_context.session.global_step
                raise errors.UnavailableError(None, None, "a hook's own server is away")

    with sums.session(Fails()) as sess:
        sums.run(sess, [1] * 20)
        assert sums.values(sess) == (20, 20, 20)


def test_run_is_repeated_after_a_restore_without_its_update(sums, tmp_path):
    with sums.saving_session(2, tmp_path) as sess:
        sums.run(sess, BATCHES[:3])
        sums.network.lose("commit", then=lambda: sums.network.servers.__setitem__(-1, ParameterServer()))
        sess.run(sums.train, {sums.x: BATCHES[3]})
        assert sums.values(sess)[0] == sum(BATCHES[:2]) + BATCHES[3]


def test_session_without_recovery_raises_an_unknown_outcome(sums):
    session = sums.plain_session()
    sums.network.lose("commit")
    with pytest.raises(errors.UnavailableError, match="Whether the update was applied is not known"):
        session.run(sums.train, {sums.x: 1})
    session.run(sums.train, {sums.x: 2})
    assert int(session.run(sums.total)) == 3


def test_unreadable_answer_is_no_refusal(sums, monkeypatch):
    class Unreadable:
        def get(self):
            raise CodecError("Parameter server 0 gave an answer that cannot be read")

    with sums.session() as sess:
        monkeypatch.setattr(f"{__name__}.Unanswered", Unreadable)
        sums.network.lose("commit", after=2)
        sums.run(sess)
        assert sums.values(sess) == WHOLE


def test_end_of_training_is_sent_until_the_servers_answer(sums, tmp_path):
    with sums.saving_session(100, tmp_path) as sess:
        sums.run(sess)
        sums.network.lose("end_training", 2)
    assert sums.network.lost["end_training"] == [0, 0]
    assert latest_checkpoint(str(tmp_path)).endswith(f"-{len(BATCHES)}")


def test_server_lost_at_the_end_of_the_training_is_an_error_with_a_remedy(sums, tmp_path):
    sess = sums.saving_session(4, tmp_path)
    sums.run(sess)
    sums.network.servers[0] = ParameterServer()
    with pytest.raises(errors.AbortedError, match=r"at the end of the training.* start the job again"):
        sess.close()
    with sums.saving_session(4, tmp_path) as sess:
        assert sums.values(sess)[2] == 4
        sums.run(sess, BATCHES[4:])
        assert sums.values(sess) == WHOLE


def test_worker_that_learns_its_outcome_blocks_no_other():
    sums = Sums(1, max_staleness=0)
    with sums.session() as sess:
        sums.network.lose("commit")
        sums.run(sess, BATCHES[:1])
        assert sums.network.servers[0]._decisions._staleness_bound._admitted == {}


def test_chief_that_died_after_end_training_writes_the_last_checkpoint_on_restart(sums, tmp_path):
    def session():
        return sums.saving_session(100, tmp_path, hl.train.StopAtStepHook(last_step=len(BATCHES)))

    with contextlib.suppress(KeyboardInterrupt), session() as sess:
        sums.run(sess)
        sess._recoverable.raw.backend.end_training()
        raise KeyboardInterrupt
    assert latest_checkpoint(str(tmp_path)).endswith("-0")
    with session() as sess:
        pass
    assert latest_checkpoint(str(tmp_path)).endswith(f"-{len(BATCHES)}")


def test_loaded_values_are_read_by_the_next_run(sums):
    session = sums.plain_session()
    double = sums.total.assign_add(sums.total)
    session.run(double)
    session.load({"total": np.int32(100)})
    session.run(double)
    assert int(session.run(sums.total)) == 200


def test_lost_admission_answer_blocks_no_other_worker():
    sums = Sums(1, max_staleness=0)
    session = sums.plain_session()
    sums.network.lose("admit")
    with pytest.raises(errors.UnavailableError):
        session.run(sums.train, {sums.x: 1})
    assert sums.network.servers[0]._decisions._staleness_bound._admitted == {}


def other_may_begin(sums, session):
    ticket = session.backend.store._members.ticket(0)
    return DirectTransport.call(sums.network, 0, "admit", ticket, "other", 1, 0, 0.0).get() is not None


def with_an_undecided_update(max_staleness):
    """Returns the sums, their worker's session and the message that was not delivered: it may still come."""
    sums = Sums(1, max_staleness=max_staleness)
    session = sums.plain_session()
    sums.network.lose("commit", late=True)
    with pytest.raises(errors.UnavailableError, match="not known"):
        session.run(sums.train, {sums.x: 1})
    (late,) = sums.network.late
    sums.network.late = None
    return sums, session, late


def test_update_with_an_unknown_outcome_blocks_others_until_it_is_decided():
    sums, session, late = with_an_undecided_update(max_staleness=0)

    assert not other_may_begin(sums, session), "the update may still come, and would be missed"
    assert DirectTransport.call(sums.network, *late).get().accepted
    assert other_may_begin(sums, session)


def test_update_with_an_unknown_outcome_is_given_up_before_the_next_run():
    sums, session, late = with_an_undecided_update(max_staleness=0)

    def between(total):
        with pytest.raises(errors.InternalError, match="given up"):
            DirectTransport.call(sums.network, *late).get()
        assert not other_may_begin(sums, session)
        return total

    session.run([hl.host_op(between)(sums.total), sums.train], {sums.x: 2})
    assert int(session.run(sums.total)) == 2


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.campaign), 2])
def test_session_after_an_undelivered_update_does_not_wait_for_the_earlier_one(servers, monkeypatch):
    sums = Sums(servers, max_staleness=0)
    admit = Decisions.admit
    monkeypatch.setattr(Decisions, "admit", lambda *args: admit(*args[:-1], 0.0) or pytest.fail("somebody waits"))
    with sums.session() as sess:
        sums.network.lose("commit", after=1, late=True)
        sums.run(sess)
        assert sums.values(sess) == WHOLE
    assert len(sums.network.late) == 1


def test_undecided_update_of_a_closed_session_blocks_no_other():
    sums, session, late = with_an_undecided_update(max_staleness=0)
    gate = sums.network.servers[0]._decisions._staleness_bound
    assert gate.admit("other", 0) is None
    session.close()
    assert gate.admit("other", 0) is not None
    with pytest.raises(errors.InternalError, match="given up"):
        DirectTransport.call(sums.network, *late).get()


def test_session_closes_though_the_servers_cannot_be_reached(monkeypatch, caplog):
    sums, session, _ = with_an_undecided_update(max_staleness=0)

    def fail(server, method, *args):
        raise errors.UnavailableError(None, None, "Parameter server 0 cannot be reached")

    monkeypatch.setattr(sums.network, "call", fail)
    with caplog.at_level("INFO"):
        session.close()
    assert session.closed
    assert "not notified that an update was given up: Parameter server 0 cannot be reached" in caplog.text


def test_undecided_update_of_another_thread_is_kept_during_admission(monkeypatch):
    sums, session, _ = with_an_undecided_update(max_staleness=1)
    receive, asked, go_on = sums.network.servers[0].dispatch, threading.Event(), threading.Event()

    def hold(message):
        found = receive(message)
        if not asked.is_set():
            asked.set()
            assert go_on.wait(30)
        return found

    # The server could not take another call meanwhile, so the answer is held up.
    monkeypatch.setattr(sums.network.servers[0], "dispatch", lambda m: hold(m) if m[0] == "outcome" else receive(m))
    thread = threading.Thread(target=lambda: session.run(sums.train, {sums.x: 2}))
    thread.start()
    try:
        assert asked.wait(30)
        sums.network.lose("commit", late=True)
        with pytest.raises(errors.UnavailableError, match="not known"):
            session.load({"other": np.ones(1000, np.float32)})
        (late,) = sums.network.late
        sums.network.late = None
    finally:
        go_on.set()
        thread.join(30)

    assert sums.values(session) == (2, 1, 1)
    with pytest.raises(errors.InternalError, match="given up"):
        DirectTransport.call(sums.network, *late).get()


def test_idle_worker_with_a_given_up_update_sends_no_heartbeat(clock, monkeypatch):
    sums, session, _ = with_an_undecided_update(max_staleness=5)
    decisions, renewed, heard = sums.network.servers[0]._decisions, [], threading.Semaphore(0)
    renew = decisions.renew

    def hear(sender):
        renew(sender)
        renewed.append(sender)
        heard.release()

    monkeypatch.setattr(decisions, "renew", hear)
    alive = AdmissionClient(sums.network, session.backend.store._members.ticket(0), "alive")
    alive.enter(0)
    for _ in range(6):
        while not heard.acquire(timeout=0.05):
            clock.advance(LEASE_SECS / 4)
    alive.close()
    assert set(renewed) == {"alive"}


@pytest.mark.parametrize("server", [0, 1])
def test_variables_added_by_the_chief_are_registered_despite_a_lost_message(server):
    network = Network(2)
    graphs = [hl.Graph(), hl.Graph()]
    for graph in graphs:
        with graph.as_default():
            hl.Variable(np.float32(1), name="v")
    chief = hl.Session(network, graph=graphs[0])
    chief.run(graphs[0].get_operation_by_name("v/initializer"))
    for graph in graphs:
        with graph.as_default():
            hl.Variable(np.float32(2), name="later")
    init = graphs[0].get_operation_by_name("later/initializer")

    network.lose("register", after=server, late=True)
    with pytest.raises(errors.UnavailableError):
        chief.run(init)
    chief.run(init)

    worker = hl.Session(Target(network, 1), graph=graphs[1])
    assert float(worker.run("later:0")) == 2


def test_values_loaded_during_a_run_do_not_end_it():
    sums = Sums(1, max_staleness=0)
    session = sums.plain_session()
    set_other = hl.host_op(lambda total: session.load({"other": np.ones(1000, np.float32)}))(sums.total)
    free = hl.host_op(lambda _: other_may_begin(sums, session))(set_other)
    assert not session.run([free, sums.train], {sums.x: 1})[0]


def test_session_can_be_read_and_closed_while_a_run_waits_for_slower_workers():
    sums = Sums(1, max_staleness=0)
    session = sums.plain_session()
    sums.network.servers[0]._decisions._staleness_bound.admit("slower", 0)
    outcome = []

    def run():
        try:
            session.run(sums.train, {sums.x: 1})
        except errors.CancelledError as error:
            outcome.append(str(error))

    with FakeClock(autojump_secs=0.01):
        thread = threading.Thread(target=run)
        thread.start()
        while not sums.network.servers[0]._waiting.count:
            threading.Event().wait(0.001)
        assert int(session.run(sums.total)) == 0
        session.close()
        thread.join(60)
    assert outcome == ["The session was closed while a run waited for slower workers."]


def test_restarted_chief_with_a_changed_script_restarts_an_unfinished_start(sums):
    def fail(scaffold, session):
        raise RuntimeError("the script has an error")

    creator = hl.train.ChiefSessionCreator(hl.train.Scaffold(init_fn=fail), sums.network)
    with pytest.raises(RuntimeError, match="the script has an error"):
        hl.train.MonitoredSession(creator)
    with hl.Graph().as_default():
        hl.train.create_global_step()
        extra = hl.Variable(1.0, name="extra")
        with hl.train.MonitoredSession(hl.train.ChiefSessionCreator(master=sums.network)) as sess:
            assert float(sess.run(extra)) == 1.0


@pytest.mark.parametrize("overlap", [False, True])
def test_result_of_an_update_is_the_new_value(sums, overlap):
    session = hl.Session(sums.network)
    session.backend.store._pulls._overlap = overlap
    session.run(hl.global_variables_initializer())
    add = sums.total.assign_add(1)
    assert [int(session.run(add)) for _ in range(3)] == [1, 2, 3]
    session.run([sums.total, hl.group(add)])
    assert int(session.run(add)) == 5


def test_nested_bounded_run_is_refused():
    sums = Sums(1, max_staleness=0)
    session = hl.Session(sums.network)
    tick = hl.host_op(lambda step: session.run(sums.jump))(sums.step)
    session.run(hl.global_variables_initializer())
    with pytest.raises(errors.UnimplementedError, match="cannot itself run updates"):
        session.run([sums.train, tick], {sums.x: 1})
    session.run(sums.train, {sums.x: 1})
    assert sums.values(session) == (1, 1, 1)


def test_run_admitted_before_a_restore_is_lost():
    sums = Sums(2, max_staleness=0)
    session = sums.plain_session()
    saved = session.snapshot()
    sums.run(session, [1, 2])
    enter, store = AdmissionClient.enter, session.backend.store

    def load_behind(self, since):
        found = enter(self, since)
        store.load({v: saved[v.op.name] for v in hl.global_variables()})
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdmissionClient, "enter", load_behind)
        with pytest.raises(errors.AbortedError, match="set again"):
            sums.run(session, [4])
    sums.run(session, [8])
    assert sums.values(session) == (8, 1, 1)
