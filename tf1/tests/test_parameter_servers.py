"""Runs whose variables are on parameter servers."""

from __future__ import annotations

import pytest
from tests.distributed.targets import Target
from tests.stand_ins import DirectTransport

import hookline_tf1 as tf
from hookline import errors
from hookline.distributed import ParameterServer


def test_index_out_of_bounds_is_an_error_in_the_session_of_its_worker():
    transport = DirectTransport([ParameterServer() for _ in range(2)])
    places = tf.placeholder(tf.int32, [2])
    table = tf.get_variable("table", [5], initializer=tf.zeros_initializer())
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies([tf.scatter_add(table, places, [1.0, 1.0]).op]):
        train = tf.assign_add(step, 1).op
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, places))
    chief, worker = (tf.Session(Target(transport, index)) for index in range(2))
    chief.run(tf.global_variables_initializer())
    worker.run(train, {places: [0, 1]})
    worker.run(train, {places: [0, 7]})
    chief.run(train, {places: [2, 3]})
    with pytest.raises(errors.InvalidArgumentError, match="embedding_lookup"):
        chief.run(loss, {places: [0, -1]})
    # A server ignores a write to an index out of bounds.
    assert chief.run(table).tolist() == [2.0, 1.0, 1.0, 1.0, 0.0]
    with pytest.raises(errors.InvalidArgumentError, match=r"'ScatterAdd' .*: indices\[1\] = 7 is not in \[0, 5\)"):
        worker.close()
    chief.close()
