"""TensorFlow's own parameter servers, the peer of ../parameter_server.py, which runs it with TensorFlow's Python.

    python tf_parameter_server.py WORK ps|worker INDEX

WORK is JSON: the addresses of the jobs `ps` and `worker`, how many numbers there are by the name of a size, and the
numbers of servers to spread them over. A worker takes the same lines as a worker of parameter_server.py, and makes the
same step: shares of float32, the gradient of the mean of their squares, plain gradient descent, and the global step.
Workers do not wait for each other.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf  # type: ignore[import-not-found]


def build(worker: int, size: str, numbers: int, servers: int) -> Any:
    """Returns the training operation of one size over that many servers; variables are placed in turn."""
    setter = tf.train.replica_device_setter(ps_tasks=servers, worker_device=f"/job:worker/task:{worker}")
    with tf.variable_scope(f"{size}_{servers}".replace(" ", "_")), tf.device(setter):
        step = tf.get_variable("global_step", (), tf.int64, tf.zeros_initializer(), trainable=False)
        count = max(2, servers)
        shape = (numbers // count,)
        shares = [tf.get_variable(f"share_{i}", shape, tf.float32, tf.ones_initializer()) for i in range(count)]
        loss = tf.add_n([tf.reduce_mean(share * share) for share in shares])
        return tf.train.GradientDescentOptimizer(1e-3).minimize(loss, global_step=step, var_list=shares)


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


def main(given: dict[str, Any], job: str, index: int) -> None:
    filters = ["/job:ps", f"/job:worker/task:{index}"] if job == "worker" else None
    config = tf.ConfigProto(device_filters=filters)
    server = tf.train.Server(tf.train.ClusterSpec(given["cluster"]), job_name=job, task_index=index, config=config)
    if job == "ps":
        # It ends with the benchmark.
        sys.stdin.read()
        return
    ops = {
        f"tf|{size}|{servers}": build(index, size, numbers, servers)
        for size, numbers in given["sizes"].items()
        for servers in given["servers"]
    }
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
