"""`tf.contrib` as far as it is here. No TensorFlow of today has it, so this is hookline's reading of it."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf

slim = tf.contrib.slim


def names():
    return [variable.op.name for variable in tf.global_variables()]


def run(fetches):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return sess.run(fetches)


def test_net_of_slim_has_the_variable_names_of_its_checkpoints():
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


def test_arg_scope_sets_default_arguments():
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


def test_arg_scope_refuses_other_functions():
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


def test_batch_norm_may_update_in_place(sess):
    x = tf.constant([[1.0], [3.0]])
    y = slim.batch_norm(x, decay=0.5, updates_collections=None)
    sess.run(tf.global_variables_initializer())
    np.testing.assert_allclose(sess.run(y), [[-1.0], [1.0]], atol=1e-3)
    assert sess.run(tf.global_variables()[1]) == [1.0]
    assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == []


def test_initializers_and_regularizers_give_their_values():
    weights = tf.get_variable("w", [400, 100], initializer=tf.contrib.layers.xavier_initializer())
    scaled = tf.get_variable("s", [400, 100], initializer=tf.contrib.layers.variance_scaling_initializer())
    ones = tf.ones([3])
    values, more, *losses = run(
        [weights, scaled, tf.contrib.layers.l1_regularizer(0.5)(ones), tf.contrib.layers.l1_l2_regularizer()(ones)]
    )
    assert np.abs(values).max() <= np.sqrt(6 / 500)
    np.testing.assert_allclose(more.std(), np.sqrt(2 / 400), rtol=0.1)
    assert losses == [1.5, 4.5]


def test_metrics_are_aggregated_by_name(sess):
    values, updates = tf.contrib.metrics.aggregate_metric_map(
        {"mean": tf.metrics.mean([1.0, 3.0]), "accuracy": tf.metrics.accuracy([1, 0], [1, 1])}
    )
    sess.run(tf.local_variables_initializer())
    sess.run(updates)
    assert sess.run(values) == {"mean": 2.0, "accuracy": 0.5}


def test_nested_structures_are_flattened_and_packed():
    nest = tf.contrib.framework.nest

    assert nest.flatten({"b": (1, None), "a": [2]}) == [2, 1, None]
    assert nest.map_structure(lambda a, b: a + b, (1, [2]), (10, [20])) == (11, [22])
    assert nest.pack_sequence_as((0, [0]), [1, 2]) == (1, [2])


def test_variables_are_found_by_scope():
    with tf.variable_scope("a"):
        tf.get_variable("w", [])
    with tf.variable_scope("b"):
        tf.get_variable("w", [])
    framework = tf.contrib.framework

    assert [v.op.name for v in framework.get_variables("a")] == ["a/w"]
    assert [v.op.name for v in framework.get_variables_to_restore(exclude=["a"])] == ["b/w"]


def test_clipping_uses_the_global_norm():
    tensors, norm = tf.clip_by_global_norm([tf.constant([3.0]), None, tf.constant([[4.0]])], 2.5)

    clipped, norm = run([[tensors[0], tensors[2]], norm])
    assert norm == 5.0
    assert tensors[1] is None
    np.testing.assert_allclose(np.concatenate([clipped[0], clipped[1][0]]), [1.5, 2.0], rtol=1e-6)
    assert np.isnan(run(tf.clip_by_global_norm([tf.constant([np.inf])], 1.0)[0])).all()


def test_projector_config_is_written_to_the_log_directory(tmp_path, caplog):
    projector = tf.contrib.tensorboard.plugins.projector
    config = projector.ProjectorConfig()
    config.embeddings.add(tensor_name="words:0", metadata_path="words.tsv", tensor_path="words.txt")
    projector.visualize_embeddings(tf.summary.FileWriter(str(tmp_path)), config)

    assert 'tensor_name: "words:0"' in (tmp_path / "projector_config.pbtxt").read_text(encoding="utf-8")
    assert not caplog.records
    config.embeddings.add(tensor_name="letters:0")
    projector.visualize_embeddings(str(tmp_path), config)
    assert "cannot read letters:0 from hookline's checkpoints" in caplog.text


def test_repeat_and_stack_chain_layers():
    x = tf.ones([2, 6, 6, 3])
    with tf.variable_scope("net"):
        y = slim.repeat(x, 2, slim.conv2d, 4, [3, 3], scope="conv")
        z = slim.stack(slim.flatten(y), slim.fully_connected, [5, 6], scope="fc")
        slim.stack(x, slim.conv2d, [(3, [3, 3]), (4, 1)])

    assert (y.shape.as_list(), z.shape.as_list()) == ([2, 6, 6, 4], [2, 6])
    # TensorFlow's function is called convolution2d.
    scopes = ["conv/conv_1", "conv/conv_2", "fc/fc_1", "fc/fc_2", "Stack/convolution2d_1", "Stack/convolution2d_2"]
    assert names() == [f"net/{scope}/{part}" for scope in scopes for part in ("weights", "biases")]


def test_separable_convolution_is_depthwise_then_pointwise():
    x = tf.constant(np.arange(18.0).reshape(1, 3, 3, 2), tf.float32)
    ones = tf.ones_initializer()
    both = slim.separable_conv2d(x, 3, 3, 2, padding="VALID", weights_initializer=ones, activation_fn=None)
    depth = slim.separable_conv2d(x, None, [3, 3], stride=2, padding="VALID", weights_initializer=ones, scope="deep")

    assert names() == [
        *(f"SeparableConv2d/{name}" for name in ("depthwise_weights", "pointwise_weights", "biases")),
        "deep/depthwise_weights", "deep/biases",
    ]  # fmt: skip
    one, other = run([both, depth])
    assert one.tolist() == [[[[2.0 * 153] * 3]]]
    assert other.tolist() == [[[[72.0, 81.0]]]]


def test_layer_norm_and_instance_norm_normalise_their_axes():
    x = tf.constant(np.random.RandomState(0).normal(size=(2, 4, 5, 3)), tf.float32)
    normed = [slim.layer_norm(x), slim.instance_norm(x, epsilon=0.0), slim.layer_norm(x, begin_norm_axis=-1, scope="l")]

    found = run(normed)
    for values, axes in zip(found, [(1, 2, 3), (1, 2), (3,)], strict=True):
        np.testing.assert_allclose(values.mean(axes), 0, atol=1e-5)
        np.testing.assert_allclose(values.std(axes), 1, rtol=1e-3)
    assert names() == [f"{scope}/{part}" for scope in ("LayerNorm", "InstanceNorm", "l") for part in ("beta", "gamma")]
    with pytest.raises(ValueError, match="layer_norm requires inputs of known rank"):
        slim.layer_norm(tf.placeholder(tf.float32))


def test_outputs_are_collected_by_name():
    layers = [slim.conv2d, slim.max_pool2d, slim.fully_connected]
    with slim.arg_scope(layers, outputs_collections="ends"), tf.variable_scope("vgg"):
        x = slim.max_pool2d(slim.conv2d(tf.ones([1, 4, 4, 3]), 4, 3, scope="c1"), 2, scope="pool1")
        x = slim.fully_connected(slim.flatten(x), 3)
    ends = slim.utils.convert_collection_to_dict("ends")

    assert sorted(ends) == ["vgg/c1", "vgg/fully_connected", "vgg/pool1"]
    assert ends["vgg/fully_connected"] is x
    assert slim.utils.get_tensor_aliases(x) == ["vgg/fully_connected"]
    assert slim.utils.last_dimension(x.get_shape()) == 3
    assert slim.utils.convert_collection_to_dict("ends", clear_collection=True).keys() == ends.keys()
    assert tf.get_collection("ends") == []


def test_model_variables_are_collected():
    v = slim.variable("v", [2], initializer=tf.ones_initializer(), regularizer=slim.l2_regularizer(0.1))
    w = slim.model_variable("m/w", [2], collections=["mine"])

    assert [slim.get_variables(), slim.get_model_variables(), tf.get_collection("mine")] == [[v, w], [w], [w]]
    assert [slim.get_variables_by_name("w"), slim.get_variables_by_suffix("w")] == [[w], [w]]
    assert [slim.has_arg_scope(fn) for fn in (slim.variable, slim.softmax)] == [True, False]
    with slim.arg_scope([slim.variable], trainable=False):
        other, u = slim.variable("o", []), slim.model_variable("u", [], device="/cpu:0", partitioner=None)
    assert [x in tf.trainable_variables() for x in (other, u)] == [False, True]
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such'"):
        slim.model_variable("n", [], no_such=1)
    assert len(tf.losses.get_regularization_losses()) == 1


def test_contrib_losses_take_predictions_first():
    logits, labels = tf.constant([[2.0, 0.0], [0.0, 1.0]]), tf.constant([[1.0, 0.0], [1.0, 0.0]])
    made = [
        slim.losses.softmax_cross_entropy(logits, labels, label_smoothing=0.1),
        slim.losses.mean_squared_error(logits, labels),
        slim.losses.log_loss(tf.nn.sigmoid(logits), labels, weights=2.0),
    ]
    hinge = slim.losses.hinge_loss(logits, labels)
    other = tf.losses.softmax_cross_entropy(labels, logits, label_smoothing=0.1, loss_collection=None)

    assert slim.losses.get_losses() == made
    values, total, other, hinge = run([made, slim.losses.get_total_loss(), other, hinge])
    assert values[0] == other
    np.testing.assert_allclose(total, sum(values), rtol=1e-6)
    assert hinge.tolist() == [[0, 1], [1, 2]]


def small_net():
    x = tf.constant(np.random.RandomState(0).normal(size=(8, 3)), tf.float32)
    y = slim.fully_connected(x, 2, activation_fn=None, normalizer_fn=slim.batch_norm, scope="f")
    return slim.losses.sparse_softmax_cross_entropy(y, tf.constant([0, 1] * 4))


def test_slim_train_op_runs_the_updates_and_returns_the_loss(sess):
    loss = small_net()
    sgd = tf.train.GradientDescentOptimizer(0.5)
    train_op = slim.learning.create_train_op(loss, sgd, clip_gradient_norm=0.1, gradient_multipliers={"f/weights": 0.0})
    weights, beta, mean, _ = slim.get_model_variables()

    assert tf.get_collection(tf.GraphKeys.TRAIN_OP)[-1] is train_op
    sess.run(tf.global_variables_initializer())
    before = sess.run([weights, beta, mean])
    losses = [sess.run(train_op) for _ in range(3)]
    after = sess.run([weights, beta, mean])
    assert sess.run(tf.train.get_global_step()) == 3
    assert losses[2] < losses[0]
    assert before[0].tolist() == after[0].tolist()
    assert 0.01 < np.linalg.norm(before[1] - after[1]) <= 0.1501
    assert np.abs(after[2]).min() > 0


def test_slim_training_loop_trains(tmp_path, caplog):
    train_op = slim.learning.create_train_op(small_net(), tf.train.AdamOptimizer(0.01))
    begun = []

    with caplog.at_level("INFO", "hookline"):
        last = slim.learning.train(
            train_op, str(tmp_path), number_of_steps=4, log_every_n_steps=2, init_fn=begun.append
        )
    assert np.isfinite(last)
    assert len(begun) == 1
    assert [line.split(" = ")[0] for line in caplog.messages if "sec/step" in line] == [
        "global step 2: loss", "global step 4: loss",
    ]  # fmt: skip
    assert tf.train.latest_checkpoint(tmp_path).endswith("model.ckpt-4")
    with pytest.raises(NotImplementedError, match="write the loop"):
        slim.learning.train(train_op, None, train_step_fn=print)


def test_model_size_is_analysed(capsys):
    small_net()

    assert slim.model_analyzer.analyze_vars(tf.trainable_variables(), print_info=True) == (8, 32)
    assert "f/weights:0 (float32_ref 3x2) [6, bytes: 24]" in capsys.readouterr().out


def test_smart_cond_chooses_at_graph_construction(sess):
    utils, flag = slim.utils, tf.placeholder_with_default(True, [])
    x = tf.placeholder(tf.float32, [None, 3])

    assert [utils.smart_cond(pred, lambda: 1, lambda: 2) for pred in (True, False, tf.constant(False))] == [1, 2, 2]
    assert [utils.constant_value(value) for value in (flag, tf.shape(x))] == [None, None]
    assert utils.constant_value(tf.shape(x)[1]) == 3
    chosen = utils.smart_cond(flag, lambda: tf.constant(1), lambda: tf.constant(2))
    assert [sess.run(chosen), sess.run(chosen, {flag: False})] == [1, 2]
    with pytest.raises(TypeError, match="smart_cond requires two functions"):
        utils.smart_cond(True)
