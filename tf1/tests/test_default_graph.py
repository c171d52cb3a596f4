"""The default graph of a thread is one of TensorFlow's from the first call of a script, whichever that is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import hookline as hl
import hookline_tf1 as tf

FIRST_CALLS = {
    "Variable": lambda: tf.Variable(1.0),
    "add_to_collection": lambda: tf.add_to_collection("kept", 1),
    "constant": lambda: tf.constant(1.0),
    "create_global_step": tf.train.create_global_step,
    "exponential_decay": lambda: tf.train.exponential_decay(0.1, 0, 1, 0.5),
    "framework.create_global_step": tf.contrib.framework.create_global_step,
    "framework.get_or_create_global_step": tf.contrib.framework.get_or_create_global_step,
    "get_or_create_global_step": tf.train.get_or_create_global_step,
    "get_regularization_loss": tf.losses.get_regularization_loss,
    "get_variable": lambda: tf.get_variable("x", []),
    "global_variables_initializer": tf.global_variables_initializer,
    "group": tf.group,
    "losses.add_loss": lambda: tf.losses.add_loss(1.0),
    "mean": lambda: tf.metrics.mean([1.0]),
    "name_scope": lambda: tf.name_scope("x").__enter__(),
    "no_op": tf.no_op,
    "piecewise_constant": lambda: tf.train.piecewise_constant(0, [1], [0.1, 0.2]),
    "placeholder": lambda: tf.placeholder(tf.float32),
    "py_func": lambda: tf.py_func(lambda: 1.0, [], tf.float32),
    "random_normal": lambda: tf.random_normal([2]),
    "range": lambda: tf.data.Dataset.range(3).make_one_shot_iterator().get_next(),
    "scalar": lambda: tf.summary.scalar("x", 1.0),
    "scalar_summary": lambda: tf.scalar_summary("x", 1.0),
    "set_random_seed": lambda: tf.set_random_seed(1),
    "text": lambda: tf.summary.text("x", "words"),
}


def on_a_new_thread(script):
    """Returns the result of a script on a thread whose default graph was never used."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(script).result()


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_a_script_may_begin_with_any_name(name):
    def script():
        FIRST_CALLS[name]()
        graph, x = tf.get_default_graph(), tf.constant(1.0)
        assert hl.get_default_graph() is x.graph is graph
        with tf.Session() as sess:
            return sess.run(x)

    assert on_a_new_thread(script) == 1.0


@pytest.mark.parametrize("kind", ["MonitoredSession", "MonitoredTrainingSession", "SingularMonitoredSession"])
def test_a_script_may_begin_with_its_session(kind):
    class Builds(tf.train.SessionRunHook):
        def begin(self):
            self.x = tf.constant(1.0)

    def script():
        hook = Builds()
        with getattr(tf.train, kind)(hooks=[hook]) as sess:
            return sess.run(hook.x)

    assert on_a_new_thread(script) == 1.0


def test_a_script_may_begin_with_a_session_manager():
    def script():
        manager = tf.train.SessionManager()
        x = tf.Variable(1.0)
        with manager.prepare_session("", init_op=tf.global_variables_initializer()) as sess:
            return sess.run(x)

    assert on_a_new_thread(script) == 1.0
