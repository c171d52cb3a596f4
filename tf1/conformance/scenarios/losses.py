"""`tf.losses` and `tf.metrics` in `hookline_tf1`: values, gradients, variables and names."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.parts import raised
from conformance.scenario import Record, scenario
from conformance.system import System

ELEMENTWISE = (
    "absolute_difference",
    "mean_squared_error",
    "huber_loss",
    "log_loss",
    "hinge_loss",
    "sigmoid_cross_entropy",
)
METRICS = (
    "accuracy",
    "mean_absolute_error",
    "mean_squared_error",
    "root_mean_squared_error",
    "auc",
    "precision",
    "recall",
    "true_positives",
    "false_positives",
    "true_negatives",
    "false_negatives",
)


def _labels(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.RandomState(seed).randint(0, 2, shape).astype("float32")


def _values(tf: Any, losses: dict[str, Any], x: Any, feed: Any) -> Record:
    gradients = {name: tf.gradients(loss, x)[0] for name, loss in losses.items()}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        values, grads = sess.run([losses, gradients], feed)
    return {name: [values[name], grads[name]] for name in losses}


@scenario("v1.losses.elementwise")
def _(s: System) -> Record:
    """Losses of each element, with and without weights."""
    tf = s.tf
    x = tf.Variable(np.random.RandomState(0).rand(4, 3).astype("float32"), name="x")
    labels = tf.placeholder(tf.float32, [None, 3])
    weights = tf.placeholder(tf.float32, [None, 1])
    losses = {}
    for name in ELEMENTWISE:
        losses[name] = getattr(tf.losses, name)(labels, x)
        losses[f"{name}_weighted"] = getattr(tf.losses, name)(labels, x, weights)
    losses["huber"] = tf.losses.huber_loss(labels, x, delta=0.2)
    losses["smoothed"] = tf.losses.sigmoid_cross_entropy(labels, x, label_smoothing=0.1)
    losses["cosine"] = tf.losses.cosine_distance(labels, x, axis=1)
    names = [loss.name for loss in losses.values()]
    losses["pairwise"] = tf.losses.mean_pairwise_squared_error(labels, x)
    feed = {labels: _labels((4, 3)), weights: [[1.0], [0.0], [2.0], [1.0]]}
    return _values(tf, losses, x, feed) | {"names": names}


@scenario("v1.losses.classes")
def _(s: System) -> Record:
    """The cross entropy of classes."""
    tf = s.tf
    x = tf.Variable(np.random.RandomState(0).randn(4, 3).astype("float32"), name="x")
    right = np.asarray([0, 1, 2, 1], "int32")
    one_hot = np.eye(3, dtype="float32")[right]
    weights = np.asarray([0.0, 1.0, 2.0, 0.0], "float32")
    losses = {
        "softmax": tf.losses.softmax_cross_entropy(one_hot, x),
        "weighted": tf.losses.softmax_cross_entropy(one_hot, x, weights),
        "smoothed": tf.losses.softmax_cross_entropy(one_hot, x, label_smoothing=0.1),
        "sparse": tf.losses.sparse_softmax_cross_entropy(right, x),
        "column": tf.losses.sparse_softmax_cross_entropy(right[:, None], x, weights),
    }
    return _values(tf, losses, x, {})


@scenario("v1.losses.reductions")
def _(s: System) -> Record:
    """All reductions, and weights that are all zero."""
    tf = s.tf
    x = tf.Variable(np.random.RandomState(0).rand(4, 3).astype("float32"), name="x")
    weights = np.asarray([[1.0], [0.0], [2.0], [1.0]], "float32")
    losses = {
        kind: tf.losses.mean_squared_error(_labels((4, 3)), x, weights, reduction=kind, loss_collection=None)
        for kind in sorted(set(tf.losses.Reduction.all()))
    }
    losses["nothing"] = tf.losses.mean_squared_error(_labels((4, 3)), x, 0.0)
    losses["own"] = tf.losses.compute_weighted_loss(x * 2.0, weights)
    return _values(tf, losses, x, {}) | {"kinds": sorted(losses)}


@scenario("v1.losses.collected")
def _(s: System) -> Record:
    """Losses are collected, with those of regularizers, and summed."""
    tf = s.tf
    x = tf.get_variable("x", [3], initializer=tf.ones_initializer(), regularizer=lambda v: tf.reduce_sum(v) * 0.1)
    with tf.name_scope("first"):
        tf.losses.mean_squared_error([0.0, 1.0, 2.0], x)
    tf.losses.add_loss(tf.reduce_sum(x, name="own"))
    total, without = tf.losses.get_total_loss(), tf.losses.get_total_loss(False, name="without")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        values = sess.run([total, without, tf.losses.get_regularization_loss()])
    return {
        "values": values,
        "names": [loss.name for loss in tf.losses.get_losses()],
        "below": len(tf.losses.get_losses("first")),
        "regularization": len(tf.losses.get_regularization_losses()),
        "total": total.name,
    }


@scenario("v1.losses.errors")
def _(s: System) -> Record:
    """Shapes that do not fit, and no loss at all, are errors."""
    tf = s.tf
    x = tf.Variable(np.zeros((4, 3), "float32"))
    return {
        "shapes": raised(tf.losses.mean_squared_error, np.zeros((4, 2), "float32"), x),
        "nothing": raised(tf.losses.get_total_loss),
        "none": raised(tf.losses.mean_squared_error, None, x),
        "reduction": raised(tf.losses.mean_squared_error, x, x, reduction="other"),
    }


def _streamed(tf: Any, metrics: dict[str, Any], feeds: list[Any]) -> Record:
    record: Record = {"variables": [v.name for v in tf.local_variables()]}
    with tf.Session() as sess:
        sess.run(tf.local_variables_initializer())
        for i, feed in enumerate(feeds):
            record[f"update {i}"] = sess.run({name: update for name, (_, update) in metrics.items()}, feed)
            record[f"value {i}"] = sess.run({name: value for name, (value, _) in metrics.items()}, feed)
    return record


@scenario("v1.metrics.of_probabilities")
def _(s: System) -> Record:
    """Metrics of labels and numbers between 0 and 1, over two batches, with and without weights."""
    tf = s.tf
    labels, numbers = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
    weights = _labels((6,), 2)
    metrics = {}
    for name in METRICS:
        metrics[name] = getattr(tf.metrics, name)(labels, numbers)
        metrics[f"{name}_weighted"] = getattr(tf.metrics, name)(labels, numbers, weights=weights)
    for curve in ("PR", "ROC"):
        for method in ("trapezoidal", "careful_interpolation", "minoring", "majoring"):
            metrics[f"{curve} {method}"] = tf.metrics.auc(
                labels, numbers, curve=curve, summation_method=method, num_thresholds=11
            )
    metrics["precision_at"] = tf.metrics.precision_at_thresholds(labels, numbers, [0.3, 0.6])
    metrics["recall_at"] = tf.metrics.recall_at_thresholds(labels, numbers, [0.3, 0.6], weights=weights)
    metrics["below"] = tf.metrics.percentage_below(numbers, 0.5)
    metrics["relative"] = tf.metrics.mean_relative_error(labels, numbers, labels)
    rng = np.random.RandomState(0)
    return _streamed(tf, metrics, [{labels: _labels((6,), i), numbers: rng.rand(6)} for i in range(2)])


@scenario("v1.metrics.of_classes")
def _(s: System) -> Record:
    """Metrics of whole numbers, and means."""
    tf = s.tf
    labels, classes = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int64, [None])
    metrics = {
        "accuracy": tf.metrics.accuracy(labels, classes, name="acc"),
        "iou": tf.metrics.mean_iou(labels, classes, 3),
        "per_class": tf.metrics.mean_per_class_accuracy(labels, classes, 3),
        "mean": tf.metrics.mean(tf.cast(labels, tf.float32), weights=2.0),
        "tensor": tf.metrics.mean_tensor(tf.constant([1.0, 2.0])),
    }
    return _streamed(tf, metrics, [{labels: [0, 1, 2, 1], classes: [0, 2, 2, i]} for i in range(2)])


@scenario("v1.metrics.collections")
def _(s: System) -> Record:
    """Values and updates join collections; the variables are local, and no trained ones."""
    tf = s.tf
    tf.metrics.mean([1.0, 2.0], metrics_collections=["values"], updates_collections=["updates"])
    keys = ("values", "updates", "local_variables", "metric_variables", "variables", "trainable_variables")
    return {"names": {key: [item.name for item in tf.get_collection(key)] for key in keys}}
