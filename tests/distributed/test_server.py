from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.stand_ins import DirectTransport

import hookline as hl
from hookline import clock, errors
from hookline.distributed import ParameterServer
from hookline.distributed.protocol import METHODS, SMALL_BYTES, Epoch, decode_leaves, encode_leaves, flatten

# The protocol of a server, in orders that no worker takes on purpose.
from hookline.distributed.server.pending_commits import REQUEST_LAG_SECS, UNDECIDED_SECS
from hookline.distributed.server.server import Decisions
from hookline.distributed.server.server_state import Apply, Put
from hookline.distributed.server.variable_owner import (
    ASK_SECS,
    MAX_WAIT_SECS,
    SNAPSHOT_SECS,
    STAGED_SECS,
    VariableOwner,
)
from hookline.distributed.worker.updates import portable
from hookline.testing import FakeClock

WORKERS = 3


def mixed(old, value):
    """No two different sequences of values give the same number, in practice."""
    return old * jnp.uint32(31) + value


def held(values, name):
    """The one array of a variable among values that have travelled."""
    (leaf,) = decode_leaves(values[name])
    return leaf


class Servers:
    """Servers with one variable `v<i>` each, and the global step on server 0."""

    def __init__(self, count: int, *, eager: bool = False):
        self.transport = DirectTransport([ParameterServer() for _ in range(count)], eager=eager)
        self.count = count
        self.epochs = 0
        with hl.Graph().as_default():
            value = hl.placeholder(jnp.uint32, (), name="value")
            variables = [hl.Variable(np.uint32(0), name=f"v{i}") for i in range(count)]
            step = hl.train.create_global_step()
            self.updates = [portable(hl.update(v, mixed, value, name=f"mix{v.op.name}").op) for v in variables]
            self.count_step = portable(step.assign_add(1).op)
            self.jump_step = portable(step.assign(hl.op(lambda x: x.astype(int))(value)).op)
        self.begin()

    def begin(self):
        self.epochs += 1
        incarnations = tuple(self.call(server, "status").incarnation for server in range(self.count))
        owners = {"global_step": 0} | {f"v{i}": i for i in range(self.count)}
        self.epoch = Epoch(f"epoch{self.epochs}", incarnations, "global_step", {}, {}, owners)
        self.tickets = [(incarnation, self.epoch.name) for incarnation in incarnations]
        for server in range(self.count):
            self.call(server, "begin", self.epoch, server, self.transport.peer_client())
        self.call(0, "register", self.tickets[0], [self.updates[0], self.count_step, self.jump_step])
        for server in range(1, self.count):
            self.call(server, "register", self.tickets[server], [self.updates[server]])
        zeros = {server: [Put(f"v{server}", *flatten(np.uint32(0)))] for server in range(self.count)}
        zeros[0].append(Put("global_step", *flatten(np.int32(0))))
        for server in range(1, self.count):
            self.call(server, "stage", self.tickets[server], ("chief", self.epochs), zeros[server])
        self.commit(("chief", self.epochs), zeros[0], owners=range(1, self.count))

    def call(self, server, method, *args):
        return self.transport.call(server, method, *args).get()

    def entry(self, server, value):
        return Apply(f"mixv{server}", [(encode_leaves([np.uint32(value)]), None)])

    def stage(self, transaction, server, value):
        """The reply comes with the decision, and has the value of the server."""
        entries = [self.entry(server, value)]
        return self.transport.call(server, "stage", self.tickets[server], transaction, entries, [f"v{server}"])

    def ask(self, transaction, entries, last_step=None, pull=(), owners=()):
        """Asks for a transaction; the reply comes when all owners have voted."""
        return self.transport.call(0, "commit", self.tickets[0], transaction, entries, last_step, pull, list(owners))

    def commit(self, *args, **options):
        reply = self.ask(*args, **options)
        self.transport.deliver_all()
        return reply.get()

    def train(self, transaction, value=1, **options):
        return self.commit(transaction, [self.entry(0, value), Apply("global_step/assign_add", [])], **options)

    def others_train(self, number, owner=1):
        """Makes an owner check its old parts, as it does when another one arrives."""
        self.stage(("other", number), owner, 6)
        assert self.train(("other", number), 6, owners=[owner]).accepted

    def value(self, server):
        return int(held(self.call(server, "pull", self.tickets[server], [f"v{server}"]).values, f"v{server}"))


