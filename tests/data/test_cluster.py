"""Data of workers whose variables are on parameter servers: each reads its own part, and continues where it was."""

from __future__ import annotations

import numpy as np
import pytest
from tests.stand_ins import DirectTransport

import hookline as hl
from hookline import errors
from hookline.distributed import ParameterServer, RemoteStore
from hookline.testing import FakeClock

BATCHES = [1, 2, 4, 8, 16, 32]


class Unanswered:
    def get(self):
        raise errors.UnavailableError(None, None, "No answer in time.")


class Network(DirectTransport):
    """Two servers, and a network that loses answers on request."""

    def __init__(self):
        super().__init__([ParameterServer(), ParameterServer()])
        self.loses = set()

    def call(self, server, method, *args):
        answer = super().call(server, method, *args)
        if method not in self.loses:
            return answer
        self.loses.remove(method)
        return Unanswered()

    def open_store(self, graph):
        return RemoteStore(graph, self)

    def hooks(self, summary_dir):
        return []


class FailOnce(hl.train.SessionRunHook):
    """Loses the session in the `after_run` of one step."""

    def __init__(self, at):
        self.at = at

    def after_run(self, run_context, run_values):
        if run_context.session.global_step == self.at:
            self.at = None
            raise errors.AbortedError(None, None, "lost")


@pytest.fixture(autouse=True)
def clock():
    with FakeClock() as fake:
        yield fake


def job(hooks=(), **options):
    network = Network()
    batch = hl.data.iterator([np.int32(number) for number in BATCHES])
    total = hl.Variable(np.int32(0), name="total")
    step = hl.train.create_global_step()
    train = hl.group(total.assign_add(batch), step.assign_add(1))
    creator = hl.train.ChiefSessionCreator(master=network, **options)
    return network, train, total, hl.train.MonitoredSession(creator, hooks=hooks)


def until_the_end(session, train):
    with pytest.raises(errors.OutOfRangeError, match="have ended"):
        [session.run(train) for _ in range(2 * len(BATCHES))]


@pytest.mark.parametrize("after", [0, 2, 5])
def test_batch_is_used_once_though_the_answer_is_lost(after):
    network, train, total, session = job()
    with session:
        for _ in range(after):
            session.run(train)
        network.loses.add("commit")
        until_the_end(session, train)
        assert int(session.raw_session().run(total)) == sum(BATCHES)


@pytest.mark.parametrize("at", [1, 3, 6])
def test_session_lost_after_its_run_continues_with_the_unused_batch(at):
    # The run is tried again, with the next batch, and its update is found to be applied: that batch is still to come.
    _, train, total, session = job([FailOnce(at)])
    with session:
        until_the_end(session, train)
        assert int(session.raw_session().run(total)) == sum(BATCHES)


def test_restored_chief_seeks_to_the_position_of_the_checkpoint(tmp_path):
    _, train, _, session = job([hl.train.StopAtStepHook(last_step=4)], checkpoint_dir=str(tmp_path))
    saver = hl.train.Saver()
    with session:
        for _ in range(2):
            session.run(train)
        saver.save(session, f"{tmp_path}/model.ckpt", 2)
        session.run(train)
    with hl.Graph().as_default():
        _, train, total, session = job(checkpoint_dir=str(tmp_path))
        with session:
            until_the_end(session, train)
            assert int(session.raw_session().run(total)) == sum(BATCHES)
