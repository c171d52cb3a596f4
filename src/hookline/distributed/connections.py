"""Authenticated connections between processes: `multiprocessing.connection`, with a timeout for every wait."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, NamedTuple

import numpy as np

from hookline import clock, log
from hookline.distributed.codec import CodecError, decode, encode

logger = log.get_logger(__name__)

CONNECTION_ERRORS = (OSError, EOFError, AuthenticationError, AssertionError)
"""The errors of a connection whose other side does not answer, has ended, or has another key."""

HANDSHAKE_SECS = 10.0
"""The timeout of the handshake, in which both sides of a new connection prove that they have the key."""

MAX_UNAUTHENTICATED = 64
"""The largest number of unauthenticated connections that a server keeps open at a time."""

_HANDSHAKE_GRACE_SECS = 0.5
"""The least time for which an unauthenticated connection is kept; then the server may close it to admit another one."""

KEEPALIVE_SECS = 60
"""The time without an answer from a host after which its connections count as lost."""

UNREAD_SECS = 600
"""The time for which a caller may leave an answer unread before its connection counts as lost."""

_LIMITS = {"TCP_KEEPIDLE": KEEPALIVE_SECS // 3, "TCP_KEEPINTVL": KEEPALIVE_SECS // 6, "TCP_KEEPCNT": 4}
# Only for callers. A server's unacknowledged answer is no error, because a caller may read it long after its request.
_CALLER_LIMITS = {**_LIMITS, "TCP_USER_TIMEOUT": 1000 * KEEPALIVE_SECS}
_RETRY_SECS = 0.1
_LOG_EVERY_SECS = 10.0


class Address(NamedTuple):
    """The address at which a server listens, and the key that it shares with its callers."""

    host: str
    port: int
    key: bytes

    def __repr__(self) -> str:
        # The key belongs in no log.
        return f"Address({self.host!r}, {self.port})"


class SocketConnection:
    """One connection, which owns its socket. `calls` is whether this side has opened it.

    The constructor performs the handshake: each side proves by HMAC that it has the key, before any message is read.

    Raises:
        CONNECTION_ERRORS: The other side has another key, or does not answer.
    """

    def __init__(self, sock: socket.socket, key: bytes, *, calls: bool) -> None:
        self._socket, self._end = sock, weakref.finalize(self, _close_socket, sock)
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Detects a lost host, even if no message is sent.
        for name, value in (_CALLER_LIMITS if calls else _LIMITS).items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        # A duplicate descriptor, which is closed when no thread uses the connection any more.
        self._connection = Connection(os.dup(sock.fileno()))
        # One timeout for the whole handshake: a peer that sends a byte now and then would never exceed one per wait.
        deadline = threading.Timer(HANDSHAKE_SECS, self.close)
        deadline.daemon = True
        try:
            deadline.start()
            for challenge in (answer_challenge, deliver_challenge) if calls else (deliver_challenge, answer_challenge):
                challenge(self._connection, key)
        except BaseException:  # Release the socket.
            self.close()
            raise
        finally:
            deadline.cancel()
        self.set_timeouts(None, KEEPALIVE_SECS if calls else UNREAD_SECS)

    def set_timeouts(self, receive_secs: float | None, send_secs: float) -> None:
        """Sets the timeouts of `receive` and `send`; `None` for no timeout."""
        for option, secs in ((socket.SO_RCVTIMEO, receive_secs or 0.0), (socket.SO_SNDTIMEO, send_secs)):
            seconds, part = divmod(secs, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(seconds), int(part * 1e6)))

    def send(self, body: bytes, arrays: Sequence[np.ndarray]) -> None:
        """Sends an encoded message."""
        self._connection.send_bytes(body)
        for array in arrays:
            self._socket.sendall(array.reshape(-1).view("u1").data)

    def receive(self) -> Any:
        """Waits for a message, and returns it; its arrays are read-only.

        Raises:
            CodecError: The bytes are not a message.
        """
        message, arrays = decode(self._connection.recv_bytes())
        for array in arrays:
            # Directly into the array's memory; `recv_bytes_into` would make two copies.
            left = array.reshape(-1).view("u1").data
            while left:
                got = self._socket.recv_into(left, 0, socket.MSG_WAITALL)
                if not got:
                    raise EOFError("The other side has closed the connection.")
                left = left[got:]
            array.flags.writeable = False
        return message

    def close(self) -> None:
        """Closes the connection; a thread that waits on it gets an error."""
        self._end()


def _close_socket(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def connect(address: Address, timeout_secs: float) -> SocketConnection:
    """Opens a connection. Retries while the server closes it at once, because it has too many unauthenticated ones.

    Raises:
        CONNECTION_ERRORS: Nothing listens at the address, does not answer in time, or has another key.
    """
    deadline = clock.monotonic() + timeout_secs
    while True:
        try:
            return SocketConnection(
                socket.create_connection((address.host, address.port), timeout_secs), address.key, calls=True
            )
        except (EOFError, BrokenPipeError, ConnectionAbortedError, ConnectionResetError):
            if clock.monotonic() >= deadline:
                raise
        # A random time, so that callers refused at the same moment do not retry at the same moment.
        clock.sleep(random.uniform(0, 2 * _RETRY_SECS))


class _Unauthenticated:
    """The unauthenticated connections, oldest first: `MAX_UNAUTHENTICATED` at most."""

    def __init__(self) -> None:
        self._since: dict[socket.socket, float] = {}
        self._refused, self._logged_secs = 0, float("-inf")
        self._lock = threading.Lock()

    def admit(self, sock: socket.socket) -> bool:
        """Admits a new connection, unless there are too many. If the oldest has been slow, it is closed instead."""
        now = clock.monotonic()
        with self._lock:
            if len(self._since) >= MAX_UNAUTHENTICATED:
                oldest, since = next(iter(self._since.items()))
                # A process with the key takes milliseconds, so the job's processes get in even if others keep the limit
                # reached.
                if now - since < _HANDSHAKE_GRACE_SECS:
                    return False
                del self._since[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # Its thread ends.
            self._since[sock] = now
        return True

    def discard(self, sock: socket.socket) -> None:
        """Removes a connection that is authenticated, or has ended."""
        with self._lock:
            self._since.pop(sock, None)

    def log_refusal(self, why: object) -> None:
        """Logs a refused connection, at most one line every `_LOG_EVERY_SECS`."""
        now = clock.monotonic()
        with self._lock:
            self._refused += 1
            if now - self._logged_secs < _LOG_EVERY_SECS:
                return
            count, self._refused, self._logged_secs = self._refused, 0, now
        logger.warning(
            "A connection was refused: %s", why if count == 1 else f"{why} ({count} since the last such line)"
        )


class Listener:
    """Listens on one interface, and answers calls, with a thread for each connection.

    A message is `(wants_answer, call)`. The answer is `(True, value)` or `(False, exception)`; without `wants_answer`,
    only an exception is sent.
    """

    def __init__(self, receive: Callable[[Any], Any], host: str) -> None:
        self._receive, self._closed, self._unauthenticated = receive, False, _Unauthenticated()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=1024)
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_bytes())
        threading.Thread(target=self._accept, name="hookline-listen", daemon=True).start()

    def close(self) -> None:
        """Stops accepting connections."""
        self._closed = True
        _close_socket(self._socket)

    def _accept(self) -> None:
        while True:
            sock = None
            try:
                sock, _ = self._socket.accept()
                if not self._unauthenticated.admit(sock):
                    sock.close()
                    self._unauthenticated.log_refusal(
                        f"{MAX_UNAUTHENTICATED} other connections are not yet authenticated."
                    )
                    continue
                threading.Thread(target=self._serve, args=(sock,), name="hookline-serve", daemon=True).start()
            except (OSError, RuntimeError) as error:
                if sock is not None:
                    self._unauthenticated.discard(sock)
                    sock.close()
                if self._closed:
                    return
                # For example too many open files or threads, which may be temporary.
                logger.error("The server could not accept a connection: %r", error)
                clock.sleep(_RETRY_SECS)

    def _serve(self, sock: socket.socket) -> None:
        try:
            connection = SocketConnection(sock, self.address.key, calls=False)
        except (*CONNECTION_ERRORS, RuntimeError) as error:
            self._unauthenticated.log_refusal(repr(error))
            return
        finally:
            self._unauthenticated.discard(sock)
        try:
            while True:
                self._answer(connection, *connection.receive())
        except CodecError as error:
            logger.error("A connection was closed: %s", error)
        except (OSError, EOFError):
            pass  # The caller has disconnected.
        finally:
            connection.close()

    def _answer(self, connection: SocketConnection, wanted: bool, call: Any) -> None:
        try:
            answer = True, self._receive(call)
        except Exception as error:
            answer = False, error
        if wanted or not answer[0]:
            try:
                packed = encode(answer)
            except CodecError as error:
                packed = encode((False, error))
            connection.send(*packed)
