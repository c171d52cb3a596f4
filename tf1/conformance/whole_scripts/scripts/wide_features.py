"""A wide model with FTRL, an embedding beside it, sigmoid loss and L1."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(16)
ids = rng.randint(0, 50, (300, 3))
scores = rng.normal(size=50)
clicks = (scores[ids].sum(1) > 0).astype(np.float32).reshape(-1, 1)

feat_index = tf.placeholder(tf.int32, shape=[None, 3], name="feat_index")
label = tf.placeholder(tf.float32, shape=[None, 1], name="label")
with tf.variable_scope("wide"):
    linear = tf.get_variable("linear", [50, 1], initializer=tf.zeros_initializer())
    bias = tf.get_variable("bias", [1], initializer=tf.constant_initializer(0.0))
    wide = tf.reduce_sum(tf.nn.embedding_lookup(linear, feat_index), 1) + bias
with tf.variable_scope("deep"):
    embeddings = tf.get_variable("embeddings", [50, 4], initializer=tf.random_normal_initializer(0.0, 0.1))
    looked_up = tf.nn.embedding_lookup(embeddings, feat_index)
    square_of_sum = tf.square(tf.reduce_sum(looked_up, 1))
    sum_of_square = tf.reduce_sum(tf.square(looked_up), 1)
    second_order = 0.5 * tf.subtract(square_of_sum, sum_of_square)
    net = tf.concat([second_order, tf.reshape(looked_up, shape=[-1, 12])], axis=1)
    net = tf.layers.dense(net, 8, activation=tf.nn.relu)
    deep = tf.layers.dense(net, 1)
logits = wide + deep
loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=logits, labels=label))
wide_vars = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="wide")
deep_vars = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="deep")
train_op = tf.group(
    tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01).minimize(loss, var_list=wide_vars),
    tf.train.AdagradOptimizer(0.05, initial_accumulator_value=0.1).minimize(loss, var_list=deep_vars),
)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(10):
        for at in range(0, 300, 60):
            _, value = sess.run([train_op, loss], {feat_index: ids[at : at + 60], label: clicks[at : at + 60]})
        print(epoch, value, np.count_nonzero(sess.run(linear)))
