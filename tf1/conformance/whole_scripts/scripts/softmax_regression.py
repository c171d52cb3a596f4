"""Softmax regression with an interactive session."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(2)
centers = rng.normal(size=(10, 64))
labels = rng.randint(0, 10, 2000)
images = (centers[labels] + rng.normal(size=(2000, 64))).astype(np.float32)
onehot = np.eye(10)[labels]

sess = tf.InteractiveSession()
x = tf.placeholder(tf.float32, [None, 64])
W = tf.Variable(tf.zeros([64, 10]))
b = tf.Variable(tf.zeros([10]))
y = tf.nn.softmax(tf.matmul(x, W) + b)
y_ = tf.placeholder(tf.float32, [None, 10])
cross_entropy = tf.reduce_mean(-tf.reduce_sum(y_ * tf.log(tf.clip_by_value(y, 1e-10, 1.0)), reduction_indices=[1]))
train_step = tf.train.GradientDescentOptimizer(0.5).minimize(cross_entropy)
correct_prediction = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
accuracy = tf.reduce_mean(tf.cast(correct_prediction, tf.float32))

tf.global_variables_initializer().run()
for i in range(100):
    at = (i * 50) % 2000
    feed = {x: images[at : at + 50], y_: onehot[at : at + 50]}
    train_step.run(feed)
    if i % 10 == 0:
        print(i, cross_entropy.eval(feed), sess.run(accuracy, feed_dict=feed))
print(accuracy.eval({x: images, y_: onehot}))
sess.close()
