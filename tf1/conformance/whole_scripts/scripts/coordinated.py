"""A thread of one's own that feeds a training loop, with a Coordinator, py_func and an assignment."""

import threading

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(21)
points = rng.normal(size=(100, 2)).astype(np.float32)
batches, ready = [], threading.Condition()


def produce(coord):
    with coord.stop_on_exception():
        for number in range(25):
            with ready:
                batches.append(points[number * 4 : number * 4 + 4])
                ready.notify()


def scaled(x, factor):
    return (x * factor).astype(np.float32)


with tf.Graph().as_default() as g:
    raw = tf.placeholder(tf.float32, [None, 2])
    x = tf.py_func(scaled, [raw, np.float32(0.5)], tf.float32)
    x.set_shape([None, 2])
    mean = tf.Variable([1.0, -1.0], name="mean")
    best = tf.Variable(np.inf, trainable=False, name="best")
    with tf.name_scope("distance"):
        loss = tf.reduce_mean(tf.norm(x - mean, axis=1))
    train_op = tf.train.GradientDescentOptimizer(0.2).minimize(loss)
    new_best = tf.placeholder(tf.float32, [])
    keep_best = best.assign(new_best)
    coord = tf.train.Coordinator()
    with tf.Session(graph=g) as sess:
        sess.run(tf.global_variables_initializer())
        threads = [threading.Thread(target=produce, args=(coord,))]
        for thread in threads:
            coord.register_thread(thread)
            thread.start()
        for number in range(25):
            if coord.should_stop():
                break
            with ready:
                while len(batches) <= number:
                    ready.wait()
            _, value = sess.run([train_op, loss], {raw: batches[number]})
            if value < best.eval():
                sess.run(keep_best, {new_best: value})
        coord.request_stop()
        coord.join(threads)
        print("best", sess.run(best), "mean", mean.eval(session=sess))
