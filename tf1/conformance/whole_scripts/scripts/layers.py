"""Every function of tf.layers, with arguments that are not the defaults: outputs, gradients, names and shapes."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(8)
row = tf.constant(rng.normal(size=(4, 6)).astype(np.float32))
line = tf.constant(rng.normal(size=(3, 9, 4)).astype(np.float32))
image = tf.constant(rng.normal(size=(2, 8, 7, 3)).astype(np.float32))
first = tf.constant(rng.normal(size=(2, 3, 8, 7)).astype(np.float32))
volume = tf.constant(rng.normal(size=(2, 5, 6, 4, 2)).astype(np.float32))
half = tf.constant(0.5 * rng.randint(-2, 3, (2, 6, 6, 2)).astype(np.float32))

layers = tf.layers
ones = tf.ones_initializer()
MADE = [
    (row, lambda x: layers.dense(x, 5)),
    (row, lambda x: layers.dense(x, 5, tf.nn.tanh, use_bias=False, kernel_initializer=tf.glorot_normal_initializer())),
    (row, lambda x: layers.dense(x, 2, bias_initializer=ones, name="named")),
    (line, lambda x: layers.dense(x, 3, tf.nn.relu, kernel_regularizer=tf.nn.l2_loss)),
    (line, lambda x: layers.conv1d(x, 5, 3)),
    (line, lambda x: layers.conv1d(x, 5, 3, padding="same", strides=2, activation=tf.nn.elu)),
    (image, lambda x: layers.conv2d(x, 4, 3)),
    (image, lambda x: layers.conv2d(x, 4, [3, 2], strides=(2, 1), padding="SAME", activation=tf.nn.relu)),
    (image, lambda x: layers.conv2d(x, 4, 3, dilation_rate=2, use_bias=False)),
    (image, lambda x: layers.conv2d_transpose(x, 4, 3)),
    (image, lambda x: layers.conv2d_transpose(x, 2, [5, 4], strides=2, padding="same", bias_initializer=ones)),
    (image, lambda x: layers.conv2d_transpose(x, 2, 2, strides=(3, 2), padding="valid")),
    (image, lambda x: layers.separable_conv2d(x, 5, 3, depth_multiplier=2, padding="same")),
    (volume, lambda x: layers.conv3d(x, 3, 2, strides=(1, 2, 1), padding="same")),
    (volume, lambda x: layers.conv3d_transpose(x, 3, 2, strides=2)),
    (line, lambda x: layers.max_pooling1d(x, 3, 2)),
    (line, lambda x: layers.average_pooling1d(x, 2, 1, padding="same")),
    (image, lambda x: layers.max_pooling2d(x, 2, 2)),
    (image, lambda x: layers.max_pooling2d(x, [3, 2], [2, 1], padding="same")),
    (half, lambda x: layers.max_pooling2d(tf.nn.relu(x), 2, 2)),
    (half, lambda x: layers.max_pooling2d(x, 3, 2, padding="SAME")),
    (image, lambda x: layers.average_pooling2d(x, 3, 2, padding="same")),
    (volume, lambda x: layers.max_pooling3d(x, 2, 2, padding="same")),
    (volume, lambda x: layers.average_pooling3d(x, 2, 1)),
    (image, lambda x: layers.flatten(x)),
    (first, lambda x: layers.flatten(x, data_format="channels_first")),
    (image, lambda x: layers.batch_normalization(x)),
    (image, lambda x: layers.batch_normalization(x, training=True, momentum=0.7, epsilon=0.01)),
    (first, lambda x: layers.batch_normalization(x, axis=1, training=True, center=False, fused=False)),
    (row, lambda x: layers.batch_normalization(x, training=True, scale=False, beta_initializer=ones)),
    (image, lambda x: layers.dropout(x)),
    (image, lambda x: layers.dropout(x, 0.3, training=True)),
    (image, lambda x: layers.dropout(x, 0.6, noise_shape=[2, 1, 1, 3], training=True)),
    (row, lambda x: layers.Dense(3, name="twice")(layers.Dense(6, name="once")(x))),
]


def weighed(value, number):
    """One number that knows where each element of a value stands."""
    weights = np.random.RandomState(number).normal(size=value.get_shape().as_list()).astype(np.float32)
    return tf.reduce_sum(value * weights)


fetches = {}
for number, (given, make) in enumerate(MADE):
    seen = len(tf.trainable_variables())
    result = make(given)
    print(number, result.get_shape())
    total = weighed(result, number)
    own = tf.trainable_variables()[seen:]
    grads = tf.gradients(total, [given] + own)
    fetches["%02d" % number] = [total] + [weighed(grad, 100 + i) for i, grad in enumerate(grads)]
updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
print(len(updates), "updates,", len(losses), "losses")

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(fetches)
    sess.run(losses)
    for _ in range(3):
        sess.run(updates)
    sess.run([tf.reduce_sum(variable) for variable in tf.global_variables()])
    sess.run(fetches["26"])
