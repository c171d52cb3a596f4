"""Variables of `hookline_tf1`: their names, where they are shared, and what changes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.scenario import Record, scenario
from conformance.system import System


def _raised(call: Any) -> str | None:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return None


def _names(tf: Any) -> list[str]:
    return [variable.name for variable in tf.global_variables()]


@scenario("v1.variables.names")
def _(s: System) -> Record:
    """Variables and operations are named by variable scopes and name scopes."""
    tf = s.tf
    tf.Variable(0.0)
    with tf.variable_scope("a") as outer:
        tf.get_variable("w", [1])
        tf.Variable(0.0, name="v")
        with tf.variable_scope("b"):
            tf.get_variable("w", [1])
            op = tf.constant(1.0, name="c").name
    with tf.name_scope("n"), tf.variable_scope("c"):
        tf.get_variable("w", [1])
        tf.Variable(0.0, name="v")
        scoped = tf.constant(1.0, name="c").name
    with tf.variable_scope(outer) as again:
        tf.get_variable("x", [1])
        inside = [tf.constant(1.0, name="c").name, again.name, tf.get_variable_scope().name]
    with tf.variable_scope("a"), tf.variable_scope("b"):
        tf.get_variable("y", [1])
        second = tf.constant(1.0, name="c").name
    with tf.variable_scope(None, default_name="layer"):
        tf.get_variable("w", [1])
    with tf.variable_scope(None, default_name="layer"):
        tf.get_variable("w", [1])
    with tf.variable_scope("d"):
        for _ in range(2):
            with tf.variable_scope(None, "layer"):
                tf.get_variable("w", [1])
    return {"variables": _names(tf), "operations": [op, scoped, inside, second]}


@scenario("v1.variables.reuse")
def _(s: System) -> Record:
    """`get_variable` makes a variable or shares it, as `reuse` says."""
    tf = s.tf
    with tf.variable_scope("a"):
        w = tf.get_variable("w", [2])
        twice = _raised(lambda: tf.get_variable("w", [2]))
    with tf.variable_scope("a", reuse=True):
        shared = tf.get_variable("w", [2]) is w
        missing = _raised(lambda: tf.get_variable("new", [2]))
        shape = _raised(lambda: tf.get_variable("w", [3]))
        dtype = _raised(lambda: tf.get_variable("w", [2], dtype=tf.int32))
        with tf.variable_scope("inner"):
            inherited = tf.get_variable_scope().reuse
    with tf.variable_scope("a") as scope:
        scope.reuse_variables()
        later = tf.get_variable("w") is w
    with tf.variable_scope("b", reuse=tf.AUTO_REUSE):
        auto = [tf.get_variable("w", [1]) is tf.get_variable("w", [1]), tf.get_variable_scope().reuse is tf.AUTO_REUSE]
    with tf.variable_scope("b", reuse=tf.AUTO_REUSE), tf.variable_scope(None, "layer"):
        tf.get_variable("k", [1])
    with tf.variable_scope("b", reuse=tf.AUTO_REUSE), tf.variable_scope(None, "layer"):
        tf.get_variable("k", [1])
    return {
        "shared": [shared, later, auto, inherited],
        "errors": [twice, missing, shape, dtype],
        "names": _names(tf),
    }


@scenario("v1.variables.scope_defaults")
def _(s: System) -> Record:
    """A scope gives its variables an initializer, a regularizer and a getter."""
    tf = s.tf
    asked = []

    def getter(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        return getter(name, *args, **kwargs)

    def decay(w: Any) -> Any:
        return tf.multiply(0.5, tf.reduce_sum(w * w), name="decay")

    with tf.variable_scope("a", initializer=tf.constant_initializer(3.0), regularizer=decay, custom_getter=getter):
        w = tf.get_variable("w", [2])
        with tf.variable_scope("b"):
            v = tf.get_variable("v", initializer=np.float32(1.5))
            n = tf.get_variable("n", [2], tf.int32, tf.zeros_initializer, tf.no_regularizer, trainable=False)
            free = tf.get_variable("free", [1], regularizer=tf.no_regularizer)
    losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    local = tf.get_local_variable("count", [], initializer=tf.zeros_initializer())
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        values = sess.run([w, v, n, free, local])
        costs = sess.run(losses[:2])
    return {
        "values": values,
        "losses": [loss.op.name for loss in losses],
        "costs": costs,
        "asked": asked,
        "trainable": [variable.name for variable in tf.trainable_variables()],
        "scoped": [variable.name for variable in tf.trainable_variables("a/b")],
        "local": [variable.name for variable in tf.local_variables()],
        "dtypes": [variable.dtype.base_dtype.name for variable in (w, v, n)],
    }


@scenario("v1.variables.values")
def _(s: System) -> Record:
    """Initial values, assignments of lists, `load`, rows that are changed."""
    tf = s.tf
    a = tf.Variable([1, 2, 3], dtype=tf.float32)
    b = tf.Variable(lambda: tf.ones([2, 2]) * 2.0, name="b")
    c = tf.Variable(a.initial_value * 2.0)
    rows = tf.Variable(tf.zeros([3, 2]))
    n = tf.Variable(5, trainable=False)
    with tf.Session() as sess:
        missing = sess.run(tf.report_uninitialized_variables([a, n]))
        sess.run(tf.global_variables_initializer())
        start = sess.run([a, b, c, n])
        sess.run(tf.assign(a, [4.0, 5.0, 6.0]))
        sess.run(a.assign_add([1, 1, 1]))
        sess.run([tf.assign_sub(b, tf.ones([2, 2])), n.assign(n + 2)])
        c.load([7.0, 8.0, 9.0], sess)
        sess.run(tf.scatter_add(rows, [0, 2, 0], tf.ones([3, 2])))
        sess.run(tf.scatter_update(rows, [1], [[5.0, 6.0]]))
        end = sess.run([a, b, c, n, rows])
        initialized = sess.run(tf.is_variable_initialized(a))
    return {
        "missing": len(missing),
        "start": start,
        "end": end,
        "initialized": bool(initialized),
        "dtypes": [v.dtype.base_dtype.name for v in (a, b, c, n)],
        "no_value": _raised(lambda: tf.Variable()),
    }


@scenario("v1.variables.initializers")
def _(s: System) -> Record:
    """Initializers give values of the right shape, spread and bounds; constants give the very values."""
    tf = s.tf
    shape = [60, 50]

    def spread(initializer: Any, expected: float) -> Any:
        with tf.Graph().as_default(), tf.Session() as sess:
            v = tf.get_variable("v", shape, initializer=initializer)
            sess.run(v.initializer)
            value = sess.run(v)
        return [list(value.shape), bool(abs(value.mean()) < 0.1), bool(abs(value.std() / expected - 1) < 0.06)]

    with tf.Session() as sess:
        constants = sess.run(
            [
                tf.constant_initializer(2)([2, 2]),
                tf.constant_initializer([1, 2, 3, 4])([2, 2], tf.int32),
                tf.ones_initializer()([2]),
                tf.zeros_initializer()([2], dtype=tf.int32),
                tf.initializers.identity()([2, 2]),
            ]
        )
    return {
        "uniform": spread(tf.random_uniform_initializer(-1, 1), 0.577),
        "normal": spread(tf.random_normal_initializer(stddev=0.5), 0.5),
        "truncated": spread(tf.truncated_normal_initializer(stddev=0.5), 0.44),
        "glorot": spread(tf.glorot_uniform_initializer(), 0.135),
        "glorot_normal": spread(tf.glorot_normal_initializer(), 0.135),
        "scaled": spread(tf.variance_scaling_initializer(2.0), 0.183),
        "he": spread(tf.initializers.he_normal(), 0.183),
        "lecun": spread(tf.initializers.lecun_uniform(), 0.129),
        "default": spread(None, 0.135),
        "orthogonal": spread(tf.orthogonal_initializer(), 0.129),
        "constants": constants,
    }


@scenario("v1.variables.averages")
def _(s: System) -> Record:
    """Averages are named by the variable scope of `apply`; before it, by the name scope."""
    tf = s.tf
    with tf.variable_scope("outer"), tf.variable_scope("inner"):
        w = tf.get_variable("w", [2])
        t = tf.multiply(w, 2.0, name="t")
        inside = tf.train.ExponentialMovingAverage(0.9)
        inside.apply([w, t])
    with tf.name_scope("n"), tf.variable_scope("scope"):
        u = tf.Variable(1.0, name="u")
        tf.train.ExponentialMovingAverage(0.9, zero_debias=True).apply([u, tf.identity(u, name="v")])
    outside = tf.train.ExponentialMovingAverage(0.9, name="outside")
    with tf.variable_scope("else"):
        before = outside.average_name(w)
    restored = sorted(outside.variables_to_restore([w]))
    outside.apply([w])
    return {
        "names": sorted(variable.op.name for variable in tf.global_variables()),
        "inside": [inside.average_name(each) for each in (w, t)],
        "before": before,
        "restored": restored,
    }
