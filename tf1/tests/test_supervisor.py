"""Supervisor, as scripts use it: it prepares, restores, saves and summarises."""

from __future__ import annotations

import pytest

import hookline as hl
import hookline_tf1 as tf
from hookline import errors
from hookline.testing import read_events
from hookline_tf1.train import Supervisor


def build():
    weight = hl.Variable(1.0, name="weight")
    step = hl.train.get_or_create_global_step()
    hl.summary.scalar("weight", weight)
    train = hl.group(weight.assign_add(1.0), step.assign_add(1))
    return weight, step, train


def train_with(supervisor, train, runs, **options):
    with supervisor.managed_session(**options) as sess:
        for _ in range(runs):
            if supervisor.should_stop():
                break
            sess.run(train)
        supervisor.saver.save(sess, supervisor.save_path, global_step=supervisor.global_step)


@pytest.mark.parametrize("services", [True, False])
def test_job_resumes_where_it_stopped(tmp_path, services):
    for expected in (3, 6):
        with tf.Graph().as_default():
            weight, step, train = build()
            supervisor = Supervisor(logdir=str(tmp_path), save_model_secs=0, save_summaries_secs=1)
            train_with(supervisor, train, 3, start_standard_services=services)
            with supervisor.managed_session(start_standard_services=False) as sess:
                assert float(sess.run(weight)) == 1.0 + expected
                assert int(sess.run(step)) == expected
            assert not supervisor.coord.should_stop() or supervisor.should_stop()
    assert hl.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-6")
    tags = {value.tag for event in read_events(tmp_path) for value in event.summary.value}
    assert ("weight" in tags) is services


def test_supervisor_threads_save(tmp_path):
    _, _, train = build()
    supervisor = Supervisor(logdir=str(tmp_path), save_model_secs=600, summary_op=None)
    with supervisor.managed_session() as sess:
        sess.run(train)
        supervisor.stop()
    assert hl.train.latest_checkpoint(str(tmp_path)) is not None


def test_end_of_the_data_ends_the_block_and_an_error_leaves_it(tmp_path):
    build()
    supervisor = Supervisor(logdir=None, init_fn=lambda sess: None)
    with supervisor.managed_session():
        raise errors.OutOfRangeError(None, None, "the end")
    assert supervisor.should_stop()
    with pytest.raises(KeyError, match="mine"), supervisor.managed_session():
        raise KeyError("mine")


def test_nothing_is_saved_without_a_saver(tmp_path):
    _, _, train = build()
    supervisor = Supervisor(logdir=str(tmp_path), saver=None, summary_op=None, global_step=None)
    with supervisor.managed_session() as sess:
        sess.run(train)
        supervisor.summary_computed(sess, hl.summary.Summary(), 7)
    assert hl.train.latest_checkpoint(str(tmp_path)) is None
    assert [event.step for event in read_events(tmp_path) if event.HasField("summary")] == [7]


def test_user_function_is_called_at_intervals(tmp_path):
    build()
    supervisor = Supervisor(logdir=None)
    called = []
    with supervisor.managed_session():
        supervisor.loop(None, lambda what: (called.append(what), supervisor.request_stop()), args=("me",))
        supervisor.wait_for_stop()
    assert called[0] == "me"
