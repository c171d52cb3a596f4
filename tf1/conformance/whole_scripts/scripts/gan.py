"""A generative adversarial network in one dimension: two optimizers, two sets of variables, reuse."""

import numpy as np
import tensorflow as tf


def generator(z, hidden_size):
    with tf.variable_scope("G"):
        h0 = tf.nn.softplus(linear(z, hidden_size, "g0"))
        return linear(h0, 1, "g1")


def discriminator(x, hidden_size, reuse=False):
    with tf.variable_scope("D") as scope:
        if reuse:
            scope.reuse_variables()
        h0 = tf.nn.relu(linear(x, hidden_size * 2, "d0"))
        h1 = tf.nn.relu(linear(h0, hidden_size * 2, scope="d1"))
        return tf.sigmoid(linear(h1, 1, scope="d2"))


def linear(input, output_dim, scope=None, stddev=1.0):
    with tf.variable_scope(scope or "linear"):
        w = tf.get_variable(
            "w", [input.get_shape()[1], output_dim], initializer=tf.random_normal_initializer(stddev=stddev)
        )
        b = tf.get_variable("b", [output_dim], initializer=tf.constant_initializer(0.0))
        return tf.matmul(input, w) + b


def log(x):
    return tf.log(tf.maximum(x, 1e-5))


batch_size = 32
z = tf.placeholder(tf.float32, shape=(batch_size, 1))
x = tf.placeholder(tf.float32, shape=(batch_size, 1))
G = generator(z, 4)
D1 = discriminator(x, 4)
D2 = discriminator(G, 4, reuse=True)
loss_d = tf.reduce_mean(-log(D1) - log(1 - D2))
loss_g = tf.reduce_mean(-log(D2))
vars = tf.trainable_variables()
d_params = [v for v in vars if v.name.startswith("D/")]
g_params = [v for v in vars if v.name.startswith("G/")]
opt_d = tf.train.GradientDescentOptimizer(0.01).minimize(loss_d, var_list=d_params, global_step=tf.Variable(0))
opt_g = tf.train.AdamOptimizer(0.005, beta1=0.5).minimize(loss_g, var_list=g_params)

with tf.Session() as session:
    tf.local_variables_initializer().run()
    tf.global_variables_initializer().run()
    for step in range(150):
        real = np.sort(np.random.normal(4, 0.5, batch_size))
        noise = np.linspace(-8, 8, batch_size) + np.random.random(batch_size) * 0.01
        d, _ = session.run(
            [loss_d, opt_d],
            {x: np.reshape(real, (batch_size, 1)), z: np.reshape(noise, (batch_size, 1))},
        )
        g, _ = session.run([loss_g, opt_g], {z: np.reshape(noise, (batch_size, 1))})
        if step % 50 == 0:
            print(f"{step}: {d:.4f}\t{g:.4f}")
    print(session.run(G, {z: np.zeros((batch_size, 1))}).mean())