@pytest.fixture
def servers():
    return Servers(2)


@pytest.mark.parametrize("method", ["_decisions_of", "dispatch", "__init__", "nonsense"])
def test_only_remote_methods_can_be_called(method):
    servers = Servers(1)
    with pytest.raises(errors.UnimplementedError, match="no method"):
        servers.call(0, method, RuntimeError("forged"))
    assert servers.call(0, "status").epoch is not None


def test_all_public_server_methods_can_be_called():
    public = {
        name for part in (ParameterServer, VariableOwner, Decisions) for name in vars(part) if not name.startswith("_")
    }
    among_themselves = {"check", "waited", "could_not_apply", "break_off", "give_up", "notify", "held_values", "end"}
    assert public - {"dispatch", "answer"} - among_themselves == METHODS


@pytest.mark.parametrize("restart", [0, 1])
def test_server_that_restarted_empty_answers_only_aborted(servers, restart):
    servers.transport.servers[restart] = ParameterServer()

    for method, args in (
        ("pull", (["v0"],)),
        ("stage", (("a", 1), [])),
        ("outcome", (("a", 1), [])),
        ("end_training", ()),
    ):
        with pytest.raises(errors.AbortedError, match="came back empty"):
            servers.call(restart, method, servers.tickets[restart], *args)
    with pytest.raises(errors.AbortedError, match="came back empty"):
        servers.call(restart, "wait_delivered", servers.tickets[restart], 9, 1.0)


def test_update_computed_before_a_restore_is_refused():
    servers = Servers(1)
    old = servers.tickets[0]
    servers.begin()

    with pytest.raises(errors.AbortedError, match="initialised or restored again"):
        servers.call(0, "commit", old, ("a", 1), [servers.entry(0, 1)])

    assert servers.value(0) == 0


def test_error_of_an_update_function_reaches_both_callers_and_changes_nothing(servers):
    v = hl.Variable(np.zeros(2, np.float32), name="v1")
    bad = portable(hl.update(v, lambda old, x: old + x, hl.placeholder(jnp.float32, None), name="bad").op)
    servers.call(1, "register", servers.tickets[1], [bad])

    with pytest.raises(ValueError, match="v1"):
        servers.call(1, "stage", servers.tickets[1], ("a", 1), [Apply("bad", [(encode_leaves([np.ones(3)]), None)])])
    with pytest.raises(ValueError, match="v1"):
        servers.train(("a", 1), owners=[1])

    assert servers.value(0) == 0
    assert servers.train(("a", 2)).step == 1


def test_global_step_is_assigned_only_below_the_limit():
    servers = Servers(1)
    jump = [servers.entry(0, 1), Apply("global_step/assign", [(encode_leaves([np.int32(9)]), None)])]

    assert servers.commit(("a", 1), jump, last_step=8).step == 9
    before = servers.value(0)
    assert not servers.commit(("a", 2), jump, last_step=9).accepted
    assert servers.value(0) == before


def in_thread(server, call):
    """Starts a call that waits, and returns its thread and where its outcome comes once it does wait."""
    outcome, before = [], server._waiting.count

    def run():
        try:
            outcome.append(call())
        except errors.AbortedError:
            outcome.append("aborted")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while server._waiting.count == before and not outcome and thread.is_alive():
        clock.sleep(0.001)
    return thread, outcome


def test_wait_for_a_step_ends_with_the_step_and_with_a_new_epoch():
    servers = Servers(1)
    server, ticket = servers.transport.servers[0], servers.tickets[0]
    near, near_outcome = in_thread(server, lambda: server.dispatch(("wait_for_step", ticket, 1, 60.0)))
    far, far_outcome = in_thread(server, lambda: server.dispatch(("wait_for_step", ticket, 5, 60.0)))

    servers.train(("a", 1))
    near.join()
    assert (near_outcome, far_outcome) == ([(1, False)], [])
    servers.begin()
    far.join()
    assert far_outcome == ["aborted"]


def test_wait_ends_at_its_timeout_or_the_end_of_training():
    servers = Servers(1)
    with FakeClock(autojump_secs=0.01):
        assert servers.call(0, "wait_for_step", servers.tickets[0], 1, 1.0) == (0, False)
    servers.call(0, "end_training", servers.tickets[0])
    assert servers.call(0, "wait_for_step", servers.tickets[0], 1, 1000.0) == (0, True)


