"""REINFORCE on a small walk: gradients are fetched, kept in a buffer, and fed back."""

import numpy as np
import tensorflow as tf


class Agent:
    def __init__(self, lr, s_size, a_size, h_size):
        self.state_in = tf.placeholder(shape=[None, s_size], dtype=tf.float32)
        hidden = tf.layers.dense(self.state_in, h_size, activation=tf.nn.relu, use_bias=False)
        self.output = tf.layers.dense(hidden, a_size, activation=tf.nn.softmax, use_bias=False)
        self.chosen_action = tf.argmax(self.output, 1)
        self.reward_holder = tf.placeholder(shape=[None], dtype=tf.float32)
        self.action_holder = tf.placeholder(shape=[None], dtype=tf.int32)
        self.indexes = tf.range(0, tf.shape(self.output)[0]) * tf.shape(self.output)[1] + self.action_holder
        self.responsible_outputs = tf.gather(tf.reshape(self.output, [-1]), self.indexes)
        self.loss = -tf.reduce_mean(tf.log(self.responsible_outputs) * self.reward_holder)
        tvars = tf.trainable_variables()
        self.gradient_holders = []
        for idx, var in enumerate(tvars):
            self.gradient_holders.append(tf.placeholder(tf.float32, name=str(idx) + "_holder"))
        self.gradients = tf.gradients(self.loss, tvars)
        self.update_batch = tf.train.AdamOptimizer(learning_rate=lr).apply_gradients(zip(self.gradient_holders, tvars))


tf.reset_default_graph()
agent = Agent(lr=1e-2, s_size=4, a_size=2, h_size=8)
rng = np.random.RandomState(14)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    buffer = sess.run(tf.trainable_variables())
    for ix, grad in enumerate(buffer):
        buffer[ix] = grad * 0
    for episode in range(30):
        state, history = rng.normal(size=4), []
        for _ in range(12):
            odds = sess.run(agent.output, feed_dict={agent.state_in: [state]})
            action = int(rng.uniform() > np.round(odds[0][0], 4))
            history.append([state, action, state[0] if action else -state[0]])
            state = rng.normal(size=4)
        rewards = np.cumsum([reward for _, _, reward in history][::-1])[::-1]
        feed_dict = {
            agent.reward_holder: rewards,
            agent.action_holder: [action for _, action, _ in history],
            agent.state_in: np.vstack([state for state, _, _ in history]),
        }
        loss, grads = sess.run([agent.loss, agent.gradients], feed_dict=feed_dict)
        for idx, grad in enumerate(grads):
            buffer[idx] += grad
        if episode % 5 == 4:
            sess.run(agent.update_batch, feed_dict=dict(zip(agent.gradient_holders, buffer)))
            for ix, grad in enumerate(buffer):
                buffer[ix] = grad * 0
            print(episode, loss)
