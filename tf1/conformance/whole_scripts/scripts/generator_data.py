"""tf.data from a generator and a text file, with a monitored session that ends with the data."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(11)
with open("numbers.csv", "w") as file:
    file.write("a,b,target\n")
    for a, b in rng.normal(size=(90, 2)):
        file.write("%.4f,%.4f,%.4f\n" % (a, b, 2 * a - b))


def lines():
    with open("numbers.csv") as file:
        next(file)
        for line in file:
            a, b, target = map(float, line.split(","))
            yield {"x": [a, b]}, target


dataset = tf.data.Dataset.from_generator(lines, ({"x": tf.float32}, tf.float32), ({"x": [2]}, []))
features, target = dataset.repeat(3).batch(15).make_one_shot_iterator().get_next()
weights = tf.get_variable("weights", [2], initializer=tf.ones_initializer())
prediction = tf.reduce_sum(features["x"] * weights, axis=1)
loss = tf.reduce_mean(tf.abs(prediction - target))
step = tf.train.get_or_create_global_step()
train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
with tf.train.SingularMonitoredSession() as sess:
    while not sess.should_stop():
        _, value, at = sess.run([train_op, loss, step])
print("ended at", at, "with", value)
