"""Supervisor: it initialises, restores, saves; the loop writes summaries itself."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(12)
data = rng.normal(size=(64, 3)).astype(np.float32)


def build():
    global_step = tf.Variable(0, name="global_step", trainable=False)
    w = tf.get_variable("w", [3, 3], initializer=tf.random_normal_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(data, w) - data))
    tf.summary.scalar("loss", loss)
    train_op = tf.train.AdamOptimizer(0.05).minimize(loss, global_step=global_step)
    return global_step, loss, train_op


for attempt in range(2):
    with tf.Graph().as_default():
        global_step, loss, train_op = build()
        summary_op = tf.summary.merge_all()
        sv = tf.train.Supervisor(
            logdir="supervised",
            is_chief=True,
            saver=tf.train.Saver(),
            global_step=global_step,
            summary_op=None,
            # TensorFlow names event files by the second, in which both attempts may lie.
            summary_writer=tf.summary.FileWriter("supervised", filename_suffix=".%d" % attempt),
            save_model_secs=0,
        )
        with sv.managed_session() as sess:
            print("begins at", sess.run(global_step))
            for _ in range(30):
                if sv.should_stop():
                    break
                _, value = sess.run([train_op, loss])
                step = sess.run(global_step)
                if step % 10 == 0:
                    sv.summary_computed(sess, sess.run(summary_op), global_step=step)
            sv.saver.save(sess, sv.save_path, global_step=global_step)
        print("ended with", value)
