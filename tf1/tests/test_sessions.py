"""Sessions, tensors, shapes and graphs, as scripts of TF 1.x use them."""

from __future__ import annotations

import numpy as np
import pytest

import hookline as hl
import hookline_tf1 as tf


def test_results_are_numpy_values(sess):
    x = tf.placeholder("float32", [None, 2])
    v = tf.Variable(2.0)

    sess.run(v.initializer)
    total, half, read = sess.run([tf.reduce_sum(x), x / 2, v], {x: [[1, 2]]})

    assert isinstance(total, np.float32)
    assert {total: "can be hashed"}
    assert isinstance(read, np.float32)
    assert isinstance(half, np.ndarray)
    assert half.flags.writeable


def test_feeds_are_cast(sess):
    i = tf.placeholder(tf.int32, [None])

    assert sess.run(i + 1, {i: [1.9, -1.9]}).tolist() == [2, 0]
    assert sess.run(i + 1, {i.name: np.asarray([2.5])}).tolist() == [3]
    with pytest.raises(ValueError, match=r"Cannot feed value of shape \(1, 2\) for Tensor 'Placeholder:0'"):
        sess.run(i, {i: [[1, 2]]})


def test_hooks_of_a_monitored_session_get_numpy_values():
    seen = []
    loss = tf.reduce_sum(tf.Variable([1.0, 2.0]))

    class Look(tf.train.SessionRunHook):
        def before_run(self, run_context):
            return tf.train.SessionRunArgs(loss)

        def after_run(self, run_context, run_values):
            seen.append(type(run_values.results))

    with tf.train.MonitoredTrainingSession(hooks=[Look()]) as sess:
        sess.run(loss)

    assert seen == [np.float32]


def test_default_sessions_are_used():
    v = tf.Variable(1.0)
    with pytest.raises(ValueError, match=r"no default session is registered\. Use `with tf\.Session\(\) as sess:`"):
        v.eval()

    with tf.Session() as sess:
        tf.global_variables_initializer().run()
        assert v.eval() == 1.0
        assert tf.get_default_session() is sess
    shell = tf.InteractiveSession()
    v.initializer.run()
    assert (v * 2).eval() == 2.0
    shell.close()
    assert tf.get_default_session() is None


def test_shapes_compute_like_numbers():
    x = tf.placeholder(tf.float32, [None, 3])
    rows, columns = x.get_shape()

    assert (rows.value, columns.value, int(columns * 2), columns == 3) == (None, 3, 6, True)
    assert x.shape.as_list() == [None, 3]
    assert x.shape == [None, 3]
    assert tf.zeros([columns, 2]).get_shape() == (3, 2)
    with pytest.raises(TypeError, match=r"not known before the run\. Use tf\.shape"):
        int(rows)


def test_open_dimension_may_be_used_as_a_size(sess):
    x = tf.placeholder(tf.float32, [None, 4])
    count = tf.shape(x)[0]
    noise = tf.random_normal(tf.stack([count * 2, 3]))
    halves = tf.reshape(x, [count * 2, -1])
    mean = tf.reduce_sum(x) / tf.cast(count, tf.float32)

    found = sess.run([noise, halves, mean, tf.zeros_like(x), x[: count - 1]], {x: np.ones((5, 4))})

    assert [value.shape for value in found] == [(10, 3), (10, 2), (), (5, 4), (4, 4)]
    assert found[2] == 4.0
    assert noise.shape.as_list() == [None, 3]
    assert halves.shape.as_list() == [None, 2]


def test_open_dimension_beside_a_known_one_is_known():
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [4, 3])

    assert (x - y).shape.as_list() == [4, 3]
    assert tf.concat([x, y], 0).shape.as_list() == [None, 3]


def test_set_shape_refines_the_known_shape():
    x = tf.placeholder(tf.float32)
    x.set_shape([None, 4])

    assert tf.layers.dense(x, 2).shape.as_list() == [None, 2]
    with pytest.raises(ValueError, match="not compatible|incompatible"):
        x.set_shape([2, 5])


def test_random_operations_need_no_variable_and_repeat_in_each_session():
    a, b = tf.random_normal([3]), tf.random_normal([3])
    same = [tf.random_uniform([2], seed=7), tf.random_uniform([2], seed=7)]

    def drawn():
        with tf.Session() as sess:
            return [sess.run([a, b]) for _ in range(2)]

    first = np.asarray(drawn())
    assert (first == np.asarray(drawn())).all()
    assert len({round(float(number), 6) for number in first.ravel()}) == 12
    with tf.Session() as sess:
        one, other = sess.run(same)
    assert (one == other).all()
    assert tf.global_variables() == []


def test_seed_of_the_graph_changes_random_values():
    def drawn(seed):
        with tf.Graph().as_default(), tf.Session() as sess:
            tf.set_random_seed(seed)
            return sess.run(tf.random_normal([4])).tolist()

    assert drawn(1) == drawn(1) != drawn(2)


def test_building_in_a_graph_of_hookline_is_refused():
    with hl.Graph().as_default() as graph:
        with pytest.raises(TypeError, match=r"build inside `with Graph\(\)\.as_default\(\):`"):
            tf.constant([0.0])
        assert graph.get_operations() == []
        with tf.Graph().as_default():
            assert tf.constant([0.0]).get_shape().as_list() == [1]


def test_a_session_refuses_a_graph_of_hookline():
    with pytest.raises(TypeError, match=r"tf\.Session runs a tf\.Graph"):
        tf.Session(graph=hl.Graph())


def test_graph_of_hookline_keeps_its_own_tensors():
    with hl.Graph().as_default():
        x = hl.placeholder("float32", [None, 2])

    assert x.shape == (None, 2)
    assert type(x.shape) is tuple
    assert not hasattr(x.op, "run")


@pytest.mark.parametrize("fetches", [[], (), {}])
def test_an_empty_graph_has_nothing_to_run(sess, fetches):
    with pytest.raises(RuntimeError, match=r"The Session graph is empty\. Add operations to the graph"):
        sess.run(fetches)
    tf.no_op()
    assert sess.run(fetches) == fetches
