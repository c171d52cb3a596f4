"""Updates a second over parameter servers: hookline's steps against raw actor calls, in interleaved rounds.

    [TF_PYTHON=python] python benchmarks/parameter_server.py [rounds] [seconds a block]

Starts a local Ray cluster and four worker processes. In each round, for each number of workers, all of them make at
the same time: raw calls (over the connection that hookline's calls take, to an actor that takes an array and returns
one of the same size, as a push with a pull does); steps written by hand with Ray alone (a jitted gradient, and a method
of an actor that subtracts it from one NumPy array); steps of a hookline session over one, two and four parameter
servers; the same steps of TensorFlow over its own grpc parameter servers, in processes of their own, if TF_PYTHON is a
Python that has TensorFlow; steps of the same graph over a server inside the worker.
Prints medians over the rounds in Markdown, and beside them what the cost model of docs/distributed.md says of the
hookline steps, from the raw calls and the steps inside the worker alone:

    calls = 1 with one server, 2 with several (a worker's own, and that of an owner with the step server)
    trip  = calls * small trip + (trip - small trip) / servers       raw calls of one worker
    busy  = servers * small busy + (busy - small busy) / servers     raw calls of all workers: seconds a call
    rate  = min(workers / (inside + trip), 1 / (busy + inside))

with `inside` the time of a step over a server inside the worker. "Small" is the smallest size.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hookline.distributed.connections import Address, Listener
from hookline.distributed.rpc import ServerClient

NAMESPACE = "benchmark"
WORKERS = (1, 2, 4)
SIZES = {"4 KB": 1_000, "4 MB": 1_000_000}
SERVERS = (1, 2, 4)


def server_name(size: str, servers: int, server: int) -> str:
    return f"{size} over {servers}: {server}".replace(" ", "-")


class Echo:
    """The raw actor: it keeps what it is given and returns what it holds."""

    def __init__(self) -> None:
        self._held: Any = None
        self._listener = Listener(self._swap, "127.0.0.1")

    def address(self) -> Address:
        return self._listener.address

    def _swap(self, pushed: Any) -> Any:
        held, self._held = self._held, pushed
        return pushed if held is None else held


class ByHand:
    """The actor that one writes for a single array and a single optimizer, with nothing promised of failures."""

    def __init__(self, numbers: int) -> None:
        self._held = np.ones(numbers, np.float32)
        self._step = 0

    def step(self, grad: np.ndarray) -> Any:
        self._held = self._held - np.float32(1e-3) * grad
        self._step += 1
        return self._held


def raw_caller(actor: Any) -> ServerClient:
    import ray

    address: Address = ray.get(actor.address.remote())  # type: ignore[assignment]
    return ServerClient("The raw actor", address, lambda: address, 60.0)


def by_hand(actor: Any, numbers: int) -> Callable[[], None]:
    """Returns one training step against that actor."""
    import jax
    import jax.numpy as jnp
    import ray

    slope_of = jax.jit(jax.grad(lambda held: jnp.mean(held * held)))
    held = np.ones(numbers, np.float32)

    def step() -> None:
        nonlocal held
        held = ray.get(actor.step.remote(np.asarray(slope_of(held))))

    return step


# A worker -------------------------------------------------------------------------------------------------------


class Target:
    """What a session takes for its variables to live on given servers."""

    def __init__(self, transport: Any, worker: int) -> None:
        self._transport, self._worker = transport, worker

    def open_store(self, graph: Any) -> Any:
        from hookline.distributed import RemoteStore

        return RemoteStore(graph, self._transport, worker_index=self._worker)


def step_of(target: Any, parameters: int, is_chief: bool, servers: int = 1) -> Callable[[], None]:
    """Returns one training step of a small graph with `parameters` numbers in two variables, or one for each server."""
    import jax.numpy as jnp

    import hookline as hl
    from hookline import train

    with hl.Graph().as_default() as graph:
        count = max(2, servers)
        shares = [hl.Variable(np.ones(parameters // count, np.float32), name=f"share_{i}") for i in range(count)]
        loss = hl.op(lambda *shares: sum(jnp.mean(share * share) for share in shares))(*shares)
        grads = hl.gradients(loss, shares)
        updates = [
            hl.update(share, lambda old, grad: old - 1e-3 * grad, grad)
            for share, grad in zip(shares, grads, strict=True)
        ]
        train_op = hl.group(*updates, train.get_or_create_global_step().assign_add(1))
        initializer = hl.global_variables_initializer()
    session = hl.Session(target, graph=graph)
    if is_chief:
        session.run(initializer)
    return lambda: session.run(train_op)


def work(worker: int) -> None:
    """Answers each line of the input (a block to run) with a line of calls made and seconds taken."""
    import ray

    from hookline.distributed import ParameterServer
    from hookline.distributed.cluster.ray_actors import RayTransport

    sys.path.insert(0, str(Path(__file__).parents[1]))  # Only tests have servers without processes.
    from tests.direct_transport import DirectTransport

    # Ray prints what the cluster warns of (of many actors, for example) to the output of whoever has joined it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ray.init(address=os.environ["HOOKLINE_ADDRESS"], namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    raw = {size: raw_caller(ray.get_actor(f"raw-{size}".replace(" ", "-"))) for size in SIZES}
    pushed = {size: np.ones(numbers, np.float32) for size, numbers in SIZES.items()}
    blocks: dict[str, Callable[[], Any]] = {}

    def block(name: str) -> Callable[[], Any]:
        kind, size, servers = name.split("|")
        if kind == "raw":
            return lambda: raw[size].call(pushed[size]).get()
        if kind == "hand":
            return by_hand(ray.get_actor(f"hand-{size}".replace(" ", "-")), SIZES[size])
        if kind == "inside":
            return step_of(Target(DirectTransport([ParameterServer()]), 0), SIZES[size], is_chief=True)
        actors = [ray.get_actor(server_name(size, int(servers), i)) for i in range(int(servers))]
        return step_of(Target(RayTransport(actors), worker), SIZES[size], worker == 0, int(servers))

    for line in sys.stdin:
        name, secs = json.loads(line)
        if name not in blocks:
            blocks[name] = block(name)
        call, calls, start = blocks[name], 0, time.perf_counter()
        while (taken := time.perf_counter() - start) < secs or not calls:
            call()
            calls += 1
        print(json.dumps([calls, taken]), file=answers, flush=True)


# TensorFlow -----------------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def tf_processes(python: str) -> list[subprocess.Popen[str]]:
    """Starts TensorFlow's servers and workers; the workers come first."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(max(WORKERS) + max(SERVERS))]
    cluster = {"worker": ports[: max(WORKERS)], "ps": ports[max(WORKERS) :]}
    work = json.dumps({"cluster": cluster, "sizes": SIZES, "servers": SERVERS})
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "tf_parameter_server.py")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return [
        subprocess.Popen(
            [python, script, work, job, str(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for job, addresses in cluster.items()
        for index in range(len(addresses))
    ]


# The benchmark --------------------------------------------------------------------------------------------------


def rate(processes: list[subprocess.Popen[str]], name: str, secs: float) -> float:
    """Returns how many calls a second some workers make together."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(json.dumps([name, secs]) + "\n")
        process.stdin.flush()
    total = 0.0
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("A worker has ended; what it printed is above.")
        calls, taken = json.loads(line)
        total += calls / taken
    return total


def make_actors() -> list[Any]:
    import ray

    from hookline.distributed.cluster.ray_actors import actor_class

    made = []
    for size in SIZES:
        options = {"lifetime": "detached", "num_cpus": 0}
        made.append(ray.remote(Echo).options(name=f"raw-{size}".replace(" ", "-"), **options).remote())
        made.append(ray.remote(ByHand).options(name=f"hand-{size}".replace(" ", "-"), **options).remote(SIZES[size]))
        for servers in SERVERS:
            for server in range(servers):
                name = server_name(size, servers, server)
                made.append(actor_class().options(name=name, lifetime="detached").remote())
    return made


def measure(
    processes: list[subprocess.Popen[str]], peers: list[subprocess.Popen[str]], rounds: int, secs: float
) -> dict[str, float]:
    measured: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for size in SIZES:
            over = [f"{kind}|{size}|{n}" for n in SERVERS for kind in ("hookline", *(["tf"] if peers else []))]
            kinds = [f"raw|{size}|0", f"hand|{size}|0", *over, f"inside|{size}|0"]
            # The first round compiles, and the chief initialises before the others look.
            for workers in WORKERS:
                for kind in kinds:
                    group = peers if kind.startswith("tf") else processes
                    found = rate(group[:workers], kind, secs if number else 0.0)
                    if number:
                        measured.setdefault(f"{kind}|{workers}", []).append(found)
    return {name: statistics.median(values) for name, values in measured.items()}


def predicted(median: dict[str, float], size: str, servers: int, workers: int) -> float:
    """Returns the updates a second that the cost model expects."""
    small, calls = next(iter(SIZES)), 1 if servers == 1 else 2

    def secs(kind: str, of: str, together: int) -> float:
        return 1 / median[f"{kind}|{of}|0|{together}"]

    def share(small_calls: int, together: int) -> float:
        least = secs("raw", small, together)
        return small_calls * least + (secs("raw", size, together) - least) / servers

    inside = secs("inside", size, 1)
    # The step server has a message of each other server, and one to it, beside the worker's call.
    trip, busy = share(calls, 1), share(servers, workers)
    return min(workers / (inside + trip), 1 / (busy + inside))


def report(median: dict[str, float]) -> str:
    rows = [
        "| parameters | servers | workers | raw calls/s | by hand | hookline | TensorFlow | / raw | / by hand "
        "| / TensorFlow | model |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for size in SIZES:
        for servers in SERVERS:
            for workers in WORKERS:
                raw, hand = (median[f"{kind}|{size}|0|{workers}"] for kind in ("raw", "hand"))
                ours, says = median[f"hookline|{size}|{servers}|{workers}"], predicted(median, size, servers, workers)
                theirs = median.get(f"tf|{size}|{servers}|{workers}", float("nan"))
                rows.append(
                    f"| {size} | {servers} | {workers} | {raw:.0f} | {hand:.0f} | {ours:.0f} | {theirs:.0f} "
                    f"| {ours / raw:.2f} | {ours / hand:.2f} | {ours / theirs:.2f} | {says:.0f} |"
                )
    steps = ", ".join(f"{1000 / median[f'inside|{size}|0|1']:.2f} ms with {size}" for size in SIZES)
    return "\n".join([*rows, "", f"A step whose server runs in the worker's process takes {steps}."])


def main(rounds: int, secs: float) -> None:
    from hookline.distributed.cluster.local_ray_cluster import LocalRayCluster, ray_environment

    with LocalRayCluster() as cluster:
        environment = {**ray_environment(cluster.token_path, loopback=True), **cluster.environment()}
        environment |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
        os.environ.update(environment)
        import ray

        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
        actors = make_actors()
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker", str(worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for worker in range(max(WORKERS))
        ]
        python = os.environ.get("TF_PYTHON", "")
        if not os.access(python, os.X_OK):
            print("Without TensorFlow: TF_PYTHON names no Python that has it.", file=sys.stderr)
        peers = tf_processes(python) if os.access(python, os.X_OK) else []
        try:
            median = measure(processes, peers, rounds, secs)
        finally:
            processes += peers
            for process in processes:
                assert process.stdin is not None
                process.stdin.close()
            for process in processes:
                process.wait(timeout=60)
            del actors
            ray.shutdown()
    print(report(median))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(int(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, float(sys.argv[2]) if len(sys.argv) > 2 else 0.5)
