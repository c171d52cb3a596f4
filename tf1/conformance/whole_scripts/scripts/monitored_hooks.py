"""MonitoredTrainingSession with hooks of one's own and of the library."""

import numpy as np
import tensorflow as tf

tf.logging.set_verbosity(tf.logging.INFO)


class _LoggerHook(tf.train.SessionRunHook):
    """Logs loss and runtime, as cifar10 does."""

    def __init__(self, loss):
        self._loss = loss

    def begin(self):
        self._step = -1

    def before_run(self, run_context):
        self._step += 1
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        if self._step % 10 == 0:
            print("step %d, loss = %.6f" % (self._step, run_values.results))


class EarlyStopping(tf.train.SessionRunHook):
    """Stops when the loss is small, and reads the global step in a dict."""

    def __init__(self, loss, below):
        self._loss, self._below = loss, below

    def begin(self):
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        print("begins at", session.run(self._global_step))

    def before_run(self, run_context):
        return tf.train.SessionRunArgs({"loss": self._loss, "step": self._global_step})

    def after_run(self, run_context, run_values):
        if run_values.results["loss"] < self._below:
            print("stops at", run_values.results["step"])
            run_context.request_stop()

    def end(self, session):
        print("ends at", session.run(self._global_step))


class MyLogging(tf.train.LoggingTensorHook):
    """A subclass that others override."""

    def after_run(self, run_context, run_values):
        if self._should_trigger and run_values.results:
            print("triggered", self._iter_count)
        super().after_run(run_context, run_values)


rng = np.random.RandomState(4)
features = rng.normal(size=(256, 8)).astype(np.float32)
targets = features.dot(rng.normal(size=(8, 1))).astype(np.float32)

global_step = tf.train.get_or_create_global_step()
x, y = tf.constant(features), tf.constant(targets)
hidden = tf.layers.dense(x, 16, tf.nn.tanh, kernel_initializer=tf.truncated_normal_initializer(stddev=0.5))
prediction = tf.layers.dense(hidden, 1)
loss = tf.losses.mean_squared_error(y, prediction)
tf.summary.scalar("loss", loss)
rate = tf.train.exponential_decay(0.1, global_step, 20, 0.9, staircase=True)
tf.summary.scalar("rate", rate)
train_op = tf.train.MomentumOptimizer(rate, 0.9).minimize(loss, global_step)

hooks = [
    tf.train.StopAtStepHook(last_step=120),
    tf.train.NanTensorHook(loss),
    tf.train.LoggingTensorHook({"loss": loss, "rate": rate}, every_n_iter=25),
    MyLogging([loss], every_n_iter=50),
    _LoggerHook(loss),
    EarlyStopping(loss, 0.002),
]
with tf.train.MonitoredTrainingSession(
    checkpoint_dir="model", hooks=hooks, save_summaries_steps=20, save_checkpoint_secs=None, save_checkpoint_steps=50
) as sess:
    while not sess.should_stop():
        sess.run([train_op, loss])
print(tf.train.latest_checkpoint("model"))
