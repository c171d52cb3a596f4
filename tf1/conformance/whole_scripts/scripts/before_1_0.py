"""As scripts were before TF 1.0: summaries, initializers, mul and concat by their old names."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(22)
data = rng.normal(size=(80, 4)).astype(np.float32)
labels = (data.sum(1) > 0).astype(np.int32)

x = tf.placeholder(tf.float32, [None, 4])
y = tf.placeholder(tf.int32, [None])
weights = tf.Variable(tf.zeros([8, 2]), name="weights")
both = tf.concat(1, [x, tf.mul(x, x)])
left, right = tf.split(1, 2, both)
logits = tf.matmul(tf.concat(1, [left, tf.sub(right, 1.0)]), weights)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits, y))
tf.scalar_summary("loss", loss)
tf.histogram_summary("weights", weights)
merged = tf.merge_all_summaries()
train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.initialize_all_variables())
    writer = tf.train.SummaryWriter("old", sess.graph)
    losses = []
    for step in range(30):
        _, summary, value = sess.run([train_op, merged, loss], {x: data, y: labels})
        losses.append(value)
        writer.add_summary(summary, step)
    print(len(tf.all_variables()), losses[0], losses[-1])
    assert abs(losses[0] - np.log(2)) < 1e-6
    assert losses[-1] < 0.4
    writer.close()
