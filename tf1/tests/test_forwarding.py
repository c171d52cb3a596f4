from __future__ import annotations

import pytest
from tests.hooks.test_stop_at_step import Iterations

import hookline_tf1 as tf


@pytest.mark.parametrize("begins_at", [0, 3, 5])
def test_forwarded_hook_requests_a_stop_without_a_limit_of_the_session(begins_at):
    train_op = tf.assign_add(tf.train.get_or_create_global_step(), 1)
    outer = Iterations(tf.train.StopAtStepHook(last_step=3))
    scaffold = tf.train.Scaffold(init_fn=lambda scaffold, session: session.load({"global_step": begins_at}))
    hooks = [outer, tf.train.StopAtStepHook(last_step=8)]
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)
        assert session.raw_session().global_step == 8
    assert outer.ended_at[0] == max(3, begins_at + 1)
