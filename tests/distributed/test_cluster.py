"""Which task a process is, and joining a Ray cluster as it."""

from __future__ import annotations

import json
import math
import os
import socket
import stat
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests import python
from tests.stand_ins import RayTransport

import hookline as hl
from hookline import clock, errors

# The environment of a process's task, and its connection to Ray.
from hookline.distributed import Cluster, ClusterOptions
from hookline.distributed.cluster import ray_connection
from hookline.distributed.cluster.cluster import find_task

HOSTS = {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"], "ps": ["e:6379", "f:6379"]}


def config(kind="worker", index=0, cluster=None):
    return {"TF_CONFIG": json.dumps({"cluster": cluster or HOSTS, "task": {"type": kind, "index": index}})}


# Arguments and the environment


def test_chief_is_task_0_and_worker_i_is_task_i_plus_1():
    assert Cluster("h:1").task_id == 0
    assert Cluster("h:1").is_chief
    worker = Cluster("h:1", "worker", 2, num_workers=4)
    assert worker.task_id == 3
    assert not worker.is_chief


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"address": ""}, "requires the address of a Ray head, 'host:port', got ''"),
        ({"address": "auto"}, "got 'auto'.*hookline launch"),
        ({"address": "local"}, "got 'local'"),
        ({"task_type": "boss"}, "'chief' or 'worker', got 'boss'"),
        ({"task_type": "ps"}, "run `ray start` instead"),
        ({"task_type": "worker"}, "got 0; the job has no workers"),
        ({"task_type": "worker", "task_index": 3, "num_workers": 4}, "got 3; the job has 3 of that type"),
        ({"task_index": 1, "num_workers": 4}, "task_index of a chief"),
        ({"num_workers": 0}, "num_workers >= 1, got 0"),
        ({"num_servers": 0}, "num_servers >= 1, got 0"),
        ({"job": ""}, "job name"),
        ({"job": 3}, "job name"),
        ({"address": None}, "got None"),
        ({"address": "h:65536"}, "got 'h:65536'"),
        ({"num_servers": 1.5}, "a whole number as num_servers, got 1.5"),
        ({"task_index": "0"}, "a whole number as task_index, got '0'"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Cluster(**{"address": "h:1", **arguments})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wait_secs", 0),
        ("connect_secs", -1),
        ("call_secs", 0),
        ("call_secs", math.nan),
        ("call_secs", math.inf),
        ("call_secs", "60"),
        ("max_staleness", -1),
        ("max_staleness", math.nan),
        ("placement", ["w"]),
        ("placement", {"w": "1"}),
        ("placement", {"w": -1}),
    ],
)
def test_a_wrong_option_is_refused_by_name(name, value):
    with pytest.raises((TypeError, ValueError), match=f"^ClusterOptions requires .*{name}"):
        ClusterOptions(**{name: value})


def test_worker_may_wait_for_the_chief_forever():
    assert ClusterOptions(wait_secs=math.inf).wait_secs == math.inf


def test_tf_config_gives_the_task_and_the_counts():
    cluster = Cluster.from_environment(config("worker", 2))
    assert (cluster.address, cluster.task_id, cluster.num_workers, cluster.num_servers) == ("e:6379", 3, 4, 2)
    assert Cluster.from_environment(config("chief")).is_chief


def test_without_a_chief_in_tf_config_the_first_worker_is_chief():
    hosts = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    assert [Cluster.from_environment(config("worker", i, hosts)).task_id for i in (0, 1)] == [0, 1]
    assert Cluster.from_environment(config("master", 0, {"master": ["a:1"], "ps": ["c:1"]})).is_chief


def test_plain_variables_override_tf_config():
    plain = {
        "HOOKLINE_ADDRESS": "h:7",
        "HOOKLINE_TASK_TYPE": "worker",
        "HOOKLINE_TASK_INDEX": "1",
        "HOOKLINE_NUM_WORKERS": "3",
        "HOOKLINE_NUM_SERVERS": "2",
        "HOOKLINE_JOB": "mine",
        "HOOKLINE_TOKEN_PATH": "/a/token",
    }
    expected = Cluster("h:7", "worker", 1, 3, 2, "mine", ClusterOptions(token_path="/a/token"))
    assert Cluster.from_environment({**config("chief"), **plain}) == expected
    options = ClusterOptions(token_path="/b", max_staleness=3)
    assert Cluster.from_environment(plain, options).options == options


