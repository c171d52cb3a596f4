"""A variational autoencoder: noise of the shape of a tensor, two parts of a loss, xavier by hand."""

import numpy as np
import tensorflow as tf


def xavier_init(fan_in, fan_out, constant=1):
    low = -constant * np.sqrt(6.0 / (fan_in + fan_out))
    high = constant * np.sqrt(6.0 / (fan_in + fan_out))
    return tf.random_uniform((fan_in, fan_out), minval=low, maxval=high, dtype=tf.float32)


class VariationalAutoencoder:
    def __init__(self, n_input, n_hidden, n_z, learning_rate=0.001, transfer_fct=tf.nn.softplus):
        self.x = tf.placeholder(tf.float32, [None, n_input])
        self.weights = {
            "h1": tf.Variable(xavier_init(n_input, n_hidden)),
            "mean": tf.Variable(xavier_init(n_hidden, n_z), name="z_mean"),
            "log_sigma": tf.Variable(xavier_init(n_hidden, n_z)),
            "h2": tf.Variable(xavier_init(n_z, n_hidden)),
            "out": tf.Variable(xavier_init(n_hidden, n_input)),
        }
        self.biases = {
            name: tf.Variable(tf.zeros([n], dtype=tf.float32))
            for name, n in [("h1", n_hidden), ("mean", n_z), ("log_sigma", n_z), ("h2", n_hidden), ("out", n_input)]
        }
        h1 = transfer_fct(tf.add(tf.matmul(self.x, self.weights["h1"]), self.biases["h1"]))
        self.z_mean = tf.add(tf.matmul(h1, self.weights["mean"]), self.biases["mean"])
        self.z_log_sigma_sq = tf.add(tf.matmul(h1, self.weights["log_sigma"]), self.biases["log_sigma"])
        eps = tf.random_normal(tf.shape(self.z_mean), 0, 1, dtype=tf.float32)
        self.z = tf.add(self.z_mean, tf.multiply(tf.sqrt(tf.exp(self.z_log_sigma_sq)), eps))
        h2 = transfer_fct(tf.add(tf.matmul(self.z, self.weights["h2"]), self.biases["h2"]))
        out = tf.nn.sigmoid(tf.add(tf.matmul(h2, self.weights["out"]), self.biases["out"]))
        self.x_reconstr_mean = out
        reconstr_loss = -tf.reduce_sum(self.x * tf.log(1e-10 + out) + (1 - self.x) * tf.log(1e-10 + 1 - out), 1)
        latent_loss = -0.5 * tf.reduce_sum(
            1 + self.z_log_sigma_sq - tf.square(self.z_mean) - tf.exp(self.z_log_sigma_sq), 1
        )
        self.cost = tf.reduce_mean(reconstr_loss + latent_loss)
        self.optimizer = tf.train.AdamOptimizer(learning_rate=learning_rate).minimize(self.cost)
        self.sess = tf.InteractiveSession()
        self.sess.run(tf.global_variables_initializer())

    def partial_fit(self, X):
        opt, cost = self.sess.run((self.optimizer, self.cost), feed_dict={self.x: X})
        return cost


rng = np.random.RandomState(5)
data = (rng.uniform(size=(512, 32)) < rng.uniform(size=32)).astype(np.float32)
vae = VariationalAutoencoder(32, 16, 4)
for epoch in range(10):
    average = 0.0
    for at in range(0, 512, 64):
        average += vae.partial_fit(data[at : at + 64]) / 8
    print("Epoch:", "%04d" % (epoch + 1), "cost=", f"{average:.6f}")
print(vae.sess.run(vae.x_reconstr_mean, {vae.z: np.zeros((1, 4))}).shape)
