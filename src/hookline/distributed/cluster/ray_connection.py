"""Connection to an existing Ray cluster, and the actors of a job on it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hookline import clock, log
from hookline.coordination.key_value_store import token_file
from hookline.distributed.cluster.local_ray_cluster import LOOPBACK_VARIABLE, ray_environment, require_ray
from hookline.distributed.cluster.ray_actors import actor_class
from hookline.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    UnauthenticatedError,
    UnavailableError,
)
from hookline.signals import preemption

logger = log.get_logger(__name__)

HEAD_GRACE_SECS = 15.0
"""The time without an answer after which the head counts as lost. After 60 s, Ray silently ends all processes."""

_HEAD_CHECK_SECS = 5.0
_POLL_SECS = 0.1
_LOG_EVERY_SECS = 30.0
_SERVER = "hookline-server-"
_SERVER_HOSTS = "hookline_server"
_HEAD_HOST = "node:__internal_head__"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Head:
    """Checks that a Ray head answers: the GCS, and the raylet, which starts the servers on the head's host.

    Without its head a cluster seems to work for a minute. Then Ray ends all its processes without an error in the
    training.

    Args:
        address: The address of the GCS.
        raylet: The address of the raylet. It ends with the agents that it needs, so it stands for them, too.
    """

    def __init__(self, address: str, raylet: str) -> None:
        self._parts = {f"The Ray head at {address}": address, _raylet_of(address): raylet}
        self._looked = clock.monotonic()
        self._missing_since: float | None = None

    def check(self) -> None:
        """Waits until both parts answer.

        Raises:
            InternalError: A part does not answer.
        """
        for part, address in self._parts.items():
            if not _listens_within(address, HEAD_GRACE_SECS):
                raise _head_lost_error(part)

    def poll(self) -> None:
        """Checks that both parts answer, unless the last check was just now.

        Raises:
            InternalError: A part has not answered for `HEAD_GRACE_SECS`.
        """
        now = clock.monotonic()
        if now - self._looked < _HEAD_CHECK_SECS:
            return
        self._looked = now
        missing = next((part for part, address in self._parts.items() if not listens(address)), None)
        if missing is None:
            self._missing_since = None
            return
        # The time counts from the first failed check, not from the last good one: during a long step, or while the
        # process is stopped, there are no checks.
        self._missing_since = now if self._missing_since is None else self._missing_since
        if now - self._missing_since >= HEAD_GRACE_SECS:
            raise _head_lost_error(missing)
        logger.warning("%s does not answer.", missing)


def connect(address: str, job: str, token_path: str | None, timeout_secs: float) -> Head:
    """Joins the Ray cluster whose head is at `address`, once per process; never starts one. Returns its head.

    The namespace of the job's servers is the job's name. Without `token_path`, the token is in Ray's default file.

    Raises:
        UnavailableError: Nothing listens at the address.
        InternalError: This process was connected to the cluster, which is gone.
        UnauthenticatedError: There is no token, or it is not the cluster's.
        FailedPreconditionError: This process is connected to another cluster, or Ray cannot join this one.
    """
    require_ray()
    # Ray is not imported here, because it reads some of its environment when it is imported.
    joined = _joined_address() if "ray" in sys.modules else None
    if joined == address:
        return _find_head(address)
    if joined is not None:
        raise FailedPreconditionError.from_message(
            f"This process is connected to the Ray cluster at {joined} and cannot join the one at {address} as well. "
            f"Call ray.shutdown() first, or use the address {joined}.",
        )
    wait_for_head(address, timeout_secs)
    _set_environment(address, token_path)
    _join(address, job)
    return _find_head(address)


def _joined_address() -> str | None:
    import ray

    return ray.get_runtime_context().gcs_address if ray.is_initialized() else None


def _find_head(address: str) -> Head:
    """Returns the head of the joined cluster, after a check that it answers.

    Raises:
        InternalError: The head is gone.
    """
    import ray

    # Without its head, `ray.nodes()` would block until Ray ends this process.
    if not _listens_within(address, HEAD_GRACE_SECS):
        raise _head_lost_error(f"The Ray head at {address}")
    for node in ray.nodes():
        if node["Alive"] and _HEAD_HOST in node["Resources"]:
            head = Head(address, f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
            head.check()
            return head
    raise _head_lost_error(_raylet_of(address), "has died")


def _set_environment(address: str, token_path: str | None) -> None:
    loopback = _host_and_port(address)[0] in _LOOPBACK
    wanted = ray_environment(find_token(token_path), loopback=loopback)
    if loopback and "ray" in sys.modules and os.environ.get(LOOPBACK_VARIABLE) != "0":
        raise FailedPreconditionError.from_message(
            f"The Ray cluster at {address} is on the loopback interface, and Ray was imported before hookline could "
            f"configure that. Import ray after the session is created, or set {LOOPBACK_VARIABLE}=0 before the import.",
        )
    for name, value in wanted.items():
        if name == "RAY_AUTH_TOKEN_PATH":
            os.environ[name] = value
            # Ray would prefer this variable to the file.
            os.environ.pop("RAY_AUTH_TOKEN", None)
        else:
            os.environ.setdefault(name, value)


def _join(address: str, job: str) -> None:
    # The import of Ray replaces sys.excepthook: its own reports errors to the head before it prints them, which takes a
    # minute if the head is away.
    excepthook = sys.excepthook
    import ray

    sys.excepthook = excepthook
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, namespace=job, log_to_driver=False, configure_logging=False)
    except Exception as error:
        ray.shutdown()
        if _is_about_authentication(error):
            raise UnauthenticatedError.from_message(
                f"The Ray cluster at {address} refuses this process's token. Name the file with the cluster's token "
                f"(HOOKLINE_TOKEN_PATH, or token_path of ClusterOptions).",
            ) from error
        raise FailedPreconditionError.from_message(
            f"Joining the Ray cluster at {address} failed: {error} Each host needs `ray start --address={address}`, "
            f"and all need the same versions of Python and Ray.",
        ) from error
    finally:
        # Ray installs its own handler, which ends the process with status 15.
        if threading.current_thread() is threading.main_thread():
            if on_sigterm == signal.SIG_DFL:
                signal.signal(signal.SIGTERM, _leave)
            elif on_sigterm is not None:
                signal.signal(signal.SIGTERM, on_sigterm)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Handles SIGTERM in place of the default: exits, so that exit handlers disconnect from Ray."""
    sys.exit(128 + number)


