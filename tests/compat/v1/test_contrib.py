"""`tf.contrib` as far as it is here. No TensorFlow of today has it, so this is hookline's reading of it."""

from __future__ import annotations

import numpy as np
import pytest

import hookline.compat.v1 as tf

slim = tf.contrib.slim


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def names():
    return [variable.op.name for variable in tf.global_variables()]


def run(fetches):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return sess.run(fetches)


def test_a_net_of_slim_has_the_names_that_its_checkpoints_have():
    x = tf.ones([2, 8, 8, 3])
    with tf.variable_scope("net"):
        x = slim.conv2d(x, 4, [3, 3], stride=2, scope="conv1")
        x = slim.conv2d(x, 4, 1, normalizer_fn=slim.batch_norm)
        x = slim.flatten(slim.max_pool2d(x, [2, 2]))
        x = slim.fully_connected(slim.dropout(x, is_training=False), 5, activation_fn=None)

    assert x.get_shape().as_list() == [2, 5]
    assert names() == [
        "net/conv1/weights", "net/conv1/biases", "net/Conv/weights", "net/Conv/BatchNorm/beta",
        "net/Conv/BatchNorm/moving_mean", "net/Conv/BatchNorm/moving_variance", "net/fully_connected/weights",
        "net/fully_connected/biases",
    ]  # fmt: skip
    assert [variable.op.name for variable in tf.contrib.framework.get_model_variables()] == names()


def test_default_arguments_of_a_scope():
    x = tf.ones([2, 3])
    with slim.arg_scope(
        [slim.fully_connected], activation_fn=None, weights_regularizer=slim.l2_regularizer(0.5)
    ) as args:
        one = slim.fully_connected(x, 1, weights_initializer=tf.ones_initializer(), scope="fc")
    with slim.arg_scope(args):
        other = slim.fully_connected(x, 1, reuse=True, scope="fc")

    values, other, losses = run([one, other, tf.losses.get_regularization_losses()])
    np.testing.assert_array_equal(values, [[3.0], [3.0]])
    np.testing.assert_array_equal(values, other)
    assert losses == [0.75]


def test_only_functions_that_were_made_for_it_have_default_arguments():
    with pytest.raises(ValueError, match="arg_scope requires functions made with add_arg_scope"), slim.arg_scope([len]):
        pass


def test_layers_are_numbered_and_shared_by_scope():
    x = tf.ones([2, 3])
    with tf.variable_scope("a"):
        slim.fully_connected(slim.fully_connected(x, 3), 3)
    with tf.variable_scope("a", reuse=True):
        slim.fully_connected(slim.fully_connected(x, 3), 3)

    assert names() == [
        f"a/{layer}/{part}" for layer in ("fully_connected", "fully_connected_1") for part in ("weights", "biases")
    ]


def test_batch_norm_that_updates_in_place():
    x = tf.constant([[1.0], [3.0]])
    y = slim.batch_norm(x, decay=0.5, updates_collections=None)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        np.testing.assert_allclose(sess.run(y), [[-1.0], [1.0]], atol=1e-3)
        assert sess.run(tf.global_variables()[1]) == [1.0]
    assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == []


def test_initializers_and_regularizers():
    weights = tf.get_variable("w", [400, 100], initializer=tf.contrib.layers.xavier_initializer())
    scaled = tf.get_variable("s", [400, 100], initializer=tf.contrib.layers.variance_scaling_initializer())
    ones = tf.ones([3])
    values, more, *losses = run(
        [weights, scaled, tf.contrib.layers.l1_regularizer(0.5)(ones), tf.contrib.layers.l1_l2_regularizer()(ones)]
    )
    assert np.abs(values).max() <= np.sqrt(6 / 500)
    np.testing.assert_allclose(more.std(), np.sqrt(2 / 400), rtol=0.1)
    assert losses == [1.5, 4.5]


def test_metrics_by_name():
    values, updates = tf.contrib.metrics.aggregate_metric_map(
        {"mean": tf.metrics.mean([1.0, 3.0]), "accuracy": tf.metrics.accuracy([1, 0], [1, 1])}
    )
    with tf.Session() as sess:
        sess.run(tf.local_variables_initializer())
        sess.run(updates)
        assert sess.run(values) == {"mean": 2.0, "accuracy": 0.5}


def test_nested_structures():
    nest = tf.contrib.framework.nest

    assert nest.flatten({"b": (1, None), "a": [2]}) == [2, 1, None]
    assert nest.map_structure(lambda a, b: a + b, (1, [2]), (10, [20])) == (11, [22])
    assert nest.pack_sequence_as((0, [0]), [1, 2]) == (1, [2])


def test_variables_of_scopes():
    with tf.variable_scope("a"):
        tf.get_variable("w", [])
    with tf.variable_scope("b"):
        tf.get_variable("w", [])
    framework = tf.contrib.framework

    assert [v.op.name for v in framework.get_variables("a")] == ["a/w"]
    assert [v.op.name for v in framework.get_variables_to_restore(exclude=["a"])] == ["b/w"]


def test_what_is_missing_says_so():
    with pytest.raises(AttributeError, match=r"hookline has no tf.contrib.rnn."):
        _ = tf.contrib.rnn


def test_clipping_by_the_norm_of_all():
    tensors, norm = tf.clip_by_global_norm([tf.constant([3.0]), None, tf.constant([[4.0]])], 2.5)

    clipped, norm = run([[tensors[0], tensors[2]], norm])
    assert norm == 5.0
    assert tensors[1] is None
    np.testing.assert_allclose(np.concatenate([clipped[0], clipped[1][0]]), [1.5, 2.0], rtol=1e-6)
    assert np.isnan(run(tf.clip_by_global_norm([tf.constant([np.inf])], 1.0)[0])).all()


def test_what_the_projector_shall_show_stands_where_tensorboard_looks(tmp_path, caplog):
    projector = tf.contrib.tensorboard.plugins.projector
    config = projector.ProjectorConfig()
    config.embeddings.add(tensor_name="words:0", metadata_path="words.tsv", tensor_path="words.txt")
    projector.visualize_embeddings(tf.summary.FileWriter(str(tmp_path)), config)

    assert 'tensor_name: "words:0"' in (tmp_path / "projector_config.pbtxt").read_text(encoding="utf-8")
    assert not caplog.records
    config.embeddings.add(tensor_name="letters:0")
    projector.visualize_embeddings(str(tmp_path), config)
    assert "cannot read letters:0 from hookline's checkpoints" in caplog.text