def test_address_variable_works_with_tf_config():
    assert Cluster.from_environment({**config("chief"), "HOOKLINE_ADDRESS": "h:7"}).address == "h:7"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "requires TF_CONFIG, or HOOKLINE_TASK_TYPE and HOOKLINE_ADDRESS; none is set"),
        ({"HOOKLINE_TASK_TYPE": "chief"}, "set HOOKLINE_ADDRESS=host:port"),
        ({"HOOKLINE_TASK_TYPE": "worker", "HOOKLINE_TASK_INDEX": "x"}, "whole number in HOOKLINE_TASK_INDEX, got 'x'"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG requires JSON like"),
        ({"TF_CONFIG": "[]"}, 'requires an object "cluster"'),
        ({"TF_CONFIG": '{"cluster": {}}'}, 'requires an object "task"'),
        ({"TF_CONFIG": '{"cluster": {"worker": "a:1"}, "task": {}}'}, '"worker" to be a list'),
        ({"TF_CONFIG": '{"cluster": {"chief": ["a:1", "b:1"]}, "task": {}}'}, "one chief, got 2"),
        (config("worker", 3), 'index 3, and "cluster" lists 3'),
        (config("worker", "1"), '"index", a whole number'),
        (config("ps"), "'ps' is not one that trains. Parameter servers are Ray actors"),
        (config("evaluator"), "Evaluate in a job of its own"),
        (config("chief", 0, {"chief": ["a:1"]}), "name a 'ps'"),
    ],
)
def test_wrong_or_missing_variable_gives_the_remedy(environ, message):
    with pytest.raises(ValueError, match=message):
        Cluster.from_environment(environ)


def test_only_the_given_environment_is_read():
    assert find_task({"HOOKLINE_TASK_TYPE": "chief", "HOOKLINE_ADDRESS": "h:1"})["num_servers"] == 1


def test_target_is_the_cluster_as_a_string():
    options = ClusterOptions(placement={"embedding/a": 1}, max_staleness=4, token_path="/a b/token", wait_secs=2.5)
    cluster = Cluster("[::1]:6379", "worker", 1, 3, 2, "a job", options)
    assert cluster.target.startswith("hookline-ray://[::1]:6379/")
    assert Cluster.from_target(cluster.target) == cluster


@pytest.mark.parametrize("target", ["", "grpc://a:1", "hookline-ray://a:1", "hookline-ray://a:1/?task_index=x"])
def test_invalid_target_is_refused(target):
    with pytest.raises(ValueError, match="is not the `target` of a Cluster"):
        Cluster.from_target(target)


@pytest.mark.parametrize(("call_secs", "deliver_secs"), [(600.0, 600.0), (2.0, 60.0)])
def test_messages_between_servers_may_take_as_long_as_a_call(monkeypatch, fake_clock, call_secs, deliver_secs):
    monkeypatch.setattr(ray_connection, "connect", lambda *args: Mock())
    monkeypatch.setattr(ray_connection, "create_servers", lambda *args, **options: [None, None])
    cluster = Cluster("h:1", "chief", 0, 1, 2, "a job", ClusterOptions(call_secs=call_secs))
    pulls = cluster.open_store(hl.Graph())._pulls
    pulls._members = Mock()
    pulls._transport = Mock(call=lambda *args: Late())

    class Late:
        def get(self):
            clock.sleep(1.0)

    with pytest.raises(errors.UnavailableError, match=f"for {deliver_secs:g} s"):
        pulls._call_until_delivered(1, "wait_delivered", 1)()
    assert fake_clock.monotonic() == deliver_secs


# Joining Ray


def test_absent_head_is_an_error_within_seconds(closed_port):
    started = clock.monotonic()
    with pytest.raises(errors.UnavailableError, match=f"No Ray head listens at 127.0.0.1:{closed_port}"):
        ray_connection.wait_for_head(f"127.0.0.1:{closed_port}", 0.5)
    assert clock.monotonic() - started < 5