def _is_about_authentication(error: BaseException | None) -> bool:
    while error is not None:
        if "AuthenticationError" in f"{type(error).__name__}: {error}":
            return True
        error = error.__cause__ or error.__context__
    return False


def wait_for_head(address: str, timeout_secs: float) -> None:
    """Waits until a Ray head listens at an address.

    Raises:
        UnavailableError: No head listened in time.
    """
    if not _listens_within(address, timeout_secs):
        raise UnavailableError.from_message(
            f"No Ray head listens at {address} (tried for {timeout_secs:g} seconds). Start it (ray start --head "
            f"--port=...), or check the address; `hookline launch` starts a local Ray cluster.",
        )


def create_servers(job: str, count: int, workers: int = 1, *, over_ray: bool = False) -> list[Any]:
    """Returns handles of the job's servers; creates missing servers without waiting for them.

    The servers are spread over the hosts whose Ray was started with a resource `hookline_server`. If there are none,
    they run on the host of the Ray head, whose loss ends the job in any case. Without this, Ray could place them on a
    worker's host, whose loss would then lose the values. `workers` is the number of workers that may block in a call.
    """
    import ray

    options: dict[str, Any] = {"namespace": job, "lifetime": "detached", "get_if_exists": True}
    where = _SERVER_HOSTS if _SERVER_HOSTS in ray.cluster_resources() else _HEAD_HOST
    options["resources"], options["scheduling_strategy"] = {where: 0.001}, "SPREAD"
    # A server computes on its CPU, because an accelerator of the host belongs to the workers.
    options["runtime_env"] = {"env_vars": {"JAX_PLATFORMS": "cpu"}}
    # One blocking call per worker, and a few for snapshots and other servers.
    server = actor_class(waiting_threads=workers + 8)
    return [server.options(name=f"{_SERVER}{index}", **options).remote(over_ray) for index in range(count)]


