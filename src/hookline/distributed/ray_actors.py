"""Parameter servers as Ray actors: Ray starts, names, finds and restarts them; calls have connections of their own."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Sequence
from typing import Any

from hookline import errors
from hookline.distributed.calls import Caller, Links
from hookline.distributed.channel import Address
from hookline.distributed.protocol import Peers
from hookline.distributed.server import ParameterServer
from hookline.distributed.serving import Listener
from hookline.distributed.transport import Reply


class RayTransport:
    """Servers that are Ray actors.

    Args:
        actors: Their handles.
        timeout_secs: How long a call may take before its server counts as away.

    Raises:
        FailedPreconditionError: Ray encrypts its messages, and these would not be.
    """

    def __init__(self, actors: Sequence[Any], *, timeout_secs: float = 60.0) -> None:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            raise errors.FailedPreconditionError(
                None,
                None,
                "This Ray cluster encrypts its messages (RAY_USE_TLS), and hookline's own connections to parameter "
                "servers are not encrypted. Use a network that encrypts, such as a VPN, and Ray without RAY_USE_TLS.",
            )
        self._find = [functools.partial(_address, *item, timeout_secs) for item in enumerate(actors)]
        self._callers = [Caller(_name(server), find, timeout_secs, _dumps) for server, find in enumerate(self._find)]

    @property
    def count(self) -> int:
        """How many servers there are."""
        return len(self._callers)

    def call(self, server: int, method: str, *args: Any) -> Reply:
        """Starts a call."""
        return self._callers[server].call((method, *args))

    def peers(self) -> Peers | None:
        """Returns the object with which servers call each other; a single server needs none."""
        return Links([find() for find in self._find]) if self.count > 1 else None


def _name(server: int) -> str:
    return f"Parameter server {server}"


def _address(server: int, actor: Any, timeout_secs: float) -> Address:
    """Asks Ray where a server listens."""
    import ray

    try:
        return ray.get(actor.address.remote(), timeout=timeout_secs)
    except Exception as error:
        mapped = map_ray_error(error, _name(server))
        if mapped is error:
            raise
        raise mapped from error


def _dumps(message: Any, **options: Any) -> bytes:
    """Pickles as Ray does: a function that the other side cannot import travels as a whole."""
    from ray import cloudpickle

    return cloudpickle.dumps(message, **options)  # pyright: ignore[reportPrivateImportUsage]


def actor_class() -> Any:
    """Returns the Ray actor class of a parameter server; `.options(name=..., ...)` and `.remote()` create an actor."""
    import ray

    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)(ParameterServerActor)


class ParameterServerActor(ParameterServer):
    """A server in its own process. It survives a signal to all processes of a job, because they save its values."""

    def __init__(self) -> None:
        import ray.util

        super().__init__()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._listener = Listener(self.receive, ray.util.get_node_ip_address(), _dumps)

    def address(self) -> Address:
        """Returns where it listens; only Ray tells this, to those who have its token."""
        return self._listener.address


def map_ray_error(error: BaseException, who: str) -> BaseException:
    """Returns the error of `hookline.errors` for an error of Ray, or the error that a server's method raised.

    Args:
        error: The error that `ray.get` raised. Other errors are returned unchanged.
        who: The server it concerns.
    """
    import ray.exceptions as rays

    if isinstance(error, rays.RayTaskError):
        cause = getattr(error, "cause", None)
        return cause if isinstance(cause, Exception) else error
    if isinstance(error, rays.ActorUnavailableError | rays.GetTimeoutError | rays.NodeDiedError):
        reason = "gave no answer in time" if isinstance(error, rays.GetTimeoutError) else "cannot be reached"
        return errors.UnavailableError(None, None, f"{who} {reason}: {_first_line(error)}")
    if isinstance(error, rays.RayActorError) and getattr(error, "actor_init_failed", False):
        # It would fail again, so a recovery is useless.
        return errors.InternalError(None, None, f"{who} cannot start: {_first_line(error)}")
    if isinstance(error, rays.RayActorError):
        return errors.AbortedError(None, None, f"{who} has died: {_first_line(error)}")
    if isinstance(error, rays.RayError):
        return errors.UnavailableError(None, None, f"{who} cannot be reached: {_first_line(error)}")
    return error


def _first_line(error: BaseException) -> str:
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines() or [type(error).__name__]
    # The last line says why a server failed to start; between the two is Ray's stack.
    return f"{lines[0]} {lines[-1]}" if "creation task" in lines[0] and len(lines) > 1 else lines[0]
