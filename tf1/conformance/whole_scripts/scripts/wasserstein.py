"""A critic with a gradient penalty: gradients of gradients, and an input between real and made points."""

import numpy as np
import tensorflow as tf


def critic(x, reuse=None):
    with tf.variable_scope("critic", reuse=reuse):
        net = tf.layers.dense(x, 16, tf.nn.tanh, name="fc1")
        return tf.layers.dense(net, 1, use_bias=False, name="fc2")


def maker(z):
    with tf.variable_scope("maker"):
        net = tf.layers.dense(z, 16, tf.nn.leaky_relu)
        return tf.layers.dense(net, 2)


real = tf.placeholder(tf.float32, [64, 2])
z = tf.random_normal([64, 4])
fake = maker(z)
d_real, d_fake = critic(real), critic(fake, reuse=True)
epsilon = tf.random_uniform([64, 1], 0.0, 1.0)
x_hat = epsilon * real + (1 - epsilon) * fake
ddx = tf.gradients(critic(x_hat, reuse=True), x_hat)[0]
grads = tf.sqrt(tf.reduce_sum(tf.square(ddx), axis=1) + 1e-8)
penalty = tf.reduce_mean(tf.square(grads - 1.0) * 10.0)
d_loss = tf.reduce_mean(d_fake) - tf.reduce_mean(d_real) + penalty
g_loss = -tf.reduce_mean(d_fake)
t_vars = tf.trainable_variables()
with tf.control_dependencies([d_loss]):  # Or TensorFlow may compute a part of the loss after the update.
    d_opt = tf.train.AdamOptimizer(1e-3, beta1=0.5, beta2=0.9).minimize(
        d_loss, var_list=[v for v in t_vars if "critic" in v.name]
    )
g_opt = tf.train.AdamOptimizer(1e-3, beta1=0.5, beta2=0.9).minimize(
    g_loss, var_list=[v for v in t_vars if v.name.startswith("maker")]
)
rng = np.random.RandomState(18)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(60):
        batch = rng.normal([1.0, -1.0], 0.3, (64, 2))
        _, d = sess.run([d_opt, d_loss], {real: batch})
        if step % 3 == 0:
            _, g = sess.run([g_opt, g_loss])
        if step % 20 == 0:
            print(step, d, g)
