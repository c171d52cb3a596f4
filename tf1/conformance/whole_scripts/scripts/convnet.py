"""A convolutional network with tf.layers, dropout, flags, summaries and checkpoints."""

import os

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_integer("max_steps", 40, "Number of steps to run trainer.")
flags.DEFINE_float("learning_rate", 0.001, "Initial learning rate.")
flags.DEFINE_float("dropout", 0.6, "Keep probability for training dropout.")
flags.DEFINE_string("train_dir", "logs", "Summaries log directory.")
FLAGS = flags.FLAGS


def data():
    rng = np.random.RandomState(3)
    labels = rng.randint(0, 4, 400)
    images = rng.normal(0, 0.3, (400, 12, 12, 1))
    for image, label in zip(images, labels):
        image[3 * label : 3 * label + 3, :, 0] += 1
    return images.astype(np.float32), labels.astype(np.int64)


def inference(images, keep_prob, is_training):
    with tf.variable_scope("features"):
        net = tf.layers.conv2d(images, 8, 3, padding="same", activation=tf.nn.relu, name="conv1")
        net = tf.layers.max_pooling2d(net, 2, 2)
        net = tf.layers.conv2d(net, 16, [3, 3], strides=(1, 1), activation=tf.nn.relu, name="conv2")
        net = tf.layers.average_pooling2d(net, [2, 2], [2, 2])
    net = tf.layers.flatten(net)
    net = tf.layers.dense(net, 32, activation=tf.nn.relu)
    net = tf.layers.dropout(net, rate=0.4, training=is_training)
    net = tf.nn.dropout(net, keep_prob)
    return tf.layers.dense(net, 4, name="logits")


def main(_):
    if tf.gfile.Exists(FLAGS.train_dir):
        tf.gfile.DeleteRecursively(FLAGS.train_dir)
    tf.gfile.MakeDirs(FLAGS.train_dir)
    images, labels = data()
    with tf.Graph().as_default():
        tf.set_random_seed(1234)
        x = tf.placeholder(tf.float32, [None, 12, 12, 1], name="x-input")
        y = tf.placeholder(tf.int64, [None], name="y-input")
        keep_prob = tf.placeholder(tf.float32)
        is_training = tf.placeholder_with_default(False, [], name="is_training")
        logits = inference(x, keep_prob, is_training)
        with tf.name_scope("loss"):
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        tf.summary.scalar("cross_entropy", loss)
        tf.summary.histogram("logits", logits)
        with tf.name_scope("accuracy"):
            accuracy = tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, y, 1), tf.float32))
        tf.summary.scalar("accuracy", accuracy)
        global_step = tf.Variable(0, name="global_step", trainable=False)
        train_op = tf.train.AdamOptimizer(FLAGS.learning_rate).minimize(loss, global_step=global_step)
        merged = tf.summary.merge_all()
        saver = tf.train.Saver(tf.global_variables(), max_to_keep=3)
        config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
        config.gpu_options.allow_growth = True
        with tf.Session(config=config) as sess:
            writer = tf.summary.FileWriter(os.path.join(FLAGS.train_dir, "train"), sess.graph)
            sess.run(tf.global_variables_initializer())
            for step in range(FLAGS.max_steps):
                at = (step * 20) % 400
                feed = {x: images[at : at + 20], y: labels[at : at + 20], keep_prob: FLAGS.dropout, is_training: True}
                _, loss_value = sess.run([train_op, loss], feed_dict=feed)
                assert not np.isnan(loss_value), "Model diverged with loss = NaN"
                if step % 10 == 0:
                    summary, acc = sess.run([merged, accuracy], {x: images, y: labels, keep_prob: 1.0})
                    writer.add_summary(summary, step)
                    saver.save(sess, os.path.join(FLAGS.train_dir, "model.ckpt"), global_step=step)
                    print("step %d: loss %.4f, accuracy %.3f" % (step, loss_value, acc))
            writer.close()
        with tf.Session() as sess:
            saver.restore(sess, tf.train.latest_checkpoint(FLAGS.train_dir))
            print("restored", sess.run(global_step), sess.run(loss, {x: images, y: labels, keep_prob: 1.0}))


if __name__ == "__main__":
    tf.app.run()
