"""The optimizers and decaying rates of `tf.train` in `hookline_tf1`: numbers, slots and names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.parts import raised
from conformance.scenario import Record, scenario
from conformance.system import System

Make = Callable[[Any, Any], Any]

OPTIMIZERS: dict[str, Make] = {
    "gradient_descent": lambda train, rate: train.GradientDescentOptimizer(rate),
    "momentum": lambda train, rate: train.MomentumOptimizer(rate, 0.9),
    "nesterov": lambda train, rate: train.MomentumOptimizer(rate, 0.9, use_nesterov=True),
    "adam": lambda train, rate: train.AdamOptimizer(rate),
    "adam_with_arguments": lambda train, rate: train.AdamOptimizer(rate, 0.5, 0.9, 1e-3, name="Other"),
    "adagrad": lambda train, rate: train.AdagradOptimizer(rate),
    "adadelta": lambda train, rate: train.AdadeltaOptimizer(rate, 0.9),
    "rmsprop": lambda train, rate: train.RMSPropOptimizer(rate),
    "rmsprop_with_momentum": lambda train, rate: train.RMSPropOptimizer(rate, momentum=0.9, epsilon=0.1),
    "rmsprop_centered": lambda train, rate: train.RMSPropOptimizer(rate, 0.8, 0.5, centered=True),
    "ftrl": lambda train, rate: train.FtrlOptimizer(rate),
    "ftrl_with_penalties": lambda train, rate: train.FtrlOptimizer(
        rate, l1_regularization_strength=0.01, l2_regularization_strength=0.1
    ),
    "ftrl_with_shrinkage": lambda train, rate: train.FtrlOptimizer(
        rate, -0.7, 0.3, l2_shrinkage_regularization_strength=0.1
    ),
    "proximal_gradient_descent": lambda train, rate: train.ProximalGradientDescentOptimizer(rate, 0.1, 0.2),
    "proximal_adagrad": lambda train, rate: train.ProximalAdagradOptimizer(rate, 0.1, 0.1, 0.2),
}


def _model(tf: Any) -> tuple[Any, Any]:
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    weight, bias = tf.Variable([[1.0], [-1.0]], name="weight"), tf.Variable(0.5, name="bias")
    error = tf.matmul(x, weight) * 0.7 + bias - 2.0
    return tf.reduce_mean(error * error), {x: [[0.1, 0.05], [0.0, 0.2]]}


def _with(make: Make) -> Callable[[System], Record]:
    def play(s: System) -> Record:
        """An optimizer: variables and slots after some steps with a decaying rate, their names, and its step."""
        tf = s.tf
        loss, feed = _model(tf)
        step = tf.train.get_or_create_global_step()
        rate = tf.train.exponential_decay(0.1, step, 3, 0.9, staircase=True)
        optimizer = make(tf.train, rate)
        train_op = optimizer.minimize(loss, global_step=step)
        other_op = optimizer.minimize(loss * 2.0)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for i in range(6):
                sess.run(train_op if i % 3 else other_op, feed)
            values = sess.run([variable for variable in tf.global_variables() if variable is not step])
        return {
            "variables": {variable.op.name: variable.get_shape().as_list() for variable in tf.global_variables()},
            "operations": [train_op.name, other_op.name],
            "slots": optimizer.get_slot_names(),
            "own": [variable.name for variable in optimizer.variables()],
            "values": values,
        }

    return play


for _name, _make in OPTIMIZERS.items():
    scenario(f"v1.optimizer.{_name}")(_with(_make))


def _of_rows(make: Make) -> Callable[[System], Record]:
    def play(s: System) -> Record:
        """Rows that were looked up change as there, the others stay, and a norm is the one that TensorFlow computes."""
        tf = s.tf
        table = tf.Variable([[1.0, -1.0], [0.5, 2.0], [3.0, 1.0], [0.2, 0.1]], name="table")
        weight = tf.Variable([[1.0], [0.5]], name="weight")
        rows = tf.nn.embedding_lookup(table, tf.placeholder(tf.int32, [None], name="ids"))
        loss = tf.reduce_sum(tf.square(tf.matmul(rows, weight) - 1.0))
        optimizer = make(tf.train, 0.05)
        variables = tf.trainable_variables()
        clipped, norm = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
        train_op = optimizer.apply_gradients(list(zip(clipped, variables, strict=True)))
        plain_op = optimizer.minimize(loss)
        norms = []
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for op, ids in ((train_op, [0, 1, 1]), (plain_op, [2, 0]), (train_op, [1, 1])):
                norms.append(sess.run([norm, op], {"ids:0": ids})[0])
            return {"norms": norms, "values": sess.run(tf.global_variables())}

    return play


for _name, _make in OPTIMIZERS.items():
    scenario(f"v1.optimizer.rows.{_name}")(_of_rows(_make))


@scenario("v1.optimizer.rate")
def _(s: System) -> Record:
    """The rate may be a variable, a placeholder, a tensor or a function."""
    tf = s.tf
    loss, feed = _model(tf)
    fed = tf.placeholder(tf.float32, [])
    kept = tf.Variable(0.1, trainable=False, name="rate")
    rates = [fed, kept, fed * 2.0, lambda: 0.05]
    train_ops = [tf.train.MomentumOptimizer(rate, 0.5).minimize(loss) for rate in rates]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for train_op in train_ops:
            sess.run(train_op, feed | {fed: 0.03})
        return {"values": sess.run(tf.trainable_variables())}


@scenario("v1.optimizer.clipped")
def _(s: System) -> Record:
    """Gradients are clipped between `compute_gradients` and `apply_gradients`; some are None."""
    tf = s.tf
    loss, feed = _model(tf)
    unused = tf.Variable(1.0, name="unused")
    optimizer = tf.train.AdamOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    norms, _ = tf.clip_by_global_norm([grad for grad, _ in pairs if grad is not None], 0.5)
    train_op = optimizer.apply_gradients(list(zip(norms, tf.trainable_variables()[:2], strict=True)), name="step")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, feed)
        return {
            "pairs": [[grad is None, variable.name] for grad, variable in pairs],
            "values": sess.run(tf.trainable_variables()),
            "name": train_op.name,
            "unused": optimizer.get_slot(unused, "m") is None,
        }


@scenario("v1.optimizer.scopes")
def _(s: System) -> Record:
    """Slots are named by their variables, inside of the variable scope; powers by the name scope."""
    tf = s.tf
    with tf.variable_scope("net"):
        weight = tf.get_variable("weight", [], initializer=tf.constant_initializer(2.0))
    with tf.name_scope("training"):
        tf.train.AdamOptimizer(0.1).minimize(weight * weight)
    with tf.variable_scope("again"):
        tf.train.AdamOptimizer(0.1).minimize(weight * weight)
    tf.train.AdamOptimizer(0.1).minimize(weight * weight)
    return {"names": [variable.name for variable in tf.global_variables()]}


@scenario("v1.optimizer.constraint")
def _(s: System) -> Record:
    """The constraint of a variable is applied after each update."""
    tf = s.tf
    weight = tf.get_variable("weight", [2], initializer=tf.ones_initializer(), constraint=lambda v: v * 0.5)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(weight * weight))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        return {"weight": sess.run(weight)}


@scenario("v1.optimizer.subclass")
def _(s: System) -> Record:
    """A subclass defines its slots and how one variable changes."""
    tf = s.tf

    class Signs(tf.train.Optimizer):
        def __init__(self, rate: float, name: str = "Signs") -> None:
            super().__init__(False, name)
            self._rate = rate

        def _create_slots(self, var_list: Any) -> None:
            for variable in var_list:
                self._zeros_slot(variable, "sum", self._name)

        def _apply_dense(self, grad: Any, var: Any) -> Any:
            total = self.get_slot(var, "sum")
            added = total.assign_add(tf.sign(grad))
            return var.assign_sub(self._rate * added)

        _resource_apply_dense = _apply_dense

    loss, feed = _model(tf)
    train_op = Signs(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(3):
            sess.run(train_op, feed)
        return {
            "names": [variable.name for variable in tf.global_variables()],
            "values": sess.run(tf.global_variables()),
        }


@scenario("v1.optimizer.errors")
def _(s: System) -> Record:
    """Nothing to train, and nothing that has a gradient, are errors."""
    tf = s.tf
    x = tf.placeholder(tf.float32, [])
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    nothing = raised(optimizer.minimize, x * x)
    tf.Variable(1.0, name="weight")
    return {
        "no_variables": nothing,
        "no_gradients": raised(optimizer.minimize, x * x),
        "no_pairs": raised(optimizer.apply_gradients, []),
        "no_rate": raised(tf.train.AdagradOptimizer, 0.1, 0.0),
    }


@scenario("v1.schedules")
def _(s: System) -> Record:
    """Decaying rates, at many steps."""
    tf = s.tf
    train, step = tf.train, tf.placeholder(tf.int32, [])
    rates: dict[str, Any] = {}
    for stairs in (False, True):
        for name in ("exponential_decay", "natural_exp_decay", "inverse_time_decay"):
            rates[f"{name}_{stairs}"] = getattr(train, name)(0.5, step, 7, 0.3, stairs)
        rates[f"polynomial_decay_{stairs}"] = train.polynomial_decay(0.5, step, 7, 0.01, 2.0, cycle=stairs)
    rates["cosine_decay"] = train.cosine_decay(0.5, step, 7, 0.1)
    rates["cosine_decay_restarts"] = train.cosine_decay_restarts(0.5, step, 3, 2.0, 0.9, 0.1)
    rates["cosine_decay_restarts_even"] = train.cosine_decay_restarts(0.5, step, 3, 1.0, 0.9, 0.1)
    rates["linear_cosine_decay"] = train.linear_cosine_decay(0.5, step, 7)
    rates["piecewise_constant"] = train.piecewise_constant(step, [2, 5], [0.1, 0.2, 0.3])
    with tf.Session() as sess:
        return {str(at): sess.run(rates, {step: at}) for at in (0, 1, 2, 3, 5, 6, 7, 8, 14, 20)}
