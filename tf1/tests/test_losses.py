"""`tf.losses` and `tf.metrics`, by hand. `make conformance` compares with TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf


def run(fetches, feed=None):
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return sess.run(fetches, feed)


def test_mean_counts_the_elements_with_nonzero_weight():
    loss = tf.losses.absolute_difference([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], weights=[2.0, 0.0, 1.0])

    assert run(loss) == 2.5
    assert tf.losses.get_losses() == [loss]
    assert loss.op.name == "absolute_difference/value"


@pytest.mark.parametrize(
    ("reduction", "value"),
    [("NONE", [2.0, 0.0, 3.0]), ("SUM", 5.0), ("MEAN", 5 / 3), ("SUM_OVER_BATCH_SIZE", 5 / 3)],
)
def test_reductions_give_their_values(reduction, value):
    reduction = getattr(tf.losses.Reduction, reduction)
    loss = tf.losses.absolute_difference([1.0, 2.0, 3.0], [0.0] * 3, [2.0, 0.0, 1.0], reduction=reduction)

    np.testing.assert_allclose(run(loss), value, rtol=1e-6)


def test_losses_without_weight_are_zero_and_have_no_gradient():
    x = tf.constant([1.0, 2.0])
    loss = tf.losses.mean_squared_error([0.0, 0.0], x, weights=0.0)

    value, (grad,) = run([loss, tf.gradients(loss, x)])
    assert value == 0.0
    np.testing.assert_array_equal(grad, [0.0, 0.0])


def test_cross_entropies_agree():
    logits = tf.constant([[1.0, -1.0, 0.5], [0.0, 2.0, 0.0]])
    sparse = tf.losses.sparse_softmax_cross_entropy([2, 1], logits)
    dense = tf.losses.softmax_cross_entropy([[0, 0, 1], [0, 1, 0]], logits)
    sigmoid = tf.losses.sigmoid_cross_entropy([[1.0]], [[0.0]])

    one, other, half = run([sparse, dense, sigmoid])
    np.testing.assert_allclose(one, other, rtol=1e-6)
    np.testing.assert_allclose(half, np.log(2), rtol=1e-6)


def test_the_gradient_of_the_cross_entropy_takes_labels_as_if_they_summed_to_one():
    logits = tf.constant([[0.0, 0.0]])
    loss = tf.losses.softmax_cross_entropy([[0.0, 0.0]], logits)

    np.testing.assert_allclose(run(tf.gradients(loss, logits)[0]), [[0.5, 0.5]], rtol=1e-6)


def test_loss_of_an_open_batch_is_a_scalar():
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 3])

    for name in ("mean_squared_error", "softmax_cross_entropy", "sigmoid_cross_entropy", "huber_loss"):
        assert getattr(tf.losses, name)(y, x).get_shape().as_list() == []


def test_total_loss_includes_regularizers():
    weight = tf.get_variable("w", [2], initializer=tf.ones_initializer(), regularizer=tf.reduce_sum)
    tf.losses.mean_squared_error([0.0, 0.0], weight)

    assert run([tf.losses.get_total_loss(), tf.losses.get_total_loss(add_regularization_losses=False)]) == [3.0, 1.0]


def test_incompatible_shapes_are_refused():
    with pytest.raises(ValueError, match=r"the shapes \(2,\) of labels and \(3,\) of predictions differ"):
        tf.losses.mean_squared_error([0.0, 1.0], [0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match=r"weights of shape \(3, 1\) do not fit losses of shape \(2, 1\)"):
        tf.losses.mean_squared_error([[0.0], [1.0]], [[0.0], [1.0]], weights=[[1.0]] * 3)
    with pytest.raises(ValueError, match="there is no loss in the collection"):
        tf.losses.get_total_loss()


def test_metric_accumulates_batches(sess):
    labels, classes = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
    value, update = tf.metrics.accuracy(labels, classes)

    assert [v.op.name for v in tf.local_variables()] == ["accuracy/total", "accuracy/count"]
    assert tf.global_variables() == []
    sess.run(tf.local_variables_initializer())
    assert sess.run(value) == 0.0
    assert sess.run(update, {labels: [0, 1], classes: [0, 0]}) == 0.5
    assert sess.run(update, {labels: [1, 1], classes: [1, 1]}) == 0.75
    assert sess.run(value) == 0.75


def test_precision_recall_and_auc_have_their_values():
    labels, scores = tf.constant([1.0, 1.0, 0.0, 0.0]), tf.constant([0.9, 0.4, 0.6, 0.1])
    said = tf.cast(scores > 0.5, tf.float32)
    found = run([tf.metrics.precision(labels, said)[1], tf.metrics.recall(labels, said)[1]])
    area = run(tf.metrics.auc(labels, scores)[1])

    assert found == [0.5, 0.5]
    np.testing.assert_allclose(area, 0.75, atol=1e-3)


def test_mean_iou_has_its_value():
    assert run(tf.metrics.mean_iou([0, 1, 1], [0, 1, 0], 2)[1]).tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_metrics_are_added_to_collections():
    value, update = tf.metrics.mean([1.0], metrics_collections=["m"], updates_collections=["u"])

    assert (tf.get_collection("m"), tf.get_collection("u")) == ([value], [update])
    assert len(tf.get_collection(tf.GraphKeys.METRIC_VARIABLES)) == 2


def test_mean_of_tensors_needs_a_known_shape():
    with pytest.raises(ValueError, match="mean_tensor requires values of a known shape"):
        tf.metrics.mean_tensor(tf.placeholder(tf.float32, [None]))
