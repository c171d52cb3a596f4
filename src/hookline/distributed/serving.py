"""Where a parameter server hears calls of workers and messages of other servers: a thread for each connection."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from hookline import clock
from hookline.distributed.channel import KEY_BYTES, Address, Channel, Dumps
from hookline.errors import UnauthenticatedError

logger = logging.getLogger(__name__)

_RETRY_SECS = 0.1


class Listener:
    """Listens on one interface, and answers calls.

    A message is `(answers, call)`. The answer is `(True, value)` or `(False, exception)`; where none is asked for, only
    an exception is sent.

    Args:
        receive: Carries out a call. What it returns as a `Future` is answered when this has come.
        host: The address of the interface.
        dumps: Pickles answers; `None` for plain pickling.
    """

    def __init__(self, receive: Callable[[Any], Any], host: str, dumps: Dumps | None = None) -> None:
        self._receive, self._dumps, self._closed = receive, dumps, False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=1024)
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_bytes(KEY_BYTES))
        threading.Thread(target=self._accept, name="hookline-listen", daemon=True).start()

    def close(self) -> None:
        """Accepts no more connections."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                # For example too many open files, which may get better.
                logger.error("The server could not accept a connection: %r", error)
                clock.sleep(_RETRY_SECS)
                continue
            threading.Thread(target=self._serve, args=(sock,), name="hookline-serve", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        channel = Channel(sock, self._dumps)
        try:
            channel.greet(self.address.key, calls=False)
            while True:
                self._answer(channel, channel.receive())
        except UnauthenticatedError as error:
            logger.warning("A connection was refused: %s", error)
        except (OSError, EOFError):
            pass  # the caller has gone
        finally:
            channel.close()

    def _answer(self, channel: Channel, load: Callable[[], Any]) -> None:
        wanted = True
        try:
            wanted, call = load()
            value = self._receive(call)
            answer = True, value.result() if isinstance(value, Future) else value
        except Exception as error:
            answer = False, channel.portable(error)
        if wanted or not answer[0]:
            channel.send(answer)
