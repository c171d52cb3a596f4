"""Moving averages of the weights, and an evaluation with them."""

import os

import numpy as np
import tensorflow as tf

MOVING_AVERAGE_DECAY = 0.95
rng = np.random.RandomState(7)
inputs = rng.normal(size=(200, 6)).astype(np.float32)
outputs = np.sin(inputs.sum(1, keepdims=True)).astype(np.float32)


def model(x):
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
        w1 = tf.get_variable("w1", [6, 12], initializer=tf.truncated_normal_initializer(stddev=0.4, seed=1))
        b1 = tf.get_variable("b1", [12], initializer=tf.zeros_initializer())
        w2 = tf.get_variable("w2", [12, 1], initializer=tf.random_uniform_initializer(-0.5, 0.5))
        tf.add_to_collection("losses", tf.multiply(tf.nn.l2_loss(w1), 0.004, name="weight_loss"))
        return tf.matmul(tf.tanh(tf.matmul(x, w1) + b1), w2)


with tf.Graph().as_default():
    global_step = tf.Variable(0, trainable=False, name="global_step")
    x = tf.placeholder(tf.float32, [None, 6])
    y = tf.placeholder(tf.float32, [None, 1])
    error = tf.reduce_mean(tf.squared_difference(model(x), y))
    tf.add_to_collection("losses", error)
    loss = tf.add_n(tf.get_collection("losses"), name="total_loss")
    loss_averages = tf.train.ExponentialMovingAverage(0.9, name="avg")
    loss_averages_op = loss_averages.apply([loss])
    lr = tf.train.exponential_decay(0.1, global_step, 50, 0.5, staircase=True)
    with tf.control_dependencies([loss_averages_op]):
        opt = tf.train.GradientDescentOptimizer(lr)
        grads = opt.compute_gradients(loss)
    apply_gradient_op = opt.apply_gradients(grads, global_step=global_step)
    variable_averages = tf.train.ExponentialMovingAverage(MOVING_AVERAGE_DECAY, global_step)
    with tf.control_dependencies([apply_gradient_op]):
        train_op = variable_averages.apply(tf.trainable_variables())
    saver = tf.train.Saver()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(80):
            sess.run(train_op, {x: inputs, y: outputs})
            value = sess.run(loss, {x: inputs, y: outputs})
        print("smoothed", sess.run(loss_averages.average(loss)))
        saver.save(sess, os.path.join(os.getcwd(), "averaged.ckpt"), global_step)

with tf.Graph().as_default():
    x = tf.placeholder(tf.float32, [None, 6])
    prediction = model(x)
    averages = tf.train.ExponentialMovingAverage(MOVING_AVERAGE_DECAY)
    to_restore = averages.variables_to_restore()
    print(sorted(to_restore))
    saver = tf.train.Saver(to_restore)
    with tf.Session() as sess:
        ckpt = tf.train.get_checkpoint_state(os.getcwd())
        saver.restore(sess, ckpt.model_checkpoint_path)
        print(ckpt.model_checkpoint_path.split("/")[-1].split("-")[-1])
        print("error", sess.run(tf.reduce_mean(tf.square(prediction - outputs)), {x: inputs}))
