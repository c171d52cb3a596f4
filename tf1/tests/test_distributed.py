"""Clusters of TF 1.x: one script, started once for each task."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from importlib.util import find_spec

import pytest
from tests.python import Python

from hookline import errors
from hookline.distributed import Cluster
from hookline_tf1.train import ClusterSpec, Server, replica_device_setter

SCRIPT = """
import sys
import hookline_tf1 as tf
from hookline_tf1.train import ClusterSpec, Server
from hookline_tf1.train import Supervisor

port, job, index, logdir = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
cluster = ClusterSpec({"ps": [f"localhost:{port}"], "worker": ["localhost:0", "localhost:1"]})
server = Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()
weight = tf.Variable(0.0, name="weight")
step = tf.train.get_or_create_global_step()
train = tf.group(weight.assign_add(1.0), step.assign_add(1))
supervisor = Supervisor(is_chief=index == 0, logdir=logdir, save_model_secs=0, save_summaries_secs=0)
with supervisor.managed_session(server.target) as sess:
    while int(sess.run(step)) < 20:
        sess.run(train)
    print(job, index, float(sess.run(weight)) >= 20)
"""


def test_cluster_spec_has_its_tasks():
    spec = ClusterSpec({"ps": ["a:1"], "worker": {0: "b:1", 2: "c:1"}})

    assert spec.as_dict() == {"ps": ["a:1"], "worker": {0: "b:1", 2: "c:1"}}
    assert (spec.jobs, spec.num_tasks("worker"), spec.task_indices("worker")) == (["ps", "worker"], 2, [0, 2])
    assert (spec.task_address("worker", 2), spec.job_tasks("ps")) == ("c:1", ["a:1"])
    assert spec == ClusterSpec(spec)
    assert spec != ClusterSpec({"ps": ["a:1"]})
    with pytest.raises(ValueError, match="no job 'chief', but ps, worker"):
        spec.num_tasks("chief")
    with pytest.raises(ValueError, match="no task 1"):
        spec.task_address("worker", 1)


def test_server_has_the_target_of_a_remote_task():
    spec = {"ps": ["ps0:2222", "ps1:2222"], "worker": ["w0:2222", "w1:2222", "w2:2222"]}
    chief, worker = (Cluster.from_target(Server(spec, "worker", index).target) for index in (0, 2))

    assert (chief.is_chief, chief.address, chief.num_workers, chief.num_servers) == (True, "ps0:2222", 3, 2)
    assert (worker.is_chief, worker.task_id, worker.job) == (False, 2, chief.job)
    apart = spec | {"chief": ["c:1"]}
    assert [Cluster.from_target(Server(apart, *task).target).task_id for task in (("chief", 0), ("worker", 0))] == [
        0,
        1,
    ]


def test_local_server_has_an_empty_target_and_wrong_tasks_are_refused():
    assert Server.create_local_server().target == ""
    with pytest.raises(NotImplementedError, match="ps tasks"):
        _ = Server({"worker": ["a:1", "b:1"]}, "worker", 0).target
    with pytest.raises(ValueError, match="job_name"):
        Server({"cook": ["a:1"], "ps": ["b:1"]}, "cook", 0)


def test_device_setter_is_accepted():
    assert replica_device_setter() is None
    setter = replica_device_setter(cluster=ClusterSpec({"ps": ["a:1"], "worker": ["b:1"]}))
    assert setter is not None
    assert setter(None) == ""
    assert replica_device_setter(ps_tasks=1) is not None


@pytest.mark.campaign
def test_one_script_runs_as_three_tasks(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]

    def start(job, index):
        return Python("-c", SCRIPT, port, job, index, tmp_path)

    server, *workers = tasks = [start("ps", 0), start("worker", 0), start("worker", 1)]
    try:
        said = [worker.communicate(timeout=200) for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0], said
        assert [out for out, _ in said] == ["worker 0 True\n", "worker 1 True\n"]
        assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    finally:
        for task in tasks:
            if task.poll() is None:
                task.kill()
                task.communicate()


@pytest.mark.campaign
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
def test_ps_task_ends_with_its_ray_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = Server({"ps": ["localhost:7"], "worker": ["localhost:0"]}, "ps", 0)
    assert server._ray is not None
    os.killpg(server._ray.head.pid, signal.SIGKILL)
    with pytest.raises(errors.UnavailableError, match="has ended by itself"):
        server.join()
    server._ray.stop()
