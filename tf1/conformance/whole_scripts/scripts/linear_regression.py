"""A line through points: the first script that everybody writes."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(1)
train_X = rng.uniform(0, 10, 40)
train_Y = 0.3 * train_X + 1.5 + rng.normal(0, 0.1, 40)
n_samples = train_X.shape[0]

X = tf.placeholder("float")
Y = tf.placeholder("float")
W = tf.Variable(0.5, name="weight")
b = tf.Variable(-0.5, name="bias")
pred = tf.add(tf.multiply(X, W), b)
cost = tf.reduce_sum(tf.pow(pred - Y, 2)) / (2 * n_samples)
optimizer = tf.train.GradientDescentOptimizer(0.01).minimize(cost)
init = tf.global_variables_initializer()

with tf.Session() as sess:
    sess.run(init)
    for epoch in range(20):
        for x, y in zip(train_X, train_Y):
            sess.run(optimizer, feed_dict={X: x, Y: y})
        if (epoch + 1) % 5 == 0:
            c = sess.run(cost, feed_dict={X: train_X, Y: train_Y})
            print("Epoch:", "%04d" % (epoch + 1), "cost=", f"{c:.9f}", "W=", sess.run(W), "b=", sess.run(b))
    training_cost = sess.run(cost, feed_dict={X: train_X, Y: train_Y})
    print("Training cost=", training_cost, "W=", sess.run(W), "b=", sess.run(b), "\n")