def test_wait_on_a_server_has_an_upper_limit(servers, monkeypatch):
    live = servers.transport.servers
    with FakeClock(autojump_secs=0.01) as fake:
        start = fake.monotonic()
        assert live[0].dispatch(("wait_for_step", servers.tickets[0], 10, 1e9)) == (0, False)
        assert fake.monotonic() - start <= MAX_WAIT_SECS
    monkeypatch.setattr("hookline.distributed.server.server.UNDECIDED_SECS", 0.05)
    with pytest.raises(errors.UnavailableError, match="server 1 has received no decision"):
        live[1].answer(("stage", servers.tickets[1], ("a", 1), [servers.entry(1, 5)], ["v1"]))


def test_decision_at_the_timeout_of_its_wait_is_the_answer(monkeypatch):
    class Late(Future):
        def result(self, timeout=None):
            if timeout is not None:
                self.set_result("accepted")
                raise TimeoutError
            return super().result()

    server = ParameterServer()
    monkeypatch.setattr(server, "dispatch", lambda message: Late())
    assert server.answer(("commit",)) == "accepted"


def test_transaction_is_decided_when_all_owners_have_voted():
    servers = Servers(3)
    replies = [servers.stage(("a", 1), 1, 5)]
    asked = servers.ask(("a", 1), [servers.entry(0, 4)], owners=[1, 2])
    servers.transport.deliver_all()
    assert not asked.done()
    assert not replies[0].done()

    replies.append(servers.stage(("a", 1), 2, 6))
    assert not asked.done()
    servers.transport.deliver_all()

    assert asked.get().accepted
    assert [int(held(replies[i].get().values, f"v{i + 1}")) for i in range(2)] == [5, 6]
    assert [servers.value(server) for server in range(3)] == [4, 5, 6]


def test_transaction_without_its_parts_blocks_no_other(servers):
    asked = servers.ask(("a", 1), [servers.entry(0, 4)], owners=[1])
    servers.stage(("b", 1), 1, 6)

    assert servers.train(("b", 1), 5, owners=[1]).step == 1
    assert (servers.value(0), servers.value(1)) == (5, 6)

    servers.stage(("a", 1), 1, 7)
    servers.transport.deliver_all()
    assert asked.get().accepted
    assert (servers.value(0), servers.value(1)) == (5 * 31 + 4, 6 * 31 + 7)


def test_given_up_transaction_is_refused_and_its_delayed_parts_are_dropped(servers):
    asked = servers.ask(("a", 1), [servers.entry(0, 4)], owners=[1])

    assert not servers.call(0, "outcome", servers.tickets[0], ("a", 1), [1]).accepted
    assert not asked.get().accepted
    late = servers.stage(("a", 1), 1, 5)
    servers.transport.deliver_all()

    assert int(held(late.get().values, "v1")) == 0
    assert not servers.transport.servers[1]._decisions.owner._staged
    with pytest.raises(errors.InternalError, match="given up"):
        servers.train(("a", 1), owners=[1])
    assert servers.value(0) == 0


def test_delayed_parts_of_a_refused_transaction_are_dropped(servers):
    servers.call(0, "end_training", servers.tickets[0])
    with pytest.raises(errors.OutOfRangeError):
        servers.ask(("a", 1), [servers.entry(0, 4)], owners=[1]).get()
    servers.transport.deliver_all()

    late = servers.stage(("a", 1), 1, 5)
    servers.transport.deliver_all()
    assert int(held(late.get().values, "v1")) == 0


def test_repeated_request_or_part_is_refused_and_the_first_counts(servers):
    first = servers.ask(("a", 1), [servers.entry(0, 4)], owners=[1])
    with pytest.raises(errors.InternalError, match="sent twice"):
        servers.ask(("a", 1), [servers.entry(0, 4)], owners=[1]).get()
    part = servers.stage(("a", 1), 1, 5)
    with pytest.raises(errors.InternalError, match="sent twice"):
        servers.stage(("a", 1), 1, 5).get()
    servers.transport.deliver_all()
    assert first.get().accepted
    assert int(held(part.get().values, "v1")) == 5

    again = servers.stage(("a", 1), 1, 5)
    servers.transport.deliver_all()
    assert int(held(again.get().values, "v1")) == 5
    assert not servers.transport.servers[1]._decisions.owner._staged


