"""Characters from the three before them: embeddings, samples drawn from the model, perplexity."""

import numpy as np
import tensorflow as tf

text = "the cat sat on the mat and the dog sat on the log " * 20
chars = sorted(set(text))
lookup = {c: i for i, c in enumerate(chars)}
ids = np.array([lookup[c] for c in text], np.int32)
windows = np.stack([ids[i : len(ids) - 4 + i] for i in range(4)], 1)
vocab = len(chars)


class Model:
    def __init__(self, size, training=True):
        self.input_data = tf.placeholder(tf.int32, [None, 3])
        self.targets = tf.placeholder(tf.int32, [None])
        with tf.variable_scope("lm", reuse=tf.AUTO_REUSE):
            embedding = tf.get_variable("embedding", [vocab, size])
            inputs = tf.nn.embedding_lookup(embedding, self.input_data)
            parts = tf.split(inputs, 3, 1)
            parts = [tf.squeeze(part, [1]) for part in parts]
            net = tf.concat(parts, 1)
            if training:
                net = tf.nn.dropout(net, keep_prob=0.8)
            softmax_w = tf.get_variable("softmax_w", [3 * size, vocab])
            softmax_b = tf.get_variable("softmax_b", [vocab], initializer=tf.zeros_initializer)
            self.logits = tf.matmul(net, softmax_w) + softmax_b
        self.probs = tf.nn.softmax(self.logits)
        self.sample = tf.multinomial(self.logits, 1)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.targets, logits=self.logits)
        self.cost = tf.reduce_sum(loss) / tf.to_float(tf.shape(loss)[0])
        if training:
            self.lr = tf.Variable(0.0, trainable=False)
            tvars = tf.trainable_variables()
            grads, _ = tf.clip_by_global_norm(tf.gradients(self.cost, tvars), 5.0)
            self.train_op = tf.train.AdamOptimizer(self.lr).apply_gradients(zip(grads, tvars))


model, sampler = Model(6), Model(6, training=False)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(3):
        sess.run(tf.assign(model.lr, 0.01 * (0.9**epoch)))
        for at in range(0, len(windows) - 50, 50):
            batch = windows[at : at + 50]
            feed = {model.input_data: batch[:, :3], model.targets: batch[:, 3]}
            train_loss, _ = sess.run([model.cost, model.train_op], feed)
        print(
            epoch,
            train_loss,
            np.exp(sess.run(sampler.cost, {sampler.input_data: windows[:, :3], sampler.targets: windows[:, 3]})),
        )
    out = [0, 1, 2]
    for _ in range(10):
        out.append(int(sess.run(sampler.sample, {sampler.input_data: [out[-3:]]})[0][0]))
    print("".join(chars[i] for i in out))
