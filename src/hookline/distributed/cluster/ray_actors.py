"""Parameter servers as Ray actors: Ray starts, names, finds and restarts them, and transports the rare calls."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from typing import Any

from hookline import errors
from hookline.distributed.codec import CodecError
from hookline.distributed.connections import Address, Listener
from hookline.distributed.protocol import BLOCKING_METHODS, DEFERRED_METHODS, SOCKET_METHODS, PeerClient, Reply
from hookline.distributed.rpc import ServerClient, SocketPeerClient
from hookline.distributed.server.server import ParameterServer

# In Ray's error about an argument that an actor cannot unpickle.
_MISSING_MODULE = re.compile(r"No module named '([^']+)'")


class RayTransport:
    """Calls servers that are Ray actors.

    The calls of steps and snapshots (`SOCKET_METHODS`) go over connections if the servers listen, all others over Ray.
    Before each call, `check_head` checks that the head answers.
    """

    def __init__(
        self, actors: Sequence[Any], *, timeout_secs: float = 60.0, check_head: Callable[[], None] = lambda: None
    ) -> None:
        self._actors, self._check_head = list(actors), check_head
        self.timeout_secs = timeout_secs
        self._clients: dict[int, ServerClient | None] = {}

    @property
    def count(self) -> int:
        """The number of servers."""
        return len(self._actors)

    def call(self, server: int, method: str, *args: Any) -> Reply:
        """Starts a call."""
        self._check_head()
        client = self._client(server) if method in SOCKET_METHODS else None
        if client is not None:
            try:
                return client.call((method, *args))
            except CodecError:
                pass  # Nothing was sent yet; Ray sends anything that can be pickled.
        return _RayReply(_start(self._actors[server], method, args), server, self.timeout_secs)

    def _client(self, server: int) -> ServerClient | None:
        if server not in self._clients:
            address = self._address(server)
            who, timeout_secs = _name(server), self.timeout_secs
            self._clients[server] = address and ServerClient(who, address, lambda: self._address(server), timeout_secs)
        return self._clients[server]

    def _address(self, server: int) -> Any:
        """Returns the address at which a server listens, from Ray; None if it does not listen."""
        return _RayReply(self._actors[server].address.remote(), server, self.timeout_secs).get()

    def peer_client(self) -> PeerClient | None:
        """Returns the object with which servers call each other; a single server needs none."""
        if self.count == 1:
            return None
        addresses = [self._address(server) for server in range(self.count)]
        return SocketPeerClient(addresses) if all(addresses) else RayPeerClient(self._actors)

    def close(self) -> None:
        """Closes the connections."""
        for client in list(self._clients.values()):
            if client is not None:
                client.close()


class RayPeerClient:
    """Calls the other servers over Ray, if they do not listen."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = list(actors)

    def notify(self, server: int, method: str, *args: Any, on_failure: Callable[[BaseException], Any]) -> None:
        """Calls a method of a server without waiting."""

        def report_failure(future: Any) -> None:
            error = future.exception()
            if error is not None:
                on_failure(map_ray_error(error, _name(server)))

        try:
            _start(self._actors[server], method, args).future().add_done_callback(report_failure)
        except Exception as error:
            on_failure(map_ray_error(error, _name(server)))

    def close(self) -> None:
        """Does nothing: Ray keeps the connections."""


class _RayReply:
    def __init__(self, ref: Any, server: int, timeout_secs: float) -> None:
        self._ref, self._server, self._timeout_secs = ref, server, timeout_secs

    def get(self) -> Any:
        import ray

        try:
            return ray.get(self._ref, timeout=self._timeout_secs)
        except Exception as error:
            mapped = map_ray_error(error, _name(self._server))
            if mapped is error:
                raise
            raise mapped from error


def _name(server: int) -> str:
    return f"Parameter server {server}"


def _start(actor: Any, method: str, args: tuple[Any, ...]) -> Any:
    waits = method in BLOCKING_METHODS or method in DEFERRED_METHODS
    answer = actor.answer.options(concurrency_group="wait") if waits else actor.answer
    # A single argument, because Ray processes each argument like a whole message.
    return answer.remote((method, *args))


def actor_class(waiting_threads: int = 16) -> Any:
    """Returns the Ray actor class of a parameter server; `.options(name=..., ...)` and `.remote()` create an actor.

    `waiting_threads` is the number of Ray calls that may block on a server at the same time, for example in a wait for
    the global step.
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
    """A server in its own process. It ignores SIGTERM, because a job that gets the signal still saves its values.

    With `over_ray`, all calls go over Ray, as they do in a cluster that encrypts.
    """

    def __init__(self, over_ray: bool = False) -> None:
        super().__init__()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._listener = None if over_ray or _encrypted() else Listener(self.answer, _host())

    def address(self) -> Address | None:
        """Returns the address at which it listens, and its key; Ray gives them only to holders of the token."""
        return self._listener and self._listener.address


def _encrypted() -> bool:
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _host() -> str:
    import ray.util

    return ray.util.get_node_ip_address()


def map_ray_error(error: BaseException, who: str) -> BaseException:
    """Returns the error of `hookline.errors` for an error of Ray, or the error that the method of the actor raised.

    `who` names the actor in messages.
    """
    import ray.exceptions as rays

    if isinstance(error, rays.RayTaskError):
        cause = getattr(error, "cause", None)
        if isinstance(cause, rays.RaySystemError) and (missing := _MISSING_MODULE.search(str(cause))):
            text = f"{who} cannot import {missing[1]!r}, which a function of the graph needs: install it on its host."
            return errors.FailedPreconditionError.from_message(text)
        return cause if isinstance(cause, Exception) else error
    if isinstance(error, rays.ActorUnavailableError | rays.GetTimeoutError | rays.NodeDiedError):
        reason = "gave no answer in time" if isinstance(error, rays.GetTimeoutError) else "cannot be reached"
        return errors.UnavailableError.from_message(f"{who} {reason}: {_first_line(error)}")
    if isinstance(error, rays.RayActorError):
        if getattr(error, "actor_init_failed", False):
            # It would fail again, so a recovery is useless.
            return errors.InternalError.from_message(f"{who} cannot start: {_first_line(error)}")
        return errors.AbortedError.from_message(f"{who} has died: {_first_line(error)}")
    if isinstance(error, rays.RayError):
        return errors.UnavailableError.from_message(f"{who} cannot be reached: {_first_line(error)}")
    return error


def _first_line(error: BaseException) -> str:
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines() or [type(error).__name__]
    # If a server failed to start, the last line has the reason; Ray's stack is between the two.
    return f"{lines[0]} {lines[-1]}" if "creation task" in lines[0] and len(lines) > 1 else lines[0]