def test_silent_sender_between_its_parts_is_excluded(servers):
    with FakeClock() as fake:
        servers.stage(("silent", 1), 1, 5)
        for number in range(2):
            assert ("silent", 1) in servers.transport.servers[1]._decisions.owner._staged
            fake.advance(STAGED_SECS / 2 + 1)
            servers.others_train(number)

        assert not servers.transport.servers[1]._decisions.owner._staged
        with pytest.raises(errors.AbortedError, match="was excluded"):
            servers.train(("silent", 1), 5, owners=[1])
        # Its later messages are dropped at once.
        servers.stage(("silent", 2), 1, 5)
        servers.transport.deliver_all()

    assert servers.value(1) == 6 * 31 + 6
    assert not servers.transport.servers[1]._decisions.owner._staged


def test_worker_with_a_pending_request_waits_for_a_busy_owner():
    servers = Servers(3)
    with FakeClock() as fake:
        servers.stage(("patient", 1), 1, 5)
        asked = servers.ask(("patient", 1), [servers.entry(0, 4)], owners=[1, 2])
        # Server 2 is compiling; the part waits there, too.
        for number in range(8):
            fake.advance(ASK_SECS + 1)
            servers.others_train(number)
        servers.stage(("patient", 1), 2, 7)
        servers.transport.deliver_all()

    assert asked.get().accepted
    assert [servers.call(i, "pull", servers.tickets[i], [f"v{i}"]).transactions for i in (1, 2)] == [10, 2]
    assert servers.value(2) == 7


def test_request_read_after_the_owners_question_is_not_too_late(servers):
    with FakeClock() as fake:
        servers.stage(("patient", 1), 1, 5)
        # The step server compiles, and then reads the pending messages, the owner's questions first.
        for number in range(3):
            fake.advance(ASK_SECS + 1)
            servers.stage(("other", number), 1, 6)
        servers.transport.deliver_all()
        fake.advance(REQUEST_LAG_SECS / 2)
        assert servers.train(("patient", 1), 5, owners=[1]).accepted

    assert servers.value(1) == 5


def test_lost_sender_of_missing_parts_is_excluded_despite_its_request():
    servers = Servers(3)
    with FakeClock() as fake:
        servers.stage(("gone", 1), 1, 5)
        asked = servers.ask(("gone", 1), [servers.entry(0, 4)], owners=[1, 2])
        for number in range(int(UNDECIDED_SECS / ASK_SECS) + 1):
            fake.advance(ASK_SECS)
            servers.others_train(number)

    with pytest.raises(errors.AbortedError, match="was excluded"):
        asked.get()
    assert not servers.transport.servers[1]._decisions.owner._staged


def test_request_without_parts_is_dropped_in_time(servers):
    with FakeClock() as fake:
        asked = servers.ask(("silent", 1), [servers.entry(0, 4)], owners=[1])
        fake.advance(UNDECIDED_SECS + 1)
        assert servers.train(("other", 1), 6).step == 1
    with pytest.raises(errors.AbortedError, match="was excluded"):
        asked.get()
    assert servers.value(0) == 6


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_server_is_reported_to_those_that_wait_for_a_decision(lost):
    servers = Servers(3)
    part = servers.stage(("a", 1), 2, 5)
    asked = servers.ask(("a", 1), [servers.entry(0, 4)], owners=[1, 2])
    # As the connection to it does.
    for server in {0, 2} - {lost}:
        live = servers.transport.servers[server]
        live._decisions.owner._note_failure(errors.UnavailableError(None, None, f"server {lost} cannot be reached"))

    for reply, server in ((part, 2), (asked, 0)):
        if server != lost:
            with pytest.raises(errors.AbortedError, match="cannot be reached"):
                reply.get()


def test_owner_learns_of_a_lost_server_from_the_step_server():
    servers = Servers(3)
    part = servers.stage(("a", 1), 1, 5)
    asked = servers.ask(("a", 1), [servers.entry(0, 4)], owners=[1, 2])
    step_server = servers.transport.servers[0]
    step_server._decisions.owner._note_failure(errors.UnavailableError(None, None, "server 2 cannot be reached"))
    servers.transport.deliver_all()

    for reply in (asked, part):
        assert reply.done()
        with pytest.raises(errors.AbortedError, match="server 2 cannot be reached"):
            reply.get()
    assert servers.call(1, "status").epoch is None


