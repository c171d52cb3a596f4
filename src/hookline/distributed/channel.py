"""Messages over TCP between processes that share a key: whoever does not prove to have it is not listened to."""

from __future__ import annotations

import contextlib
import hmac
import pickle
import secrets
import socket
import struct
import weakref
from collections.abc import Callable
from io import BufferedReader
from typing import Any, NamedTuple, cast

import numpy as np

from hookline import errors

KEY_BYTES = 32
Dumps = Callable[..., bytes]
"""Pickles a message; gets `protocol` and `buffer_callback`."""

GREET_SECS = 10.0
"""How long the other side of a new connection may take to say who it is."""

AWAY_SECS = 60
"""For how long a silent host may be away before its connections count as lost."""

_COUNTS = struct.Struct("!QI")
_PROOF_BYTES = 32
_READ_BYTES = 1 << 16


class Address(NamedTuple):
    """Where a server listens, and the key that it shares with those who may call it."""

    host: str
    port: int
    key: bytes

    def __repr__(self) -> str:
        # The key belongs in no log.
        return f"Address({self.host!r}, {self.port})"


class Channel:
    """One connection. A message is pickled, and its large arrays are sent and received without a copy.

    After `greet`, each pickle is signed with a key of this connection alone and numbered, so that nothing is unpickled
    that the other side has not sent, once and in this order.

    Args:
        sock: The connection.
        dumps: Pickles messages; `None` for plain pickling.
    """

    def __init__(self, sock: socket.socket, dumps: Dumps | None = None) -> None:
        self._socket, self._dumps = sock, dumps or pickle.dumps
        self._reader = cast(BufferedReader, sock.makefile("rb", _READ_BYTES))
        self._end = weakref.finalize(self, _end, sock, self._reader)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # So that a host that vanished is noticed, whether or not there is something to say.
        for name, value in (("IDLE", AWAY_SECS // 3), ("INTVL", AWAY_SECS // 6), ("CNT", 4)):
            if hasattr(socket, f"TCP_KEEP{name}"):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}"), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * AWAY_SECS)

    def portable(self, error: Exception) -> Exception:
        """Returns an exception that the other side can read."""
        try:
            pickle.loads(self._dumps(error, protocol=5))
        except Exception:
            return RuntimeError(f"{type(error).__name__}: {error}")
        return error

    def set_timeout(self, secs: float | None) -> None:
        """Limits how long each of the following calls may wait for the other side; `None` for no limit."""
        self._socket.settimeout(secs)

    def set_send_timeout(self, secs: int) -> None:
        """Limits how long `send` may wait for the other side, while another thread receives."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", secs, 0))

    def send(self, message: Any) -> None:
        """Sends a message; one that cannot be pickled sends nothing."""
        buffers: list[pickle.PickleBuffer] = []
        body = self._dumps(message, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        head = _COUNTS.pack(len(body), len(views)) + struct.pack(f"!{len(views)}Q", *(view.nbytes for view in views))
        self._socket.sendall(head + body + self._sending.sign(body))
        for view in views:
            self._socket.sendall(view)

    def receive(self) -> Callable[[], Any]:
        """Waits for a message, and returns a function that unpickles it; its arrays are read-only.

        Raises:
            EOFError: The other side has closed the connection.
            UnauthenticatedError: Somebody else has sent it.
        """
        size, count = _COUNTS.unpack(self._read(_COUNTS.size))
        sizes = struct.unpack(f"!{count}Q", self._read(8 * count))
        body = self._read(size)
        if not hmac.compare_digest(self._read(_PROOF_BYTES), self._receiving.sign(body)):
            raise errors.UnauthenticatedError(None, None, "A message on a connection is not from its other side.")
        buffers = [self._read_large(size) for size in sizes]
        return lambda: pickle.loads(body, buffers=buffers)

    def _read(self, size: int) -> bytes:
        data = self._reader.read(size)
        if data is None or len(data) < size:
            raise EOFError("The other side has closed the connection.")
        return data

    def _read_large(self, size: int) -> memoryview:
        view = np.empty(size, np.uint8).data
        got = 0
        while got < size:
            part = self._reader.readinto(view[got:])
            if not part:
                raise EOFError("The other side has closed the connection.")
            got += part
        return view.toreadonly()

    def close(self) -> None:
        """Ends the connection, also for a thread that waits at it."""
        self._end()

    # Who is there -----------------------------------------------------------------------------------------------

    def greet(self, key: bytes, *, calls: bool, timeout_secs: float = GREET_SECS) -> None:
        """Checks that the other side has the same key, and proves that this side has it.

        Args:
            key: The key.
            calls: Whether this side has opened the connection.
            timeout_secs: How long the other side may take.

        Raises:
            UnauthenticatedError: The other side has another key.
        """
        self.set_timeout(timeout_secs)
        mine = secrets.token_bytes(_PROOF_BYTES)
        self._socket.sendall(mine)
        theirs = self._read(_PROOF_BYTES)
        asked = mine + theirs if calls else theirs + mine

        def proof(of_caller: bool) -> bytes:
            return hmac.digest(key, (b"caller" if of_caller else b"server") + asked, "sha256")

        if calls:
            self._socket.sendall(proof(True))
        if not hmac.compare_digest(self._read(_PROOF_BYTES), proof(not calls)):
            raise errors.UnauthenticatedError(None, None, "The other side of a connection has another key.")
        if not calls:
            self._socket.sendall(proof(False))
        self._sending, self._receiving = (_Signer(key, asked, of_caller) for of_caller in (calls, not calls))
        self.set_timeout(None)


class _Signer:
    """Signs the messages of one side of a connection."""

    def __init__(self, key: bytes, asked: bytes, of_caller: bool) -> None:
        self._key = hmac.digest(key, (b"from caller" if of_caller else b"from server") + asked, "sha256")
        self._count = 0

    def sign(self, body: bytes) -> bytes:
        self._count += 1
        return hmac.digest(self._key, self._count.to_bytes(8, "big") + body, "sha256")


def _end(sock: socket.socket, reader: BufferedReader) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
    with contextlib.suppress(OSError):
        reader.close()


def connect(address: Address, timeout_secs: float, dumps: Dumps | None = None) -> Channel:
    """Opens a connection.

    Raises:
        OSError, EOFError: Nobody listens there, or not in time.
        UnauthenticatedError: Whoever listens there has another key.
    """
    channel = Channel(socket.create_connection((address.host, address.port), timeout_secs), dumps)
    try:
        channel.greet(address.key, calls=True, timeout_secs=timeout_secs)
    except BaseException:
        channel.close()
        raise
    return channel
