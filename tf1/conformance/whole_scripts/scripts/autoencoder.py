"""A denoising autoencoder with transposed convolutions, as a class with save and restore."""

import os

import numpy as np
import tensorflow as tf


class DenoisingAutoencoder:
    def __init__(self, sess, checkpoint_dir="checkpoint"):
        self.sess, self.checkpoint_dir = sess, checkpoint_dir
        self.build_model()

    def build_model(self):
        self.inputs = tf.placeholder(tf.float32, [None, 8, 8, 1], name="inputs")
        noisy = self.inputs + 0.2 * tf.random_normal(shape=tf.shape(self.inputs), dtype=tf.float32)
        net = self.conv2d(noisy, 6, "h0_conv")
        net = tf.nn.relu(self.conv2d(net, 12, name="h1_conv"))
        net = tf.layers.conv2d_transpose(net, 6, 3, strides=2, padding="same", activation=tf.nn.relu)
        self.outputs = self.deconv2d(net, [tf.shape(self.inputs)[0], 8, 8, 1], 6)
        self.loss = tf.reduce_mean(tf.reduce_sum(tf.square(self.outputs - self.inputs), axis=[1, 2, 3]))
        self.loss_sum = tf.summary.scalar("loss", self.loss)
        self.image_sum = tf.summary.image("outputs", tf.clip_by_value(self.outputs, 0.0, 1.0), max_outputs=2)
        self.saver = tf.train.Saver()

    def conv2d(self, x, output_dim, name, stddev=0.2):
        with tf.variable_scope(name):
            w = tf.get_variable(
                "w", [3, 3, x.get_shape()[-1], output_dim], initializer=tf.truncated_normal_initializer(stddev=stddev)
            )
            conv = tf.nn.conv2d(x, w, strides=[1, 2, 2, 1], padding="SAME")
            biases = tf.get_variable("biases", [output_dim], initializer=tf.constant_initializer(0.0))
            return tf.nn.bias_add(conv, biases)

    def deconv2d(self, x, output_shape, channels):
        with tf.variable_scope("deconv"):
            w = tf.get_variable("w", [3, 3, 1, channels], initializer=tf.random_normal_initializer(stddev=0.2))
            return tf.nn.sigmoid(tf.nn.conv2d_transpose(x, w, output_shape=output_shape, strides=[1, 2, 2, 1]))

    def train(self, data):
        optim = tf.train.AdamOptimizer(0.01, beta1=0.5).minimize(self.loss)
        try:
            tf.global_variables_initializer().run()
        except AttributeError:
            tf.initialize_all_variables().run()
        self.writer = tf.summary.FileWriter("./logs", self.sess.graph)
        summaries = tf.summary.merge([self.loss_sum, self.image_sum])
        for counter in range(30):
            batch = data[counter * 16 % 64 :][:16]
            _, summary_str, loss = self.sess.run([optim, summaries, self.loss], feed_dict={self.inputs: batch})
            self.writer.add_summary(summary_str, counter)
        print("loss", loss)
        self.save(counter)

    def save(self, step):
        if not os.path.exists(self.checkpoint_dir):
            os.makedirs(self.checkpoint_dir)
        self.saver.save(self.sess, os.path.join(self.checkpoint_dir, "DAE.model"), global_step=step)

    def load(self):
        ckpt = tf.train.get_checkpoint_state(self.checkpoint_dir)
        if ckpt and ckpt.model_checkpoint_path:
            self.saver.restore(
                self.sess, os.path.join(self.checkpoint_dir, os.path.basename(ckpt.model_checkpoint_path))
            )
            return True
        return False


data = np.random.RandomState(19).uniform(size=(64, 8, 8, 1)).round()
with tf.Session() as sess:
    dae = DenoisingAutoencoder(sess)
    assert not dae.load()
    dae.train(data)
    first = sess.run(dae.loss, {dae.inputs: data})
    sess.run(tf.global_variables_initializer())
    assert dae.load()
    print(first, sess.run(dae.loss, {dae.inputs: data}))
