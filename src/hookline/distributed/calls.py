"""Calls over connections: of a server by workers, and of servers by each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from hookline import errors
from hookline.distributed.channel import AWAY_SECS, GREET_SECS, Address, Channel, Dumps, connect


class Caller:
    """Calls one server. Each call has a connection for itself until its answer is read; then another one takes it.

    Args:
        who: The server, for messages.
        find: Returns its address; asked again after a connection was lost.
        timeout_secs: How long a call may take before the server counts as away.
        dumps: Pickles calls; `None` for plain pickling.
    """

    def __init__(
        self,
        who: str,
        find: Callable[[], Address],
        timeout_secs: float,
        dumps: Dumps | None = None,
    ) -> None:
        self.who, self._find, self.timeout_secs, self._dumps = who, find, timeout_secs, dumps
        self._address: Address | None = None
        self._idle: list[Channel] = []

    def call(self, message: Any) -> Answer:
        """Starts a call.

        Raises:
            UnavailableError: The server cannot be reached.
        """
        channel = self._take()
        try:
            channel.send((True, message))
        except BaseException as error:
            channel.close()
            if isinstance(error, OSError):
                raise self.lost(error) from error
            raise
        return Answer(self, channel)

    def _take(self) -> Channel:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            if self._address is None:
                self._address = self._find()
            channel = connect(self._address, min(self.timeout_secs, GREET_SECS), self._dumps)
        except (OSError, EOFError, errors.UnauthenticatedError) as error:
            raise self.lost(error) from error
        channel.set_timeout(self.timeout_secs)
        return channel

    def give_back(self, channel: Channel) -> None:
        """Takes a connection whose answer was read."""
        self._idle.append(channel)

    def lost(self, error: BaseException) -> errors.UnavailableError:
        """Returns the error of a call whose connection is lost; the others count as lost with it."""
        self._address, idle, self._idle = None, self._idle, []
        for channel in idle:
            channel.close()
        reason = "gave no answer in time" if isinstance(error, TimeoutError) else "cannot be reached"
        return errors.UnavailableError(None, None, f"{self.who} {reason}: {error!r}")


class Answer:
    """The result of a call under way. One that nobody reads takes its connection with it."""

    def __init__(self, caller: Caller, channel: Channel) -> None:
        self._caller = caller
        self._channel: Channel | None = channel

    def get(self) -> Any:
        """Waits for the result and returns it, or raises the server's error."""
        channel, self._channel = self._channel, None
        assert channel is not None, "read once"
        try:
            load = channel.receive()
        except (OSError, EOFError, errors.UnauthenticatedError) as error:
            channel.close()
            raise self._caller.lost(error) from error
        except BaseException:
            channel.close()
            raise
        self._caller.give_back(channel)
        done, result = load()
        if not done:
            raise result
        return result

    def __del__(self) -> None:
        if self._channel is not None:
            self._channel.close()


class Links:
    """One server's connections to the others; opened when needed.

    If one is lost, or a message fails on the other side, `on_failure` is told.

    Args:
        addresses: Where all servers listen.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)
        self._channels: dict[int, Channel] = {}
        self._closed = False

    def __reduce__(self) -> Any:
        return Links, (self._addresses,)

    def tell(self, server: int, method: str, *args: Any, on_failure: Callable[[BaseException], None]) -> None:
        """Calls a method of a server without waiting."""
        try:
            if server not in self._channels:
                self._channels[server] = self._open(server, on_failure)
            self._channels[server].send((False, (method, *args)))
        except (OSError, EOFError, errors.UnauthenticatedError) as error:
            on_failure(_cut_off(server, error))

    def _open(self, server: int, on_failure: Callable[[BaseException], None]) -> Channel:
        channel = connect(self._addresses[server], GREET_SECS)
        channel.set_timeout(None)
        channel.set_send_timeout(AWAY_SECS)

        def listen() -> None:
            try:
                while True:
                    _, error = channel.receive()()
                    on_failure(error)
            except Exception as error:
                if not self._closed:
                    on_failure(_cut_off(server, error))

        threading.Thread(target=listen, name="hookline-link", daemon=True).start()
        return channel

    def close(self) -> None:
        """Ends the connections."""
        self._closed = True
        for channel in self._channels.values():
            channel.close()


def _cut_off(server: int, error: BaseException) -> errors.UnavailableError:
    return errors.UnavailableError(None, None, f"Parameter server {server} cannot be reached by another one: {error!r}")
