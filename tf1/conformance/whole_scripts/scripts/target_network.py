"""Q-learning with a target network: assignments from one set of variables to the other, and clipped gradients."""

import numpy as np
import tensorflow as tf


def build_net(s, scope, trainable):
    c_names = [scope, tf.GraphKeys.GLOBAL_VARIABLES]
    w_init, b_init = tf.random_normal_initializer(0.0, 0.3), tf.constant_initializer(0.1)
    with tf.variable_scope(scope):
        with tf.variable_scope("l1"):
            w1 = tf.get_variable("w1", [3, 10], initializer=w_init, collections=c_names, trainable=trainable)
            b1 = tf.get_variable("b1", [1, 10], initializer=b_init, collections=c_names, trainable=trainable)
            l1 = tf.nn.relu(tf.matmul(s, w1) + b1)
        with tf.variable_scope("l2"):
            w2 = tf.get_variable("w2", [10, 2], initializer=w_init, collections=c_names, trainable=trainable)
            b2 = tf.get_variable("b2", [1, 2], initializer=b_init, collections=c_names, trainable=trainable)
            return tf.matmul(l1, w2) + b2


s = tf.placeholder(tf.float32, [None, 3], name="s")
s_ = tf.placeholder(tf.float32, [None, 3], name="s_")
r = tf.placeholder(tf.float32, [None], name="r")
a = tf.placeholder(tf.int32, [None], name="a")
q_eval = build_net(s, "eval_net", True)
q_next = build_net(s_, "target_net", False)
q_target = tf.stop_gradient(r + 0.9 * tf.reduce_max(q_next, axis=1, name="Qmax_s_"))
a_indices = tf.stack([tf.range(tf.shape(a)[0], dtype=tf.int32), a], axis=1)
q_chosen = tf.gather_nd(params=q_eval, indices=a_indices)
loss = tf.reduce_mean(tf.squared_difference(q_target, q_chosen, name="TD_error"))
optimizer = tf.train.RMSPropOptimizer(0.01)
grads, variables = zip(*optimizer.compute_gradients(loss, tf.get_collection("eval_net")))
grads, norm = tf.clip_by_global_norm(grads, 1.0)
train_op = optimizer.apply_gradients(zip(grads, variables))
t_params, e_params = tf.get_collection("target_net"), tf.get_collection("eval_net")
replace_target_op = [tf.assign(t, e) for t, e in zip(t_params, e_params)]

rng = np.random.RandomState(15)
memory = rng.normal(size=(200, 3 + 3 + 1)).astype(np.float32)
actions = rng.randint(0, 2, 200)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(100):
        if step % 20 == 0:
            sess.run(replace_target_op)
        at = rng.choice(200, 32)
        feed = {s: memory[at, :3], s_: memory[at, 3:6], r: memory[at, 6], a: actions[at]}
        _, cost, size = sess.run([train_op, loss, norm], feed_dict=feed)
        if step % 25 == 0:
            print(step, cost, size)
