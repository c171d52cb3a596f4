"""Calls of servers by workers and other servers: in this process, for tests, or as Ray actors."""

from __future__ import annotations

import copy
import re
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hookline import errors
from hookline.distributed.protocol import WAITING, Peers
from hookline.distributed.server import ParameterServer


class Reply(Protocol):
    """The result of a call under way."""

    def get(self) -> Any:
        """Waits for the result and returns it, or raises the server's error."""
        ...


class Transport(Protocol):
    """Calls servers by number."""

    @property
    def count(self) -> int:
        """How many servers there are."""
        ...

    def call(self, server: int, method: str, *args: Any) -> Reply:
        """Starts a call. Calls from one caller to one server are carried out in order, except those that wait."""
        ...

    def peers(self) -> Peers | None:
        """Returns what servers need to call each other."""
        ...


# In this process ---------------------------------------------------------------------------------------------------


class _Done:
    """The result of a call that was carried out at once."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._value, self._error = None, None
        try:
            self._value = call()
        except Exception as error:
            self._error = error

    def get(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class DirectTransport:
    """Servers in this process. Calls happen at once; messages between servers happen on `step`.

    Arguments and results are copied, as if they had been sent.

    Args:
        servers: The servers. To restart one, replace it in the list.
        eager: Whether to deliver messages between servers at once.

    Attributes:
        posted: Messages between servers that are under way.

    Example:
        >>> transport = DirectTransport([ParameterServer()])
        >>> transport.call(0, "status").get().step
        0
    """

    def __init__(self, servers: Sequence[ParameterServer], *, eager: bool = True) -> None:
        self.servers = list(servers)
        self.eager = eager
        self.posted: deque[Callable[[], None]] = deque()

    @property
    def count(self) -> int:
        """How many servers there are."""
        return len(self.servers)

    def call(self, server: int, method: str, *args: Any) -> Reply:
        """Carries out a call."""
        target = self.servers[server]
        done = _Done(lambda: copy.deepcopy(getattr(target, method)(*_travelled(args))))
        if self.eager:
            self.deliver_all()
        return done

    def peers(self) -> Peers | None:
        """Returns itself: it delivers the messages between servers."""
        return self

    def tell(self, server: int, method: str, *args: Any, on_failure: Callable[[BaseException], Any]) -> None:
        """Posts a message to a server."""
        args = _travelled(args)

        def deliver() -> None:
            try:
                getattr(self.servers[server], method)(*args)
            except Exception as error:
                on_failure(error)

        self.posted.append(deliver)

    def deliver_all(self) -> None:
        """Delivers all messages between servers."""
        while self.posted:
            self.posted.popleft()()

    def __deepcopy__(self, memo: Any) -> DirectTransport:
        return self


def _travelled(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return copy.deepcopy(args)


# Ray ---------------------------------------------------------------------------------------------------------------


class _RayReply:
    def __init__(self, transport: RayTransport, server: int, ref: Any) -> None:
        self._transport, self._server, self._ref = transport, server, ref

    def get(self) -> Any:
        import ray

        try:
            return ray.get(self._ref, timeout=self._transport.timeout_secs)
        except Exception as error:
            mapped = map_ray_error(error, f"Parameter server {self._server}")
            if mapped is error:
                raise
            raise mapped from error


class RayTransport:
    """Servers that are Ray actors.

    Args:
        actors: Their handles.
        timeout_secs: How long a call may take before its server counts as away.
    """

    def __init__(self, actors: Sequence[Any], *, timeout_secs: float = 60.0) -> None:
        self._actors = list(actors)
        self.timeout_secs = timeout_secs

    @property
    def count(self) -> int:
        """How many servers there are."""
        return len(self._actors)

    def call(self, server: int, method: str, *args: Any) -> Reply:
        """Starts a call."""
        return _RayReply(self, server, _start(self._actors[server], method, args))

    def peers(self) -> Peers | None:
        """Returns the object with which servers call each other; a single server needs none."""
        return RayPeers(self._actors) if self.count > 1 else None


class RayPeers:
    """One server's connection to the others.

    Args:
        actors: The handles of all servers.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = list(actors)

    def tell(self, server: int, method: str, *args: Any, on_failure: Callable[[BaseException], Any]) -> None:
        """Calls a method of a server without waiting."""

        def look(future: Any) -> None:
            error = future.exception()
            if error is not None:
                on_failure(map_ray_error(error, f"Parameter server {server}"))

        try:
            _start(self._actors[server], method, args).future().add_done_callback(look)
        except Exception as error:
            on_failure(map_ray_error(error, f"Parameter server {server}"))


def _start(actor: Any, method: str, args: tuple[Any, ...]) -> Any:
    receive = actor.receive.options(concurrency_group="wait") if method in WAITING else actor.receive
    # A single argument, because Ray processes each argument like a whole message.
    return receive.remote((method, *args))


def actor_class(waiting_threads: int = 16) -> Any:
    """Returns the Ray actor class of a parameter server; `.options(name=..., ...)` and `.remote()` create an actor.

    Args:
        waiting_threads: How many calls may wait on a server at the same time, for instance for the global step. Further
            calls wait longer.
    """
    import ray

    options = {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
        "concurrency_groups": {"wait": waiting_threads},
    }
    return ray.remote(**options)(ParameterServerActor)


class ParameterServerActor(ParameterServer):
    """A server in its own process. It survives a signal to all processes of a job, because they save its values."""

    def __init__(self) -> None:
        super().__init__()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


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
