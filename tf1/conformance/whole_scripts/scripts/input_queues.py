"""Images in files of records, read by queues, changed one by one, and joined in batches."""

import numpy as np
import tensorflow as tf

WIDTH, DEPTH = 6, 3
RECORD = 1 + WIDTH * WIDTH * DEPTH
rng = np.random.RandomState(12)
paths = [f"records-{number}.bin" for number in range(2)]
for path in paths:
    labels = rng.randint(0, 3, (60, 1))
    pixels = rng.randint(0, 80, (60, RECORD - 1)) + 60 * labels
    np.hstack([labels, pixels]).astype(np.uint8).tofile(path)

queue = tf.train.string_input_producer(paths, shuffle=False)
key, value = tf.FixedLengthRecordReader(record_bytes=RECORD).read(queue)
record = tf.decode_raw(value, tf.uint8)
label = tf.reshape(tf.cast(tf.slice(record, [0], [1]), tf.int32), [])
image = tf.reshape(tf.slice(record, [1], [RECORD - 1]), [DEPTH, WIDTH, WIDTH])
image = tf.cast(tf.transpose(image, [1, 2, 0]), tf.float32) / 255.0
image = tf.image.random_flip_left_right(image)
images, labels = tf.train.batch([image, label], batch_size=16, num_threads=1, capacity=64)

with tf.variable_scope("classes"):
    flat = tf.layers.flatten(images)
    logits = tf.layers.dense(flat, 3)
loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
train_op = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)

test_x, test_y = tf.train.slice_input_producer(
    [rng.uniform(size=(8, WIDTH * WIDTH * DEPTH)).astype(np.float32), np.arange(8)], num_epochs=1, shuffle=False
)
test_batch = tf.train.batch({"x": test_x, "y": test_y}, 3, allow_smaller_final_batch=True)
mean = tf.reduce_mean(test_batch["x"], name="mean")

with tf.Session() as sess:
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    coord = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(sess=sess, coord=coord)
    for step in range(40):
        _, value = sess.run([train_op, loss])
    print("loss", value)
    try:
        while not coord.should_stop():
            print("mean", sess.run(mean))
    except tf.errors.OutOfRangeError:
        print("all data seen")
    finally:
        coord.request_stop()
    coord.join(threads)
