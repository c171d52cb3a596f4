"""Batch normalisation with its update operations, a training switch and weight decay."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(6)
images = rng.normal(size=(300, 8, 8, 2)).astype(np.float32)
labels = (images.mean((1, 2, 3)) > 0).astype(np.int32)

x = tf.placeholder(tf.float32, [None, 8, 8, 2])
y = tf.placeholder(tf.int32, [None])
training = tf.placeholder(tf.bool, name="training")


def block(net, filters, name):
    with tf.variable_scope(name):
        net = tf.layers.conv2d(
            net,
            filters,
            3,
            padding="SAME",
            use_bias=False,
            kernel_regularizer=lambda w: 1e-3 * tf.nn.l2_loss(w),
        )
        net = tf.layers.batch_normalization(net, momentum=0.9, training=training)
        return tf.nn.relu(net)


net = block(x, 4, "block1")
net = block(net, 8, "block2")
net = tf.reduce_mean(net, [1, 2])
logits = tf.layers.dense(net, 2)
tf.losses.sparse_softmax_cross_entropy(y, logits)
total_loss = tf.losses.get_total_loss()
update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
print(len(update_ops), "updates,", len(tf.losses.get_regularization_losses()), "regularization losses")
with tf.control_dependencies(update_ops):
    train_op = tf.train.AdamOptimizer(1e-2).minimize(total_loss)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(40):
        at = step * 30 % 300
        _, loss = sess.run([train_op, total_loss], {x: images[at : at + 30], y: labels[at : at + 30], training: True})
    print(loss, sess.run(total_loss, {x: images, y: labels, training: False}))
    moving = [v for v in tf.global_variables() if "moving" in v.name]
    for v in moving:
        print(v.name, sess.run(tf.reduce_sum(v)))
