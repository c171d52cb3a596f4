"""Calls over connections: of a server by workers, and of servers by each other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from hookline import errors
from hookline.distributed.lines import GREET_SECS, LOST, Address, Line, connect
from hookline.distributed.plain import NotPlainError, pack


class Caller:
    """Calls one server. Each call has its own connection until its answer is read; then another call takes it.

    Args:
        who: The server, for messages.
        address: The address at which the server listens.
        find: Returns the address again, after a connection was lost.
        timeout_secs: The time that a call may take before the server counts as away.
    """

    def __init__(self, who: str, address: Address, find: Callable[[], Address], timeout_secs: float) -> None:
        self.who, self._find, self.timeout_secs = who, find, timeout_secs
        self._address: Address | None = address
        self._idle: list[Line] = []
        self._closed = False

    def call(self, message: Any) -> Answer:
        """Starts a call.

        Raises:
            NotPlainError: The message cannot be sent this way.
            UnavailableError: The server cannot be reached.
        """
        packed = pack((True, message))
        line = self._take()
        try:
            line.send(*packed)
        except BaseException as error:  # The connection is given up: part of a message may be in it.
            line.close()
            if isinstance(error, OSError):
                raise self.lost(error) from error
            raise
        return Answer(self, line)

    def _take(self) -> Line:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        # Another thread may lose its connection, and the address with it, at any moment.
        address = self._address
        if address is None:
            address = self._address = self._find()
        try:
            line = connect(address, min(self.timeout_secs, GREET_SECS))
        except LOST as error:
            self.lost(error)
            raise _no_way(self.who, address, error) from error
        line.limit(self.timeout_secs, self.timeout_secs)
        return line

    def give_back(self, line: Line) -> None:
        """Takes back a connection whose answer was read."""
        self._idle.append(line)
        # The thread that closes may have looked before.
        if self._closed:
            self._end_idle()

    def close(self) -> None:
        """Closes the connections, those of calls under way once their answers are read. Later calls open their own."""
        self._closed = True
        self._end_idle()

    def _end_idle(self) -> None:
        idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def lost(self, error: BaseException) -> errors.UnavailableError:
        """Returns the error of a call whose connection is lost; the other connections count as lost with it."""
        self._address = None
        self._end_idle()
        late = isinstance(error, TimeoutError | BlockingIOError)
        return errors.UnavailableError.from_message(
            f"{self.who} {'gave no answer in time' if late else 'cannot be reached'}: {error!r}"
        )


class Answer:
    """The result of a call under way. An answer that is never read takes its connection with it."""

    def __init__(self, caller: Caller, line: Line) -> None:
        self._caller = caller
        self._line: Line | None = line

    def get(self) -> Any:
        """Waits for the result and returns it, or raises the server's error.

        Raises:
            NotPlainError: The answer cannot be read.
            UnavailableError: No answer has come.
        """
        line, self._line = self._line, None
        assert line is not None, "read once"
        try:
            done, result = line.receive()
        except BaseException as error:  # The connection is given up: part of an answer may be in it.
            line.close()
            if isinstance(error, LOST):
                raise self._caller.lost(error) from error
            if isinstance(error, Exception):
                raise NotPlainError(f"{self._caller.who} gave an answer that cannot be read: {error}") from error
            raise
        self._caller.give_back(line)
        if not done:
            raise result
        return result


class Links:
    """One server's connections to the others; opened when needed.

    If a connection is lost, or a message fails on the other side, `on_failure` is called.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)
        self._lines: dict[int, Line] = {}
        self._closed = False

    def __reduce__(self) -> Any:
        return Links, (self._addresses,)

    def tell(self, server: int, method: str, *args: Any, on_failure: Callable[[BaseException], None]) -> None:
        """Calls a method of a server without waiting."""
        try:
            if server not in self._lines:
                self._lines[server] = self._open(server, on_failure)
        except LOST as error:
            on_failure(_no_way(f"Parameter server {server}", self._addresses[server], error, "by another one "))
            return
        try:
            self._lines[server].send(*pack((False, (method, *args))))
        except LOST as error:
            on_failure(_cut_off(server, error))

    def _open(self, server: int, on_failure: Callable[[BaseException], None]) -> Line:
        line = connect(self._addresses[server], GREET_SECS)

        def listen() -> None:
            try:
                while True:
                    _, error = line.receive()
                    on_failure(error)
            except Exception as error:
                if not self._closed:
                    on_failure(_cut_off(server, error))

        threading.Thread(target=listen, name="hookline-link", daemon=True).start()
        return line

    def close(self) -> None:
        """Ends the connections."""
        self._closed = True
        for line in self._lines.values():
            line.close()


def _cut_off(server: int, error: BaseException) -> errors.UnavailableError:
    return errors.UnavailableError.from_message(
        f"Parameter server {server} cannot be reached by another one: {error!r}"
    )


def _no_way(who: str, address: Address, error: BaseException, by: str = "") -> errors.UnavailableError:
    return errors.UnavailableError.from_message(
        f"{who} cannot be reached {by}at {address.host}:{address.port} (tried for up to {GREET_SECS:g} s): {error!r}. "
        f"If it runs, and the network lets only Ray's ports through, set ClusterOptions(over_ray=True) on the chief "
        f"and start the job again.",
    )
