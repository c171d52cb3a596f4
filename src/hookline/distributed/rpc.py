"""Calls over connections: from workers to servers, and between servers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from hookline import errors
from hookline.distributed.codec import CodecError, encode
from hookline.distributed.connections import CONNECTION_ERRORS, HANDSHAKE_SECS, Address, SocketConnection, connect


class ServerClient:
    """Calls one server. Each call has a connection for itself until its answer is read; then another call may reuse it.

    Args:
        who: The server's name, for messages.
        address: The address at which the server listens.
        find: Returns the current address, after a connection was lost.
        timeout_secs: The timeout of a call.
    """

    def __init__(self, who: str, address: Address, find: Callable[[], Address], timeout_secs: float) -> None:
        self.who, self._find_address, self.timeout_secs = who, find, timeout_secs
        self._address: Address | None = address
        self._idle: list[SocketConnection] = []
        self._closed = False

    def call(self, message: Any) -> PendingReply:
        """Starts a call.

        Raises:
            CodecError: The message cannot be encoded.
            UnavailableError: The server cannot be reached.
        """
        packed = encode((True, message))
        connection = self._get_connection()
        try:
            connection.send(*packed)
        except BaseException as error:  # Close the connection: part of a message may have been sent.
            connection.close()
            if isinstance(error, OSError):
                raise self.connection_lost(error) from error
            raise
        return PendingReply(self, connection)

    def _get_connection(self) -> SocketConnection:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        # Read once: another thread resets the address when it loses its connection.
        address = self._address
        if address is None:
            address = self._address = self._find_address()
        try:
            connection = connect(address, min(self.timeout_secs, HANDSHAKE_SECS))
        except CONNECTION_ERRORS as error:
            self.connection_lost(error)
            raise _unreachable_error(self.who, address, error) from error
        connection.set_timeouts(self.timeout_secs, self.timeout_secs)
        return connection

    def release(self, connection: SocketConnection) -> None:
        """Makes a connection available to other calls, after its answer was read."""
        self._idle.append(connection)
        # `close` in another thread may have missed this connection.
        if self._closed:
            self._close_idle()

    def close(self) -> None:
        """Closes the connections; those of unfinished calls after their answers are read. Later calls open new ones."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def connection_lost(self, error: BaseException) -> errors.UnavailableError:
        """Returns the error of a call whose connection is lost; closes the idle connections, too."""
        self._address = None
        self._close_idle()
        timed_out = isinstance(error, TimeoutError | BlockingIOError)
        return errors.UnavailableError.from_message(
            f"{self.who} {'gave no answer in time' if timed_out else 'cannot be reached'}: {error!r}"
        )


class PendingReply:
    """The future result of a call. If it is never read, its connection is not reused."""

    def __init__(self, caller: ServerClient, line: SocketConnection) -> None:
        self._caller = caller
        self._line: SocketConnection | None = line

    def get(self) -> Any:
        """Waits for the result and returns it, or raises the server's error.

        Raises:
            CodecError: The answer cannot be decoded.
            UnavailableError: No answer has arrived.
        """
        connection, self._line = self._line, None
        assert connection is not None, "read once"
        try:
            done, result = connection.receive()
        except BaseException as error:  # Close the connection: part of an answer may still arrive on it.
            connection.close()
            if isinstance(error, CONNECTION_ERRORS):
                raise self._caller.connection_lost(error) from error
            if isinstance(error, Exception):
                raise CodecError(f"{self._caller.who} gave an answer that cannot be read: {error}") from error
            raise
        self._caller.release(connection)
        if not done:
            raise result
        return result


class SocketPeerClient:
    """One server's connections to the others, opened when needed.

    If a connection is lost, or a call fails on the other server, `on_failure` is called.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)
        self._connections: dict[int, SocketConnection] = {}
        self._closed = False

    def __reduce__(self) -> Any:
        return SocketPeerClient, (self._addresses,)

    def notify(self, server: int, method: str, *args: Any, on_failure: Callable[[BaseException], None]) -> None:
        """Calls a method of a server without waiting."""
        try:
            if server not in self._connections:
                self._connections[server] = self._open(server, on_failure)
        except CONNECTION_ERRORS as error:
            on_failure(
                _unreachable_error(f"Parameter server {server}", self._addresses[server], error, "by another server ")
            )
            return
        try:
            self._connections[server].send(*encode((False, (method, *args))))
        except CONNECTION_ERRORS as error:
            on_failure(_connection_lost_error(server, error))

    def _open(self, server: int, on_failure: Callable[[BaseException], None]) -> SocketConnection:
        connection = connect(self._addresses[server], HANDSHAKE_SECS)

        def listen() -> None:
            try:
                while True:
                    _, error = connection.receive()
                    on_failure(error)
            except Exception as error:
                if not self._closed:
                    on_failure(_connection_lost_error(server, error))

        threading.Thread(target=listen, name="hookline-link", daemon=True).start()
        return connection

    def close(self) -> None:
        """Closes the connections."""
        self._closed = True
        for line in self._connections.values():
            line.close()


def _connection_lost_error(server: int, error: BaseException) -> errors.UnavailableError:
    return errors.UnavailableError.from_message(
        f"Parameter server {server} cannot be reached by another server: {error!r}"
    )


def _unreachable_error(who: str, address: Address, error: BaseException, by: str = "") -> errors.UnavailableError:
    return errors.UnavailableError.from_message(
        f"{who} cannot be reached {by}at {address.host}:{address.port} (tried for up to {HANDSHAKE_SECS:g} s): "
        f"{error!r}. If the server runs, and the network lets only Ray's ports through, set "
        f"ClusterOptions(over_ray=True) on the chief and start the job again.",
    )
