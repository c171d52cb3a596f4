"""Variables and scopes, as scripts of TF 1.x use them; `make conformance` compares them with TensorFlow's."""

from __future__ import annotations

import numpy as np
import pytest

import hookline as hl
import hookline_tf1 as tf


def test_scopes_name_variables_and_share_them():
    with tf.variable_scope("net"):
        w = tf.get_variable("w", [2, 3])
    with tf.variable_scope("net", reuse=True):
        assert tf.get_variable("w", [2, 3]) is w
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
        assert tf.get_variable("w") is w
        b = tf.get_variable("b", [3], initializer=tf.zeros_initializer())

    assert [v.name for v in tf.trainable_variables("net")] == [w.name, b.name] == ["net/w:0", "net/b:0"]


def test_variable_is_neither_created_twice_nor_shared_by_mistake():
    tf.get_variable("w", [2])

    with pytest.raises(ValueError, match=r"Variable w already exists, disallowed.*Originally defined at .*test_var"):
        tf.get_variable("w", [2])
    with tf.variable_scope("", reuse=True):
        with pytest.raises(ValueError, match="Variable new does not exist"):
            tf.get_variable("new", [2])
        with pytest.raises(ValueError, match=r"specified shape \(3,\) and found shape \(2,\)"):
            tf.get_variable("w", [3])
    with pytest.raises(ValueError, match=r"Shape of a new variable \(open\) must be fully defined"):
        tf.get_variable("open", [None, 2])


def test_scopes_without_a_name_are_numbered_in_each_enclosing_scope():
    for _ in range(2):
        with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
            for _ in range(2):
                with tf.variable_scope(None, default_name="layer"):
                    tf.get_variable("w", [1])

    assert [v.name for v in tf.global_variables()] == ["net/layer/w:0", "net/layer_1/w:0"]


def test_regularizers_add_losses(sess):
    with tf.variable_scope("net", regularizer=lambda w: tf.nn.l2_loss(w)):
        tf.get_variable("w", initializer=np.asarray([2.0, 0.0], "float32"))
        tf.get_variable("b", [1], regularizer=tf.no_regularizer)

    (loss,) = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    sess.run(tf.global_variables_initializer())
    assert sess.run(loss) == 2.0


def test_lists_assignments_and_load_work(sess):
    v = tf.Variable([1.0, 2.0], name="v")

    sess.run(tf.global_variables_initializer())
    assert sess.run(tf.assign(v, [3, 4])).tolist() == [3.0, 4.0]
    v.load([5, 6], sess)
    assert v.eval().tolist() == [5.0, 6.0]
    assert v.assign_add([1, 1]).eval().tolist() == [6.0, 7.0]


def test_template_shares_its_variables():
    def scaled(x, by):
        return x * by * tf.get_variable("w", [], initializer=tf.ones_initializer())

    one, other = (tf.make_template("scale", scaled, by=2.0) for _ in range(2))
    with tf.variable_scope("net"):
        one(3.0)
        one(3.0, by=1.0)
    one(1.0)
    other(1.0)
    early = tf.make_template("early", scaled, create_scope_now_=True, by=1.0)
    with tf.variable_scope("elsewhere"):
        early(early(1.0))

    # As TensorFlow names them.
    assert [v.op.name for v in tf.global_variables()] == ["net/scale/w", "scale/w", "early/w"]
    by_name = tf.make_template("t", lambda name: tf.get_variable(name, []))
    by_name("made")
    with pytest.raises(ValueError, match="no_such"):
        by_name("no_such")


def test_variable_is_evaluated_in_the_session_given_first():
    v, step = tf.Variable([1.0]), tf.train.get_or_create_global_step()
    sess = tf.Session()
    sess.run(tf.global_variables_initializer())

    # Tensors take a feed_dict there, in TensorFlow as here.
    assert [v.eval(sess), v.eval(session=sess), step.eval(sess), (v + 1).eval({v: [2.0]}, sess)] == [
        [1.0],
        [1.0],
        0,
        [3.0],
    ]


def test_the_global_step_has_the_methods_of_a_variable(sess):
    step = tf.train.get_or_create_global_step()
    count = tf.assign_add(step, 2)

    step.initializer.run()
    sess.run(count)
    assert step.eval() == 2
    assert tf.train.global_step(sess, step) == 2
    assert isinstance(step, tf.Variable)


def test_initial_values_ignore_control_dependencies(sess):
    with tf.control_dependencies([tf.placeholder(tf.float32, [], name="unfed") + 1.0]):
        v = tf.get_variable("v", [2])
        w = tf.Variable(tf.random_normal([2]))

    sess.run(tf.global_variables_initializer())
    assert [value.shape for value in sess.run([v, w])] == [(2,), (2,)]


def test_gradient_of_an_integer_is_none(sess):
    v, i = tf.Variable(3.0), tf.Variable(2)
    y = v * v

    grads, none, unused = tf.gradients(y, [v, i, tf.Variable(1.0)])
    (weighted,) = tf.gradients([y, v * 2], [v], grad_ys=[tf.constant(2.0), None])
    sess.run(tf.global_variables_initializer())
    assert sess.run([grads, weighted]) == [6.0, 14.0]
    assert none is None
    assert unused is None


def test_initialized_value_is_the_current_value_if_there_is_one():
    v = tf.get_variable("v", initializer=tf.random_normal([2]))
    w = tf.Variable(v.initialized_value() * 2.0, name="w")
    now = v.initialized_value()

    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        one, other = sess.run([v, w])
        np.testing.assert_array_equal(other, one * 2)
        v.load([5.0, 6.0], sess)
        assert sess.run(now).tolist() == [5.0, 6.0]
        sess.run(w.initializer)
        assert sess.run(w).tolist() == [10.0, 12.0]
    with tf.Session() as sess:
        sess.run(w.initializer)
        assert sess.run(tf.report_uninitialized_variables()).tolist() == [b"v"]


@pytest.mark.parametrize("graph", [tf.Graph, hl.Graph])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"use_locking": False, "name": "n"},
        *[pytest.param(how, marks=pytest.mark.campaign) for how in ({"name": "changed"}, {"use_locking": True})],
    ],
)
def test_assign_functions_take_variables_of_any_graph(graph, how):
    with graph().as_default():
        variables = [hl.Variable(1.0, name="v"), hl.train.get_or_create_global_step()]
        if graph is tf.Graph:
            variables += [tf.Variable(1.0), tf.get_variable("g", [], initializer=tf.zeros_initializer())]
        for variable in variables:
            changed = [
                tf.assign(variable, 5, **how),
                tf.assign_add(variable, 2, **how),
                tf.assign_sub(variable, 1, **how),
            ]
            with hl.Session() as session:
                session.run(hl.global_variables_initializer())
                session.run(changed[0])
                session.run(changed[1])
                session.run(changed[2])
                assert session.run(variable) == 6


def test_variable_keeps_its_shape_despite_validate_shape():
    v = tf.Variable(tf.zeros([2]), validate_shape=False, name="v")

    with pytest.raises(ValueError, match=r"'v:0' has the shape \(2,\) and keeps it.*Make the variable as large"):
        tf.assign(v, tf.zeros([3]), validate_shape=False)
    with tf.Session() as sess:
        assert sess.run(tf.assign(v, [3.0, 4.0], validate_shape=False)).tolist() == [3.0, 4.0]