@pytest.mark.parametrize("server", [0, 1])
def test_restore_is_reported_to_those_that_wait_for_a_decision(servers, server):
    asked, part = servers.ask(("a", 1), [servers.entry(0, 4)], owners=[1]), servers.stage(("a", 1), 1, 5)
    servers.begin()

    with pytest.raises(errors.AbortedError, match="restored again"):
        (asked, part)[server].get()


def test_accepted_part_that_is_lost_ends_the_epoch(servers):
    servers.stage(("a", 1), 1, 5)
    servers.transport.deliver_all()
    servers.transport.servers[1] = ParameterServer()
    assert servers.train(("a", 1), 5, owners=[1]).accepted

    with pytest.raises(errors.AbortedError, match="could not apply"):
        servers.train(("a", 2))
    assert servers.call(0, "status").epoch is None


def test_first_error_of_a_broken_server_is_named_by_all_servers(monkeypatch, caplog):
    servers = Servers(3)
    state = servers.transport.servers[0]._decisions.owner.state

    def fail(*args):
        state.has_lost_values = True
        raise RuntimeError("out of memory")

    monkeypatch.setattr(state, "apply", fail)
    for owner in (1, 2):
        servers.stage(("a", 1), owner, 5)
    with pytest.raises(RuntimeError, match="out of memory"):
        servers.train(("a", 1), owners=[1, 2])
    # The others notify the step server that they could not carry out its message.
    servers.transport.deliver_all()

    for server in range(3):
        with pytest.raises(errors.AbortedError) as raised:
            servers.call(server, "pull", servers.tickets[server], [])
        assert str(raised.value) == (
            "Parameter server 0 could not apply an accepted update (RuntimeError: out of memory). The session is lost; "
            "a recoverable one is created again."
        )
    (logged,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Parameter server 0 is broken:")]
    assert logged == "Parameter server 0 is broken: RuntimeError: out of memory"


@pytest.mark.parametrize("count", [1, SMALL_BYTES])
def test_pulled_values_do_not_change_with_later_updates(count):
    servers = Servers(1)
    double = portable(hl.update(hl.Variable(np.ones(count), name="v"), lambda old: old * 2, name="double").op)
    servers.call(0, "register", servers.tickets[0], [double])
    servers.commit(("chief", 2), [Put("v", *flatten(np.ones(count)))])
    live = servers.transport.servers[0]
    before = held(live.dispatch(("pull", servers.tickets[0], ["v"])).values, "v")

    for number in range(3):
        servers.commit(("a", number), [Apply("double", [])])

    assert np.array_equal(before, np.ones(count))
    assert held(live.dispatch(("pull", servers.tickets[0], ["v"])).values, "v")[0] == 8


class Sent:
    """A transaction: its parts, sent in any order, and its replies."""

    def __init__(self, name, values, last_step):
        self.name, self.values, self.last_step = name, values, last_step
        self.owners = [server for server in values if server != 0]
        self.unsent = [0, *self.owners]
        self.asked = None
        self.parts = {}
        self.since = None
        self.decided = False

    def complete(self):
        return not self.unsent


class Protocol(RuleBasedStateMachine):
    """Workers that send, give up and die at any moment, and messages between servers that cross."""

    @initialize(count=st.integers(1, 3))
    def start(self, count):
        self.contexts = contextlib.ExitStack()
        self.clock = self.contexts.enter_context(FakeClock())
        # Compiling would take most of the time, and has tests of its own.
        self.contexts.enter_context(jax.disable_jit())
        self.servers = Servers(count)
        self.senders = [f"w{i}.0" for i in range(WORKERS)]
        self.lives = 0
        self.fresh()

    def fresh(self):
        self.accepted = []
        self.open = {}
        self.left = []
        self.cuts = []
        self.out = set()
        self.sealed = self.lost = False

    def teardown(self):
        if hasattr(self, "clock"):
            if not self.lost:
                self.deliver_pending()
            self.contexts.close()

    def expected(self, server, n=None):
        """A server's value after the first `n` accepted transactions."""
        return self.after([t.values[server] for t in self.accepted[:n] if server in t.values])

    def after(self, values):
        state = 0
        for value in values:
            state = (state * 31 + value) & 0xFFFFFFFF
        return state

    workers = st.integers(0, WORKERS - 1)

    parts = st.dictionaries(st.integers(0, 2), st.integers(1, 99), min_size=1)

    @rule(worker=workers, values=parts, room=st.sampled_from([None, None, None, 2, 1, 0]), reach=st.integers(0, 4))
    def begin(self, worker, values, room, reach):
        if worker in self.open or self.lost:
            return
        values = {server: value for server, value in values.items() if server < self.servers.count}
        self.lives += 1
        last_step = None if room is None else len(self.accepted) + room
        self.open[worker] = Sent((self.senders[worker], self.lives), values, last_step)
        for _ in range(reach):
            self.send(worker, reach)

    @rule(worker=workers, values=parts, told=st.integers(0, 2))
    def train(self, worker, values, told):
        """Runs a whole transaction; its owners' votes arrive at once, unless other messages are pending."""
        if worker in self.open or self.lost:
            return
        posted = self.servers.transport.posted
        before = len(posted)
        self.begin(worker, values, None, 4)
        acks = [posted.pop() for _ in range(len(posted) - before)]
        while acks and told:
            acks.pop()()
            self.look()
            told -= 1
        posted.extend(acks)

    @rule(worker=workers, busy=st.integers(1, 2))
    def train_while_an_owner_is_busy(self, worker, busy):
        """All is on its way, and one owner does not read its part yet."""
        if worker in self.open or self.lost or self.servers.count < 3:
            return
        self.begin(worker, {0: 1, 1: 1, 2: 1}, None, 0)
        sent = self.open[worker]
        for server in (1, 2, 0):
            if server != busy and not sent.decided:
                sent.unsent.remove(server)
                self.send_to(sent, server)

    @rule(worker=workers, which=st.integers(0, 2))
    def send(self, worker, which):
        """One message of a transaction; the worker sends them at once, but they travel apart."""
        if worker in self.open and self.open[worker].unsent and not self.lost:
            sent = self.open[worker]
            self.send_to(sent, sent.unsent.pop(which % len(sent.unsent)))

    def send_to(self, sent, server):
        if sent.since is None:
            sent.since = self.clock.monotonic()
        if server != 0:
            sent.parts[server] = self.servers.stage(sent.name, server, sent.values[server])
            return
        entries = [Apply("global_step/assign_add", [])]
        if 0 in sent.values:
            entries.insert(0, self.servers.entry(0, sent.values[0]))
        sent.asked = self.servers.ask(sent.name, entries, sent.last_step, owners=sent.owners)
        self.look()

    def look(self):
        """Takes the decisions that have come: after each message there is at most one."""
        self.see_who_is_out()
        for sent in [*self.open.values(), *self.left]:
            if sent.asked is None or sent.decided or not sent.asked.done():
                continue
            sent.decided = True
            if self.sealed or sent.name[0] in self.out:
                with pytest.raises(errors.OpError):
                    sent.asked.get()
                continue
            reply = sent.asked.get()
            if sent.complete():
                assert reply.accepted == (sent.last_step is None or len(self.accepted) < sent.last_step)
            assert reply.accepted <= sent.complete(), "it was accepted without all of its parts"
            if reply.accepted:
                self.accepted.append(sent)
            assert reply.step == len(self.accepted)
        for worker, sent in list(self.open.items()):
            if sent.decided:
                self.left.append(self.open.pop(worker))
                while sent.unsent:
                    # It was refused early, while these were under way.
                    self.send_to(sent, sent.unsent.pop())

    def see_who_is_out(self):
        """A sender is excluded only if its request was missing for long, or one of its parts for very long."""
        out = self.servers.transport.servers[0]._decisions._senders._excluded
        for sent in [*self.open.values(), *self.left]:
            if sent.name[0] in out - self.out and not sent.decided and sent.since is not None:
                limit = STAGED_SECS if sent.asked is None else UNDECIDED_SECS
                assert self.clock.monotonic() - sent.since > limit
        self.out |= out

    @rule(worker=workers)
    def die(self, worker):
        """Its sent messages stay, the others never come; it returns as another sender."""
        if worker in self.open:
            self.left.append(self.open.pop(worker))
        self.lives += 1
        self.senders[worker] = f"w{worker}.{self.lives}"

    @rule(worker=workers, late=st.booleans())
    def give_up(self, worker, late):
        """Asks for the outcome; messages under way may arrive afterwards."""
        if worker not in self.open or self.lost:
            return
        sent = self.open.pop(worker)
        self.left.append(sent)
        outcome = self.servers.call(0, "outcome", self.servers.tickets[0], sent.name, sent.owners)
        assert not outcome.accepted
        if sent.asked is not None:
            assert not sent.asked.get().accepted
        sent.decided = True
        unsent, sent.unsent = sent.unsent, []
        for server in unsent if late else ():
            self.send_to(sent, server)

    @rule(which=st.integers(0, 50), part=st.integers(0, 2))
    def send_again(self, which, part):
        """As over a connection that came back: nothing of it has an effect."""
        if not self.left or self.lost:
            return
        sent = self.left[which % len(self.left)]
        if part == 0 and sent.asked is not None:
            with pytest.raises(errors.OpError):
                self.servers.ask(sent.name, [], owners=sent.owners).get()
        elif part in sent.parts and sent.decided:
            self.servers.stage(sent.name, part, sent.values[part])

    @rule(which=st.integers(0, 50))
    def deliver(self, which):
        posted = self.servers.transport.posted
        if posted:
            posted.rotate(-(which % len(posted)))
            posted.popleft()()
            if not self.lost:
                self.look()

    @rule()
    def snapshot(self):
        if self.lost:
            return
        servers = self.servers
        name = f"cut{len(self.cuts)}"
        names = {server: [f"v{server}"] for server in range(servers.count)}
        cut = servers.call(0, "begin_snapshot", servers.tickets[0], name, names)
        assert int(held(cut.values, "v0")) == self.expected(0)
        self.cuts.append((name, len(self.accepted), self.clock.monotonic()))

    @rule()
    def deliver_pending(self):
        """Delivers all messages: transactions are decided and applied, answers and snapshots have the right values."""
        if self.lost:
            return
        servers = self.servers
        while servers.transport.posted:
            self.deliver(0)
        assert all(sent.decided for sent in [*self.open.values(), *self.left] if sent.complete())
        for server in range(servers.count):
            assert servers.value(server) == self.expected(server)
        waiting = {sent.name for sent in [*self.open.values(), *self.left] if not sent.decided}
        for server in range(1, servers.count):
            assert set(servers.transport.servers[server]._decisions.owner._staged) <= waiting
        for sent in self.left:
            for server, part in sent.parts.items():
                if sent.decided:
                    self.check_answer(sent, server, part.get())
        for name, n, since in self.cuts:
            if self.clock.monotonic() - since > SNAPSHOT_SECS:
                continue
            for server in range(1, servers.count):
                pulled = servers.call(server, "collect", servers.tickets[server], name, 0.0)
                assert int(held(pulled, f"v{server}")) == self.expected(server, n)
        self.cuts.clear()

    def check_answer(self, sent, server, pulled):
        """The values with an answer are those after a number of transactions, its own among them."""
        reached = [other for other in self.accepted if server in other.values]
        # The first one of all set the variables.
        count = pulled.transactions - 1
        assert int(held(pulled.values, f"v{server}")) == self.after([t.values[server] for t in reached[:count]])
        assert sent not in reached or sent in reached[:count]

    @rule(luck=st.integers(0, 9))
    def seal(self, luck):
        if luck == 9 and not self.lost:
            self.servers.call(0, "end_training", self.servers.tickets[0])
            self.sealed = True

    @rule(server=st.integers(0, 2), luck=st.integers(0, 9))
    def restart(self, server, luck):
        if luck == 9 and server < self.servers.count:
            self.servers.transport.servers[server] = ParameterServer()
            self.lost = True

    @precondition(lambda self: self.lost)
    @rule()
    def restore(self):
        """Messages under way belong to the previous epoch and may arrive at any time."""
        left = list(self.servers.transport.posted)
        self.servers.transport.posted.clear()
        self.servers.begin()
        self.servers.transport.posted.extend(left)
        self.fresh()

    @rule(secs=st.sampled_from([REQUEST_LAG_SECS, ASK_SECS + 1, STAGED_SECS + 1]))
    def time_passes(self, secs):
        """Owners may be busy in it, and workers silent."""
        self.clock.advance(secs)

    @rule(worker=workers, luck=st.integers(0, 2))
    def everybody_else_is_silent_for_long(self, worker, luck):
        """Excludes senders without a request; a sender whose request has arrived waits for its other parts."""
        if luck != 2 or self.lost or self.sealed or self.servers.count == 1:
            return
        self.deliver_pending()
        self.die(worker)
        silent = [sent for sent in [*self.open.values(), *self.left] if sent.parts and not sent.decided]
        gone = {sent.name[0] for sent in silent if sent.asked is None}
        for _ in range(2):
            self.clock.advance(ASK_SECS + 1)
            self.lives += 1
            transaction = (self.senders[worker], self.lives)
            for server in range(1, self.servers.count):
                self.servers.stage(transaction, server, 1)
            self.servers.call(0, "outcome", self.servers.tickets[0], transaction, range(1, self.servers.count))
            self.deliver_pending()
        assert gone <= self.out
        for server in self.servers.transport.servers:
            assert {sender for sender, _ in server._decisions.owner._staged} <= {sent.name[0] for sent in silent} - gone

    @invariant()
    def the_global_step_counts_accepted_updates(self):
        if hasattr(self, "servers") and not self.lost:
            assert self.servers.call(0, "status").step == len(self.accepted)
            assert self.servers.value(0) == self.expected(0)


Protocol.TestCase.settings = settings(
    max_examples=3 * settings.default.max_examples // 2, stateful_step_count=50, suppress_health_check=list(HealthCheck)
)
TestProtocol = Protocol.TestCase


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("pull_after", (["v1"], 0, 9.0)),
        ("collect", ("begin_snapshot", 9.0)),
        ("wait_delivered", (0, 9.0)),
        ("wait_for_step", (0, 9.0)),
    ],
)
def test_call_that_waited_over_the_end_of_an_epoch_is_aborted(servers, monkeypatch, method, args):
    """The server starts again between the end of the wait and the read of its result."""
    servers.call(0, "begin_snapshot", servers.tickets[0], "begin_snapshot", {1: ["v1"]})
    servers.transport.deliver_all()
    owner, ticket = servers.transport.servers[1]._decisions.owner, servers.tickets[1]
    check, checks = VariableOwner.check, []

    def check_and_lose(self):
        check(self)
        if self is owner:
            checks.append(self)
            if len(checks) == 2:  # The first one is before the wait.
                servers.begin()

    monkeypatch.setattr(VariableOwner, "check", check_and_lose)
    with pytest.raises(errors.AbortedError, match="restored again"):
        servers.transport.call(1, method, ticket, *args).get()


