"""By which way calls reach servers that are actors: over connections, over Ray, or over Ray alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from typing import NamedTuple

import jax
import numpy as np
import pytest
from tests.stand_ins import RayTransport

import hookline as hl
from hookline import errors
from hookline.distributed import Cluster, ClusterOptions

from .targets import Target, apart, until


class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray


def trained(target, make=lambda start: np.full(9, start, np.float32)):
    """Two variables after four runs, as their leaves, and the step."""
    with hl.Graph().as_default() as graph:
        left, right = (hl.Variable(make(start), name=name) for name, start in (("left", 1.0), ("right", 2.0)))
        step = hl.train.create_global_step()
        given = hl.op(lambda tree: tree)(right)
        train_op = hl.group(
            hl.update(left, lambda old, by: jax.tree.map(lambda a, b: a + b, old, by), given),
            hl.update(right, lambda old: jax.tree.map(lambda a: a * 2, old)),
            step.assign_add(1),
        )
        init = hl.global_variables_initializer()
    session = hl.Session(target, graph=graph)
    session.run(init)
    for _ in range(4):
        session.run(train_op)
    return session.snapshot()


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.campaign
@pytest.mark.parametrize("servers", [1, 2])
def test_training_over_ray_alone_equals_local_training_and_no_server_listens(actors, servers):
    import ray

    handles = actors(servers, over_ray=True)

    same(trained(apart(RayTransport(handles))), trained(""))
    assert ray.get([handle.address.remote() for handle in handles]) == [None] * servers


@pytest.mark.parametrize(
    "make",
    [
        lambda start: {"a": np.full(9, start), "b": (np.zeros(20_000, np.int32), [np.float32(start)])},
        pytest.param(lambda start: Pair(np.full(9, start), np.zeros(20_000, np.int32)), marks=pytest.mark.campaign),
    ],
    ids=["plain", "class"],
)
def test_updates_of_any_pytree_reach_the_servers(actors, make):
    found = trained(apart(RayTransport(actors(2))), make)

    same(found, trained("", make))
    assert jax.tree.structure(found["left"]) == jax.tree.structure(found["right"]) == jax.tree.structure(make(1.0))
    assert float(jax.tree.leaves(found["left"])[0][0]) == 1 + 2 + 4 + 8 + 16
    assert int(found["global_step"]) == 4


@pytest.mark.parametrize("over_ray", [True, pytest.param(False, marks=pytest.mark.campaign)])
def test_chief_chooses_whether_servers_listen_and_training_equals_local_training(ray_cluster, job, options, over_ray):
    options = ClusterOptions(token_path=options.token_path, over_ray=over_ray, placement={"left": 0, "right": 1})
    same(trained(Cluster(ray_cluster.address, num_servers=2, job=job, options=options)), trained(""))

    import ray

    servers = [ray.get_actor(f"hookline-server-{index}", namespace=job) for index in range(2)]
    listen = [address is not None for address in ray.get([server.address.remote() for server in servers])]
    assert listen == [not over_ray] * 2


def connections(handle):
    """How many connections a server has; the lambda travels by value."""
    import ray

    threads = handle.__ray_call__.remote(lambda _: [t.name for t in __import__("threading").enumerate()])
    return ray.get(threads).count("hookline-serve")


def test_closed_session_has_no_connections(actors):
    (handle,) = actors(1)
    hl.Variable(0, name="count")
    session = hl.Session(Target(RayTransport([handle])))
    session.run(hl.global_variables_initializer())
    store = session.backend.store
    assert connections(handle) > 0

    session.close()

    until(lambda: not connections(handle))
    assert store is not None, "the connections do not end with its memory"


ENCRYPTED = """
import json, os
# Which way a call takes shows in no result.
from hookline.distributed.cluster.local_ray_cluster import LocalRayCluster

with LocalRayCluster() as cluster:
    os.environ.update(cluster.environment())
    import ray
    import hookline as hl
    from hookline.distributed.cluster.cluster import Cluster, ClusterOptions

    options = ClusterOptions(token_path=cluster.token_path)
    with hl.Graph().as_default() as graph:
        count = [hl.Variable(0, name=f"count_{i}") for i in range(2)]
        add, init = hl.group(*(one.assign_add(1) for one in count)), hl.global_variables_initializer()
    session = hl.Session(Cluster(cluster.address, num_servers=2, job="encrypted", options=options), graph=graph)
    session.run(init)
    for _ in range(3):
        session.run(add)
    servers = [ray.get_actor(f"hookline-server-{index}", namespace="encrypted") for index in range(2)]
    addresses = ray.get([server.address.remote() for server in servers])
    print(json.dumps([[int(value) for value in session.run(count)], addresses]))
    ray.shutdown()
"""


@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_all_calls_use_ray_in_a_cluster_with_tls(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=hookline"]
    request += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(request, check=True, capture_output=True)
    encrypted = {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
        "JAX_PLATFORMS": "cpu",
    }

    ran = subprocess.run(
        [sys.executable, "-c", ENCRYPTED], env={**os.environ, **encrypted}, capture_output=True, text=True, timeout=240
    )

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == [[3, 3], [None, None]]


def test_function_of_a_package_missing_on_the_servers_is_named(actors, monkeypatch):
    package = types.ModuleType("only_here")
    exec("def plus(old, by): return old + by", vars(package))
    monkeypatch.setitem(sys.modules, "only_here", package)
    with hl.Graph().as_default() as graph:
        total = hl.Variable(0.0, name="total")
        hl.update(total, package.plus, 1.0)
        init = hl.global_variables_initializer()
    with (
        hl.Session(apart(RayTransport(actors(1))), graph=graph) as session,
        pytest.raises(errors.FailedPreconditionError, match="server 0 cannot import 'only_here', .* install it"),
    ):
        session.run(init)
