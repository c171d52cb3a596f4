"""LocalRayCluster: a Ray cluster on the loopback interface of this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from hookline import clock, log
from hookline.distributed.cluster.process_tree import ProcessTree
from hookline.errors import CancelledError, PermissionDeniedError, UnavailableError

logger = log.get_logger(__name__)

_POLL_SECS = 0.05
# On all systems, despite its name, this decides whether the cluster may have other machines. If so, Ray replaces
# 127.0.0.1 with the machine's external address.
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"

_HEAD = Path(__file__).with_name("ray_head.py")


class LocalRayCluster:
    """A Ray cluster on the loopback interface, with its own folder, ports and token, that ends with its `with` block.

    It runs no dashboard and reports no usage. Only its user (and root) can use it: its folder (mode 0700) contains the
    token and all sockets. It also ends when the process that started it ends or is killed, and when an essential part
    of it dies. Other Ray clusters on the machine are not affected.

    Args:
        object_store_bytes: The largest shared memory for arrays in transit; allocated when needed.
        start_timeout_secs: The timeout of the start.

    Attributes:
        address: The address of the head, `"127.0.0.1:port"`, while it is started.

    Raises:
        ModuleNotFoundError: Ray is not installed.

    Example:
        >>> with LocalRayCluster() as cluster:  # doctest: +SKIP
        ...     print(cluster.address)
        127.0.0.1:40027
    """

    def __init__(self, *, object_store_bytes: int = 2**30, start_timeout_secs: float = 120) -> None:
        require_ray()
        self._object_store_bytes = object_store_bytes
        self._start_timeout_secs = start_timeout_secs
        self._folder: Path | None = None
        self._head: ProcessTree | None = None
        self.address = ""

    @property
    def token_path(self) -> str:
        """The file with the cluster's token."""
        return str(self._started()[0] / "token")

    @property
    def head(self) -> ProcessTree:
        """The processes of the head, including everything that Ray started, such as servers."""
        return self._started()[1]

    def _started(self) -> tuple[Path, ProcessTree]:
        if self._folder is None or self._head is None:
            raise RuntimeError("The local Ray cluster is not started: use it in a `with` block, or call start().")
        return self._folder, self._head

    def environment(self) -> dict[str, str]:
        """Returns the environment variables by which `Cluster.from_environment`, and Ray itself, find the cluster."""
        ray = ray_environment(self.token_path, loopback=True)
        return {"HOOKLINE_ADDRESS": self.address, "HOOKLINE_TOKEN_PATH": self.token_path, **ray}

    def start(self, is_cancelled: Callable[[], bool] = lambda: False) -> LocalRayCluster:
        """Starts the cluster and waits until it can be used.

        Args:
            is_cancelled: Called during the start; ends it by returning True.

        Raises:
            UnavailableError: The cluster did not start; the message has the last lines that Ray printed.
            PermissionDeniedError: Other users could replace the cluster's folder.
            CancelledError: `is_cancelled` returned True.
        """
        if self._head is not None:
            raise RuntimeError(f"The local Ray cluster at {self.address} is already started.")
        self._folder = _private_folder()
        try:
            self._start(self._folder, is_cancelled)
        except BaseException:  # Release the processes, their ports and the folder.
            self.stop()
            raise
        return self

    def check(self) -> None:
        """Checks that the cluster, if it was started, has not ended by itself.

        Raises:
            UnavailableError: The cluster has ended; the message has the last line that it printed.
        """
        if self.address and self.head.status() is not None:
            said = _tail(self._started()[0] / "head.log", 1)
            raise UnavailableError.from_message(
                f"The local Ray cluster at {self.address} has ended by itself. Its last output: {said}"
            )

    def stop(self) -> None:
        """Kills all processes of the cluster, and removes its folder. A second call does nothing."""
        if self._head is not None:
            try:
                self.check()
            except UnavailableError as error:
                logger.error("%s", error)
            self._head.kill()
            self._head = None
            self.address = ""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> LocalRayCluster:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _start(self, folder: Path, is_cancelled: Callable[[], bool]) -> None:
        write_token(folder / "token")
        env = {**os.environ, **ray_environment(str(folder / "token"), loopback=True)}
        # Servers stay in the process group of the head, so that they are always killed with it.
        env["RAY_process_group_cleanup_enabled"] = "false"
        # Ray gives its workers a low priority (nice 15), but here all other processes wait for the servers.
        env["RAY_worker_niceness"] = "0"
        # The processes of the head would use another cluster's address and token.
        foreign = ("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_AUTH_TOKEN")
        env = {name: value for name, value in env.items() if name not in foreign}
        # -P: modules of hookline in the script's folder must not hide others of the same name.
        command = [sys.executable, "-P", str(_HEAD), str(folder), str(self._object_store_bytes)]
        with open(folder / "head.log", "wb") as log:
            self._head = ProcessTree(command, env, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        started = clock.monotonic()
        while not (folder / "address").exists():
            status = self._head.status()
            if status is not None or clock.monotonic() - started > self._start_timeout_secs:
                what = f"ended with status {status}" if status is not None else "is not ready"
                raise UnavailableError.from_message(
                    f"The local Ray cluster {what} after {clock.monotonic() - started:.0f} seconds. Its last output:\n"
                    f"{_tail(folder / 'head.log')}",
                )
            if is_cancelled():
                raise CancelledError.from_message("The start of the local Ray cluster was cancelled.")
            clock.sleep(_POLL_SECS)
        self.address = (folder / "address").read_text(encoding="utf-8")
        logger.info("Local Ray cluster at %s, started in %.1f seconds.", self.address, clock.monotonic() - started)


def _private_folder() -> Path:
    """Creates a folder that only this user can enter, and that no other user can rename."""
    # In /tmp, because names of Ray's sockets are long, but limited to 107 characters with their folder.
    parent = Path("/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir())
    for folder in (parent, *parent.parents):
        if folder.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise PermissionDeniedError.from_message(
                f"The folder of a local Ray cluster would be in {parent}, but in {folder} every user may rename the "
                f"files of others. Forbid that (chmod +t {folder}), or set TMPDIR to another folder.",
            )
    return Path(tempfile.mkdtemp(prefix="hookline-ray-", dir=parent))


def require_ray() -> None:
    """Checks that Ray is installed, without importing it.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise ModuleNotFoundError("hookline.distributed requires Ray: pip install ray", name="ray")


def write_token(path: Path) -> None:
    """Writes a new token into a file that only its owner can read.

    Raises:
        FileExistsError: The file already exists.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))


def ray_environment(token_path: str | None, *, loopback: bool) -> dict[str, str]:
    """Returns the environment variables that every process of a cluster must set before it imports Ray.

    With `loopback`, the whole cluster is on this machine, and nothing listens on other interfaces.
    """
    env = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        # Otherwise joining is retried 20 times, which takes ten minutes if it fails.
        "RAY_NUM_REDIS_GET_RETRIES": "1",
        # Otherwise a task that gets SIGTERM prints the addresses of its C++ functions.
        "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
    }
    if token_path is not None:
        env["RAY_AUTH_TOKEN_PATH"] = token_path
    if loopback:
        env[LOOPBACK_VARIABLE] = "0"
    return env


def _tail(path: Path, lines: int = 20) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