def test_uncollected_snapshot_values_are_dropped(servers):
    with FakeClock() as fake:
        for number in range(20):
            servers.call(0, "begin_snapshot", servers.tickets[0], f"cut{number}", {1: ["v1"]})
            servers.transport.deliver_all()
            fake.advance(SNAPSHOT_SECS / 4)
        assert len(servers.transport.servers[1]._decisions.owner._snapshots) <= 5
        assert servers.call(1, "collect", servers.tickets[1], "cut19", 0.0)["v1"]


def test_staged_part_is_dropped_when_its_sender_continues_without_it(servers):
    with FakeClock() as fake:
        servers.stage(("a", 1), 1, 5)
        servers.train(("a", 2), 7)
        fake.advance(STAGED_SECS + 1)
        servers.stage(("b", 1), 1, 9)
        servers.transport.deliver_all()
        assert set(servers.transport.servers[1]._decisions.owner._staged) == {("b", 1)}
        servers.train(("a", 3), 7)


def test_random_key_and_bfloat16_are_stored_on_a_server():
    servers = Servers(1)
    key = hl.Variable(lambda: jax.random.key(1), name="key", trainable=False)
    half = hl.Variable(jnp.ones(3, jnp.bfloat16), name="half")
    split = portable(hl.update(key, lambda key: jax.random.split(key)[0], name="split").op)
    double = portable(hl.update(half, lambda x: x * 2, name="double").op)
    servers.call(0, "register", servers.tickets[0], [split, double])
    puts = [Put("key", *flatten(jax.random.key(1))), Put("half", *flatten(jnp.ones(3, jnp.bfloat16)))]
    servers.commit(("chief", 2), puts)

    reply = servers.commit(("a", 1), [Apply("split", []), Apply("double", [])], pull=["key", "half"])

    assert held(reply.values, "half").dtype == jnp.bfloat16
    key = jax.random.key_data(held(reply.values, "key"))
    assert np.array_equal(key, jax.random.key_data(jax.random.split(jax.random.key(1))[0]))
