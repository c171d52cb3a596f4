"""TensorFlow's own parameter servers, the peer of ../parameter_server.py, which runs it with TensorFlow's Python.

    python tf_parameter_server.py CLUSTER ps|worker INDEX

CLUSTER is JSON: the addresses of the jobs `ps` and `worker`. A worker takes the same lines as a worker of
parameter_server.py, and makes the same step: two halves of float32, the gradient of the mean of their squares, plain
gradient descent, and the global step. Workers do not wait for each other.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf  # type: ignore[import-not-found]

SIZES = {"4 KB": 1_000, "4 MB": 1_000_000}


def build(worker: int, size: str, servers: int) -> Any:
    """Returns the training operation of one size over that many servers; variables are placed in turn."""
    setter = tf.train.replica_device_setter(ps_tasks=servers, worker_device=f"/job:worker/task:{worker}")
    with tf.variable_scope(f"{size}_{servers}".replace(" ", "_")), tf.device(setter):
        step = tf.get_variable("global_step", (), tf.int64, tf.zeros_initializer(), trainable=False)
        # The step is on server 0, so the larger part of two halves is not.
        halves = [tf.get_variable(f"half_{i}", (SIZES[size] // 2,), tf.float32, tf.ones_initializer()) for i in (1, 0)]
        loss = tf.reduce_mean(halves[0] * halves[0]) + tf.reduce_mean(halves[1] * halves[1])
        return tf.train.GradientDescentOptimizer(1e-3).minimize(loss, global_step=step, var_list=halves)


def work(session: Any, ops: dict[str, Any]) -> None:
    """Answers each line of the input (a block to run) with a line of calls made and seconds taken."""
    steps: dict[str, Callable[[], Any]] = {name: functools.partial(session.run, op) for name, op in ops.items()}
    for line in sys.stdin:
        name, secs = json.loads(line)
        call, calls, start = steps[name], 0, time.perf_counter()
        while (taken := time.perf_counter() - start) < secs or not calls:
            call()
            calls += 1
        print(json.dumps([calls, taken]), flush=True)


def main(cluster: dict[str, list[str]], job: str, index: int) -> None:
    filters = ["/job:ps", f"/job:worker/task:{index}"] if job == "worker" else None
    config = tf.ConfigProto(device_filters=filters)
    server = tf.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, config=config)
    if job == "ps":
        # It ends with the benchmark.
        sys.stdin.read()
        return
    ops = {f"tf|{size}|{servers}": build(index, size, servers) for size in SIZES for servers in (1, 2)}
    missing, initializer = tf.report_uninitialized_variables(), tf.global_variables_initializer()
    with tf.Session(server.target, config=config) as session:
        if index == 0:
            session.run(initializer)
        while session.run(missing).size:
            time.sleep(0.1)
        work(session, ops)


if __name__ == "__main__":
    tf.disable_v2_behavior()
    main(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