@pytest.mark.campaign
def test_workers_wait_for_the_servers_and_react_at_once(ray_cluster, job, options, members):
    ray_connection.connect(ray_cluster.address, job, options.token_path, 5)
    with pytest.raises(
        errors.DeadlineExceededError, match=f"'hookline-server-0' \\(0 of 2 are there\\) of job '{job}'"
    ):
        ray_connection.find_servers(job, 2, wait_secs=0.3)

    moments = {}

    def find():
        ray_connection.find_servers(job, 2, wait_secs=60)
        moments["found"] = clock.monotonic()

    thread = threading.Thread(target=find)
    thread.start()
    ray_connection.create_servers(job, 2)
    moments["created"] = clock.monotonic()
    thread.join()
    # Half a second on a busy machine; it polls every 0.1 s.
    assert moments["found"] - moments["created"] < 0.5

    # They outlive the next caller.
    servers = [RayTransport(ray_connection.create_servers(job, 2)) for _ in range(2)]
    for index in range(2):
        assert len({server.call(index, "status").get().incarnation for server in servers}) == 1
    # In its group they end with the cluster, in whatever state they are.
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in members(ray_cluster.head.pid)]
    assert any(b"ray::ParameterServer" in command for command in commands)
    assert ray_connection.kill_servers(job) == 2
    assert ray_connection.kill_servers(job) == 0


def test_process_joins_only_one_cluster(ray_cluster, options, closed_port):
    ray_connection.connect(ray_cluster.address, "a", options.token_path, 5)
    with pytest.raises(errors.FailedPreconditionError, match=f"connected to the Ray cluster at {ray_cluster.address}"):
        ray_connection.connect(f"127.0.0.1:{closed_port}", "a", options.token_path, 5)


def join_in_a_process(address: str, token_path: str, **environ: str) -> str:
    code = f"from hookline.distributed.cluster import ray_connection; ray_connection.connect({address!r}, 'job', "
    code += f"{token_path!r}, 5)"
    done = python.run("-c", code, env={**os.environ, **environ}, timeout=120)
    return done.stderr.strip().rpartition("\n")[2]


def test_another_token_is_refused(ray_cluster, tmp_path):
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o600)
    said = join_in_a_process(ray_cluster.address, str(token))
    assert said.startswith("hookline.errors.UnauthenticatedError"), said


def test_missing_token_file_is_named(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(errors.UnauthenticatedError, match="missing is not a file"):
        ray_connection.find_token(str(tmp_path / "missing"))


def test_token_file_readable_by_others_gives_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o644)
    assert ray_connection.find_token(str(token)) == str(token)
    assert "chmod 600" in caplog.text


def test_token_of_a_local_cluster_is_readable_by_its_owner_only(ray_cluster):
    assert stat.S_IMODE(os.stat(ray_cluster.token_path).st_mode) == 0o600


# The head goes away


def guarded_by(port, raylet_port=None):
    """A transport whose head has these ports on the loopback interface; one port for both by default."""
    head = ray_connection.Head(f"127.0.0.1:{port}", f"127.0.0.1:{raylet_port or port}")
    return RayTransport([Mock()], check_head=head.poll)


def test_head_without_its_raylet_counts_as_lost(fake_clock, closed_port, caplog):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        guarded = guarded_by(port, closed_port)
        fake_clock.advance(10)
        guarded.call(0, "status")
        assert f"The raylet of the Ray head at 127.0.0.1:{port} does not answer." in caplog.messages
        fake_clock.advance(ray_connection.HEAD_GRACE_SECS)
        with pytest.raises(errors.InternalError, match=f"raylet of the Ray head at 127.0.0.1:{port} has not answered"):
            guarded.call(0, "status")


def test_lost_head_is_an_error_long_before_ray_ends_the_process(fake_clock, closed_port):
    guarded = guarded_by(closed_port)

    def call_each_second():
        for _ in range(60):
            guarded.call(0, "status")
            fake_clock.advance(1)

    with pytest.raises(errors.InternalError, match="resumes from the last checkpoint"):
        call_each_second()
    assert fake_clock.monotonic() < 30


def test_head_restart_within_timeout_is_ignored(fake_clock):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        guarded = guarded_by(sock.getsockname()[1])
        fake_clock.advance(12)
        guarded.call(0, "status")
        sock.listen()
        for _ in range(60):
            fake_clock.advance(1)
            guarded.call(0, "status")


def test_one_missed_check_after_a_long_step_is_ignored(fake_clock):
    """Or after the process was stopped, so that no check was made."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        guarded = guarded_by(sock.getsockname()[1])
        for look in range(3):
            fake_clock.advance(600)
            guarded.call(0, "status")
            if look == 0:
                sock.listen()
            elif look == 1:
                sock.close()
    fake_clock.advance(ray_connection.HEAD_GRACE_SECS)
    with pytest.raises(errors.InternalError, match="has not answered"):
        guarded.call(0, "status")


@pytest.fixture
def fake_clock():
    from hookline.testing import FakeClock

    with FakeClock(start=0.0) as fake:
        yield fake
