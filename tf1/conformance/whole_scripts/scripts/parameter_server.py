"""Between-graph replication: started once for each task, with flags for the job and the index."""

import numpy as np
import tensorflow as tf

tf.app.flags.DEFINE_string("job_name", "", "One of 'ps', 'worker'")
tf.app.flags.DEFINE_integer("task_index", 0, "Index of task within the job")
tf.app.flags.DEFINE_integer("port", 2222, "The port of the parameter server")
FLAGS = tf.app.flags.FLAGS


def main(_):
    cluster = tf.train.ClusterSpec({"ps": ["localhost:%d" % FLAGS.port], "worker": ["localhost:%d" % (FLAGS.port + 1)]})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    elif FLAGS.job_name == "worker":
        device = tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)
        with tf.device(device):
            rng = np.random.RandomState(13)
            x = tf.placeholder(tf.float32, [None, 8])
            y = tf.placeholder(tf.float32, [None])
            w = tf.Variable(tf.truncated_normal([8, 4], stddev=0.5), name="hid_w")
            v = tf.Variable(tf.truncated_normal([4, 1], stddev=0.5), name="sm_w")
            loss = tf.reduce_mean(tf.square(tf.squeeze(tf.matmul(tf.nn.relu(tf.matmul(x, w)), v), 1) - y))
            global_step = tf.train.get_or_create_global_step()
            train_op = tf.train.AdagradOptimizer(0.05).minimize(loss, global_step=global_step)
        hooks = [tf.train.StopAtStepHook(last_step=40)]
        with tf.train.MonitoredTrainingSession(
            master=server.target, is_chief=(FLAGS.task_index == 0), checkpoint_dir="train_logs", hooks=hooks
        ) as mon_sess:
            while not mon_sess.should_stop():
                batch = rng.normal(size=(16, 8))
                _, value = mon_sess.run([train_op, loss], feed_dict={x: batch, y: batch.sum(1)})
        print("loss", value)


if __name__ == "__main__":
    tf.app.run()
