"""Pairs of inputs, one set of weights, a contrastive loss, and a polynomial decay."""

import numpy as np
import tensorflow as tf


def network(x):
    weights = []
    fc1 = tf.nn.relu(fc_layer(x, 16, "fc1"))
    fc2 = tf.nn.relu(fc_layer(fc1, 8, "fc2"))
    return fc_layer(fc2, 2, "fc3")


def fc_layer(bottom, n_weight, name):
    assert len(bottom.get_shape()) == 2
    n_prev_weight = bottom.get_shape()[1]
    initer = tf.truncated_normal_initializer(stddev=0.1)
    W = tf.get_variable(name + "W", dtype=tf.float32, shape=[n_prev_weight, n_weight], initializer=initer)
    b = tf.get_variable(name + "b", dtype=tf.float32, initializer=tf.constant(0.01, shape=[n_weight], dtype=tf.float32))
    return tf.nn.bias_add(tf.matmul(bottom, W), b)


sess = tf.InteractiveSession()
x1 = tf.placeholder(tf.float32, [None, 12])
x2 = tf.placeholder(tf.float32, [None, 12])
y_ = tf.placeholder(tf.float32, [None])
with tf.variable_scope("siamese") as scope:
    o1 = network(x1)
    scope.reuse_variables()
    o2 = network(x2)
margin = 5.0
eucd2 = tf.reduce_sum(tf.pow(tf.subtract(o1, o2), 2), 1)
eucd = tf.sqrt(eucd2 + 1e-6, name="eucd")
C = tf.constant(margin, name="C")
pos = tf.multiply(y_, eucd2, name="yi_x_eucd2")
neg = tf.multiply(tf.subtract(1.0, y_), tf.pow(tf.maximum(tf.subtract(C, eucd), 0), 2), name="Nyi_x_C-eucd_xx_2")
loss = tf.reduce_mean(tf.add(pos, neg, name="losses"), name="loss")
step = tf.Variable(0, trainable=False)
rate = tf.train.polynomial_decay(0.05, step, 60, 0.001, power=0.9)
train_step = tf.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
saver = tf.train.Saver()
tf.global_variables_initializer().run()
rng = np.random.RandomState(20)
for i in range(80):
    kinds = rng.randint(0, 2, (2, 32))
    a, b = (kind[:, None] + 0.3 * rng.normal(size=(32, 12)) for kind in kinds)
    _, loss_v = sess.run([train_step, loss], feed_dict={x1: a, x2: b, y_: (kinds[0] == kinds[1]).astype(float)})
    if np.isnan(loss_v):
        quit()
    if i % 20 == 0:
        saver.save(sess, "./siamese.ckpt")
        print("step %d: loss %.3f rate %.4f" % (i, loss_v, rate.eval()))