def find_servers(job: str, count: int, wait_secs: float) -> list[Any]:
    """Waits until the chief has created the job's servers, and returns their handles.

    Raises:
        DeadlineExceededError: A server did not exist in time; the message names the first missing one.
        InternalError: The Ray head is gone.
    """
    import ray

    start = logged = clock.monotonic()
    found: list[Any] = []
    address = _joined_address()
    head = None if address is None else _find_head(address)
    while True:
        # Without its head, `ray.get_actor` would block until Ray ends this process.
        if head is not None:
            head.check()
        try:
            while len(found) < count:
                found.append(ray.get_actor(f"{_SERVER}{len(found)}", namespace=job))
            return found
        except ValueError:
            missing = f"{_SERVER}{len(found)}"
        now = clock.monotonic()
        if now - start >= wait_secs:
            raise DeadlineExceededError.from_message(
                f"The chief did not create parameter server {missing!r} ({len(found)} of {count} are there) of job "
                f"{job!r} within {wait_secs:g} seconds. Check that the chief runs, and that it has the same job, "
                f"address and number of servers.",
            )
        if now - logged >= _LOG_EVERY_SECS:
            logger.info("Waiting for the chief to create parameter server %r of job %r.", missing, job)
            logged = now
        preemption.sleep(min(_POLL_SECS, max(start + wait_secs - now, 0)))


def kill_servers(job: str) -> int:
    """Ends all servers of a job, discards their values, and returns the number of servers."""
    import ray
    from ray.util import list_named_actors

    actors: list[dict[str, str]] = list_named_actors(all_namespaces=True)  # type: ignore[assignment]
    names = [actor["name"] for actor in actors if actor["namespace"] == job and actor["name"].startswith(_SERVER)]
    for name in names:
        try:
            ray.kill(ray.get_actor(name, namespace=job), no_restart=True)
        except ValueError:
            logger.info("Parameter server %r of job %r has already ended.", name, job)
    return len(names)


def listens(address: str, timeout_secs: float = 1.0) -> bool:
    """Returns whether a process accepts connections at `"host:port"`."""
    try:
        socket.create_connection(_host_and_port(address), timeout=timeout_secs).close()
    except OSError:
        return False
    return True


def _listens_within(address: str, timeout_secs: float) -> bool:
    deadline = clock.monotonic() + timeout_secs
    while not listens(address):
        if clock.monotonic() >= deadline:
            return False
        preemption.sleep(_POLL_SECS)
    return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _raylet_of(address: str) -> str:
    return f"The raylet of the Ray head at {address}"


def _head_lost_error(part: str, how: str = f"has not answered for {HEAD_GRACE_SECS:g} seconds") -> InternalError:
    # Not a preemption error, because this process cannot join a new head and so cannot recover.
    return InternalError.from_message(
        f"{part} {how}. If it is gone, the parameter servers are lost with it: start the head again, then the job, and "
        f"training resumes from the last checkpoint. If only this host was disconnected, the other tasks continue: "
        f"start this task again, and Ray on this host if it has ended (ray start --address=HOST:PORT of the head).",
    )


def find_token(token_path: str | None) -> str | None:
    """Returns the path of the file with the cluster's token, or `None` if Ray needs none.

    Raises:
        UnauthenticatedError: The file does not exist.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        logger.warning(
            "RAY_AUTH_MODE=%s: anyone who can reach the Ray cluster can run code on it.", os.environ["RAY_AUTH_MODE"]
        )
        return None
    if token_path is None and "RAY_AUTH_TOKEN" in os.environ:
        return None
    path = Path(token_path or os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    missing = (
        f"There is no token for the Ray cluster: {path} is not a file. Copy the cluster's token there (mode 0600), "
        f"or name its file with HOOKLINE_TOKEN_PATH. For a cluster without tokens set RAY_AUTH_MODE=disabled."
    )
    return str(token_file(path, missing))
