"""Several towers with shared variables, whose gradients are averaged by hand, as cifar10_multi_gpu does."""

import numpy as np
import tensorflow as tf

NUM_GPUS = 2
rng = np.random.RandomState(8)
images = rng.normal(size=(400, 10)).astype(np.float32)
labels = images[:, :3].argmax(1).astype(np.int32)


def _variable_on_cpu(name, shape, initializer):
    with tf.device("/cpu:0"):
        return tf.get_variable(name, shape, initializer=initializer, dtype=tf.float32)


def tower_loss(scope, x, y):
    with tf.variable_scope("local1"):
        weights = _variable_on_cpu("weights", [10, 16], tf.truncated_normal_initializer(stddev=0.3))
        biases = _variable_on_cpu("biases", [16], tf.constant_initializer(0.1))
        local1 = tf.nn.relu(tf.matmul(x, weights) + biases, name=scope)
    with tf.variable_scope("softmax_linear"):
        weights = _variable_on_cpu("weights", [16, 3], tf.truncated_normal_initializer(stddev=0.3))
        logits = tf.nn.xw_plus_b(local1, weights, _variable_on_cpu("biases", [3], tf.constant_initializer(0.0)))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    tf.add_to_collection("losses", loss)
    return tf.add_n(tf.get_collection("losses", scope), name="total_loss")


def average_gradients(tower_grads):
    average_grads = []
    for grad_and_vars in zip(*tower_grads):
        grads = [tf.expand_dims(g, 0) for g, _ in grad_and_vars]
        grad = tf.reduce_mean(tf.concat(axis=0, values=grads), 0)
        average_grads.append((grad, grad_and_vars[0][1]))
    return average_grads


with tf.Graph().as_default(), tf.device("/cpu:0"):
    global_step = tf.get_variable("global_step", [], initializer=tf.constant_initializer(0), trainable=False)
    boundaries, values = [30, 60], [0.3, 0.1, 0.03]
    lr = tf.train.piecewise_constant(tf.cast(global_step, tf.int32), boundaries, values)
    opt = tf.train.GradientDescentOptimizer(lr)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(80, drop_remainder=True)
    iterator = dataset.make_one_shot_iterator()
    all_x, all_y = iterator.get_next()
    xs, ys = tf.split(all_x, NUM_GPUS), tf.split(all_y, NUM_GPUS)
    tower_grads = []
    with tf.variable_scope(tf.get_variable_scope()):
        for i in range(NUM_GPUS):
            with tf.device("/gpu:%d" % i), tf.name_scope("%s_%d" % ("tower", i)) as scope:
                loss = tower_loss(scope, xs[i], ys[i])
                tf.get_variable_scope().reuse_variables()
                tower_grads.append(opt.compute_gradients(loss))
    grads = average_gradients(tower_grads)
    for grad, var in grads:
        if grad is not None:
            tf.summary.histogram(var.op.name + "/gradients", grad)
    train_op = opt.apply_gradients(grads, global_step=global_step)
    summary_op = tf.summary.merge_all()
    config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
    with tf.Session(config=config) as sess:
        sess.run(tf.global_variables_initializer())
        tf.train.start_queue_runners(sess=sess)
        writer = tf.summary.FileWriter("towers", sess.graph)
        for step in range(90):
            _, loss_value = sess.run([train_op, loss])
            if step % 30 == 0:
                writer.add_summary(sess.run(summary_op), step)
                print("step", step, "loss", loss_value, "rate", sess.run(lr))
        writer.close()
