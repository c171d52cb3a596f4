"""tf.metrics: value and update operations on local variables, over several batches and reset between epochs."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(9)
x_data = rng.normal(size=(240, 5)).astype(np.float32)
y_data = (x_data[:, 0] + 0.5 * rng.normal(size=240) > 0).astype(np.int64)

x = tf.placeholder(tf.float32, (None, 5), "x")
y = tf.placeholder(tf.int64, (None,), "y")
logits = tf.squeeze(tf.layers.dense(x, 1, name="score"), axis=-1)
probability = tf.sigmoid(logits)
prediction = tf.cast(probability > 0.5, tf.int64)
loss = tf.losses.sigmoid_cross_entropy(y, logits)
train_op = tf.train.AdagradOptimizer(0.3).minimize(loss)
with tf.variable_scope("metrics"):
    metrics = {
        "accuracy": tf.metrics.accuracy(y, prediction),
        "precision": tf.metrics.precision(y, prediction),
        "recall": tf.metrics.recall(y, prediction),
        "auc": tf.metrics.auc(y, probability),
        "loss": tf.metrics.mean(loss),
    }
update_ops = tf.group(*[update for _, update in metrics.values()])
values = {name: value for name, (value, _) in metrics.items()}
metric_variables = tf.get_collection(tf.GraphKeys.LOCAL_VARIABLES, scope="metrics")
reset = tf.variables_initializer(metric_variables)

with tf.Session() as sess:
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    for epoch in range(4):
        sess.run(reset)
        for at in range(0, 240, 24):
            feed = {x: x_data[at : at + 24], y: y_data[at : at + 24]}
            sess.run([train_op, update_ops], feed)
        found = sess.run(values)
        print(epoch, sorted((name, round(float(value), 4)) for name, value in found.items()))
