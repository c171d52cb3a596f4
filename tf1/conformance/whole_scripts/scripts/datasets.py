"""tf.data: a reinitializable iterator for training and validation, map, batch, repeat and prefetch."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(10)
x_train = rng.normal(size=(120, 4))
y_train = rng.randint(0, 3, 120)
x_train[np.arange(120), y_train] += 2
x_val, y_val = x_train[::4], y_train[::4]


def preprocess(x, y):
    x = tf.cast(x, tf.float32) * 0.5
    return x, tf.one_hot(y, 3)


def input_fn(x, y, batch_size, training):
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if training:
        dataset = dataset.shuffle(1000, seed=1)
    dataset = dataset.map(preprocess, num_parallel_calls=2).batch(batch_size)
    return dataset.prefetch(1)


train_dataset, val_dataset = input_fn(x_train, y_train, 16, True), input_fn(x_val, y_val, 10, False)
iterator = tf.data.Iterator.from_structure(train_dataset.output_types, train_dataset.output_shapes)
features, labels = iterator.get_next()
train_init, val_init = iterator.make_initializer(train_dataset), iterator.make_initializer(val_dataset)
logits = tf.layers.dense(tf.layers.dense(features, 8, tf.nn.elu), 3)
loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits))
train_op = tf.train.RMSPropOptimizer(0.01, momentum=0.5).minimize(loss)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(6):
        sess.run(train_init)
        while True:
            try:
                sess.run([train_op, loss])
            except tf.errors.OutOfRangeError:
                break
        sess.run(val_init)
        losses = []
        try:
            while True:
                losses.append(sess.run(loss))
        except tf.errors.OutOfRangeError:
            pass
        print(epoch, len(losses), np.mean(losses))
