"""Functions made with `computed_by`: each is checked against TensorFlow, and takes its function's arguments."""

from __future__ import annotations

import numpy as np
import pytest
from tf1.conformance.calls import calls

import hookline_tf1 as tf
from hookline_tf1 import image, linalg, math, nn
from hookline_tf1._machinery.op_definitions import is_op  # Which functions are operations, and where.
from hookline_tf1._tf import array_ops, math_ops
from hookline_tf1.nn import _cross_entropy_ops

PLACES = {"": (math, math_ops, array_ops, linalg), "nn.": (nn, _cross_entropy_ops), "image.": (image,)}

# Helpers of other functions, which have calls themselves.
CALLED_AS = {
    "nn.softmax_cross_entropy": "nn.softmax_cross_entropy_with_logits",
    "nn.sparse_softmax_cross_entropy": "nn.sparse_softmax_cross_entropy_with_logits",
    "nn.sigmoid_cross_entropy": "nn.sigmoid_cross_entropy_with_logits",
    "nn.weighted_cross_entropy": "nn.weighted_cross_entropy_with_logits",
}

# Names from before TensorFlow 1.0, or without a computation of their own.
NOT_IN_TENSORFLOW_2 = {"image.per_image_whitening", "prevent_gradient"}


def test_each_function_is_checked_against_tensorflow():
    functions = {
        f"{place}{function.__name__}"
        for place, modules in PLACES.items()
        for module in modules
        for function in vars(module).values()
        if is_op(function) and function.__module__.startswith(module.__name__)
    }
    called = calls()

    assert {name for name in functions if CALLED_AS.get(name, name) not in called} == NOT_IN_TENSORFLOW_2


def test_arguments_have_tensorflows_names_and_order(sess):
    x = np.asarray([[1.0, 2.0], [3.0, 5.0]])

    assert sess.run(tf.reduce_sum(x, 1, True)).tolist() == [[3.0], [8.0]]
    assert sess.run(tf.reduce_sum(x, reduction_indices=[1], keep_dims=True)).tolist() == [[3.0], [8.0]]
    assert tf.reduce_sum(x, 0, False, "total").op.name == "total"
    assert tf.nn.relu(features=x, name="active").name == "active:0"


def test_operations_are_named_like_in_tensorflow():
    x = tf.placeholder("float32", [2])

    names = [t.op.name for t in (tf.reduce_mean(x), tf.reduce_mean(x), tf.nn.relu(x), x + 1.0, -x, x < 1.0)]

    assert names == ["Mean", "Mean_1", "Relu", "add", "Neg", "Less"]


def test_matrix_decompositions_return_their_parts_in_tensorflows_order(sess):
    x = np.asarray([[2.0, 1.0], [1.0, 3.0], [0.0, 1.0]], "float32")
    singular, left, right = tf.svd(x)
    values, vectors = tf.self_adjoint_eig(x.T @ x)

    np.testing.assert_allclose(sess.run(tf.matmul(left * singular, right, transpose_b=True)), x, atol=1e-5)
    np.testing.assert_allclose(sess.run(tf.matmul(vectors * values, vectors, transpose_b=True)), x.T @ x, atol=1e-5)
    np.testing.assert_allclose(sess.run(tf.matmul(*tf.linalg.qr(x))), x, atol=1e-5)
    np.testing.assert_allclose(sess.run(tf.svd(x, compute_uv=False)) ** 2, sess.run(values)[::-1], rtol=1e-5)


def test_labels_in_a_list_fit_logits_of_open_size(sess):
    logits, labels = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.int32, [None])
    loss = tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits, labels=tf.stop_gradient([tf.one_hot(labels, 3)]))
    feeds = {logits: [[1.0, 2.0, 0.0], [0.0, 0.0, 4.0]], labels: [1, 2]}

    assert loss.get_shape().as_list() == [None]
    np.testing.assert_allclose(sess.run(loss, feeds), [0.407606, 0.035976], rtol=1e-4)
    np.testing.assert_allclose(
        sess.run(tf.gradients(loss, logits)[0], feeds)[0], [0.244728, -0.334759, 0.090031], rtol=1e-4
    )
    with pytest.raises(ValueError, match="the same shape"):
        tf.nn.weighted_cross_entropy_with_logits([[1.0], [0.0]], [0.5, 2.0], 2.0)


def test_confusion_matrix_requires_the_number_of_classes(sess):
    assert sess.run(tf.confusion_matrix([0, 1, 1], [1, 1, 1], 2)).tolist() == [[0, 1], [0, 2]]
    with pytest.raises(ValueError, match="confusion_matrix requires num_classes"):
        tf.confusion_matrix([0, 1], [1, 1])


@pytest.mark.parametrize("labels", [[0, 2], [0, -1]])
@pytest.mark.parametrize("turned", [False, True])
def test_class_out_of_range_in_a_confusion_matrix_fails_the_run(labels, turned, sess):
    fed = tf.placeholder(tf.int32, [2])
    made = tf.confusion_matrix(*([1, 1], fed)[:: -1 if turned else 1], 2)
    assert sess.run(made, {fed: [0, 1]}).sum() == 2
    with pytest.raises(tf.errors.InvalidArgumentError):
        sess.run(made, {fed: labels})


def test_integers_are_divided_as_integers(sess):
    large = 2**30 + 1
    assert sess.run(tf.truncatediv([large, -large, 7], [1, 1, -2])).tolist() == [large, -large, -3]


def test_wrong_argument_is_a_type_error_with_the_signature():
    with pytest.raises(TypeError, match=r"tf\.reduce_sum\(input_tensor, axis=None.*unexpected keyword argument 'axes'"):
        tf.reduce_sum([1.0], axes=0)


def test_incompatible_shapes_are_a_value_error_at_graph_construction():
    with pytest.raises(ValueError, match=r"MatMul 'MatMul' \(made at .*test_op_definitions.py"):
        tf.matmul(tf.zeros([2, 3]), tf.zeros([2, 3]))


def test_64_bit_integers_become_32_bit():
    assert tf.argmax(tf.zeros([3])).dtype == tf.int32
    assert tf.constant(np.arange(3)).dtype == tf.int32


def test_names_before_1_0_work(sess):
    a, b = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])

    assert sess.run(tf.mul(a, b)).tolist() == [3.0, 8.0]
    assert sess.run(tf.sub(a, tf.neg(b))).tolist() == [4.0, 6.0]
    assert sess.run(tf.concat(0, [a, b])).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert [part.tolist() for part in sess.run(tf.split(0, 2, tf.pack([a, b])))] == [[[1.0, 2.0]], [[3.0, 4.0]]]
    assert [part.tolist() for part in sess.run(tf.unpack(tf.pack([a, b])))] == [[1.0, 2.0], [3.0, 4.0]]
    loss = tf.nn.softmax_cross_entropy_with_logits(tf.zeros([1, 2]), tf.constant([[1.0, 0.0]]))
    assert sess.run(loss) == pytest.approx(np.log(2.0))
    assert tf.initialize_all_variables().name == "init"


def test_computed_length_is_refused_where_xla_needs_a_constant(sess):
    made = tf.zeros([tf.random_uniform([], 1, 4, tf.int32), 2])

    with pytest.raises(Exception, match="shape depends on a value that is computed in the run"):
        sess.run(made)
    with pytest.raises(ValueError, match="multiply by the condition"):
        tf.where([True, False])
    with pytest.raises(NotImplementedError, match="Multiply by the mask"):
        tf.boolean_mask([1.0, 2.0], [True, False])
