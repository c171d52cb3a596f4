"""Parameter servers without processes, whose calls a test may hold, lose or repeat."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from hookline import errors
from hookline.distributed import ParameterServer
from hookline.distributed.protocol import PeerClient, Reply


class _Done:
    """The result of a call that was carried out at once; its answer may come later."""

    def __init__(self, call: Callable[[], Any], timeout_secs: float) -> None:
        self._future, self._timeout_secs = Future[Any](), timeout_secs
        try:
            value = call()
            if isinstance(value, Future):
                self._future = value
            else:
                self._future.set_result(value)
        except Exception as error:
            self._future.set_exception(error)

    def done(self) -> bool:
        """Returns whether there is a result, or an error."""
        return self._future.done()

    def get(self) -> Any:
        try:
            return copy.deepcopy(self._future.result(self._timeout_secs))
        except TimeoutError:
            if self._future.done():
                raise
            raise errors.UnavailableError.from_message("A parameter server gave no answer in time.") from None


class DirectTransport:
    """Servers in this process. Calls happen at once; arguments and results are copied, as if they had been sent.

    Args:
        servers: The servers. To restart one, replace it in the list.
        eager: Whether to deliver messages between servers at once, or on `deliver_all`.
        timeout_secs: The time that an answer may take.

    Attributes:
        posted: Messages between servers that are under way.
    """

    def __init__(self, servers: Sequence[ParameterServer], *, eager: bool = True, timeout_secs: float = 60.0) -> None:
        self.servers = list(servers)
        self.eager, self.timeout_secs = eager, timeout_secs
        self.posted: deque[Callable[[], None]] = deque()

    @property
    def count(self) -> int:
        """The number of servers."""
        return len(self.servers)

    def call(self, server: int, method: str, *args: Any) -> Reply:
        """Carries out a call."""
        target = self.servers[server]
        done = _Done(lambda: target.dispatch((method, *copy.deepcopy(args))), self.timeout_secs)
        if self.eager:
            self.deliver_all()
        return done

    def peer_client(self) -> PeerClient | None:
        """Returns itself: it delivers the messages between servers."""
        return self

    def notify(self, server: int, method: str, *args: Any, on_failure: Callable[[BaseException], Any]) -> None:
        """Posts a message to a server."""
        args = copy.deepcopy(args)

        def deliver() -> None:
            try:
                self.servers[server].dispatch((method, *args))
            except Exception as error:
                on_failure(error)

        self.posted.append(deliver)

    def close(self) -> None:
        """Does nothing: there is no connection."""

    def deliver_all(self) -> None:
        """Delivers all messages between servers."""
        while self.posted:
            self.posted.popleft()()

    def __deepcopy__(self, memo: Any) -> DirectTransport:
        return self
