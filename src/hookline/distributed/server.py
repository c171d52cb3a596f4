"""A parameter server: it owns variables, and the first of several decides the order of all transactions."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from hookline import errors
from hookline.distributed.ballots import UNDECIDED_SECS
from hookline.distributed.decider import Decider
from hookline.distributed.protocol import METHODS, WAITING, Committed, Epoch, Peers, Status, Ticket
from hookline.distributed.updates import PortableUpdate


class ParameterServer(Decider):
    """Owns variables. It is a plain class: a Ray actor serves it, and tests call it directly.

    Server 0 holds the global step and decides the order. It accepts, refuses and numbers transactions, and sends the
    others numbered messages, in that order. Values are valid only within one epoch and one instance; a call for another
    one is an `AbortedError`. A call may return a `Future`: then its answer comes when the transaction is decided.

    Example:
        >>> server = ParameterServer()
        >>> server.status().epoch is None
        True
    """

    def receive(self, message: tuple[Any, ...]) -> Any:
        """Calls the method whose name comes first in a message, with the rest of it. From any thread.

        Raises:
            UnimplementedError: It is none of those that others may call.
        """
        method, *args = message
        if method not in METHODS:
            raise errors.UnimplementedError(None, None, f"A parameter server has no method {method!r} for others.")
        if method in WAITING:
            return getattr(self, method)(*args)
        with self._turn:
            return getattr(self, method)(*args)

    def answer(self, message: tuple[Any, ...]) -> Any:
        """Carries out a call, and waits for what it returns.

        Raises:
            UnavailableError: The transaction was not decided for long; what became of it is not known.
        """
        value = self.receive(message)
        if not isinstance(value, Future):
            return value
        try:
            return value.result(UNDECIDED_SECS)
        except TimeoutError:
            if value.done():
                return value.result()
            raise errors.UnavailableError(
                None, None, f"Parameter server {self._index} has heard of no decision for {UNDECIDED_SECS:g} s."
            ) from None

    # Epochs -----------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Returns the server's description of itself."""
        epoch = None if self._broken else self._epoch
        return Status(self._incarnation, epoch, self._state.names(), self._state.step, self._ready_at)

    def begin(self, epoch: Epoch, index: int, peers: Peers | None) -> None:
        """Forgets everything and starts an epoch, as its server number `index`.

        Raises:
            AbortedError: The epoch was made for another instance.
        """
        if epoch.incarnations[index] != self._incarnation:
            raise self._lost("was restarted while the variables were initialised")
        self._begin(epoch, index, peers)
        self._waiting.notify()

    def register(
        self,
        ticket: Ticket,
        updates: Sequence[PortableUpdate],
        variables: Mapping[str, str] = types.MappingProxyType({}),
        owners: Mapping[str, int] = types.MappingProxyType({}),
    ) -> None:
        """Registers updates, which transactions then name, and new variables of the chief's graph."""
        self._check(ticket)
        self._state.register(updates)
        assert self._epoch is not None
        known = {update.name: update.fingerprint for update in updates}
        self._epoch = self._epoch._replace(
            updates={**self._epoch.updates, **known},
            variables={**self._epoch.variables, **variables},
            owners={**self._epoch.owners, **owners},
        )

    def publish(self, ticket: Ticket) -> None:
        """Admits workers: the model can be trained from here on, even if an earlier training has ended."""
        self._check(ticket)
        if self._ready_at is None:
            self._ready_at = self._state.step
        self._sealed = False
        self._waiting.notify()

    def seal(self, ticket: Ticket) -> Committed:
        """Ends the training: further transactions are refused. Returns the current state for `wait_delivered`."""
        self._check(ticket)
        self._sealed = True
        self._waiting.notify()
        return self._committed(True, {})

    # Waiting ----------------------------------------------------------------------------------------------------

    def wait_until_ready(self, timeout_secs: float) -> bool:
        """Blocks until the chief admits workers or the time is over; returns whether it has. Open to any process."""
        self._waiting.until(lambda: self._ready_at is not None, timeout_secs)
        return self._ready_at is not None

    def admit(
        self, ticket: Ticket, sender: str, run: int, since: int, timeout_secs: float
    ) -> tuple[int, int, tuple[int, ...]] | None:
        """Blocks until a worker may begin a step without any values getting too old, or the time is over.

        Returns:
            The result of `Gate.admit`, which explains the arguments, and the number of messages sent to each server by
            then; `None` if the time is over.

        Raises:
            OutOfRangeError: The training has ended.
        """
        # The gate of the ticket's epoch; otherwise the ticket is refused.
        gate = self._gate
        found: list[tuple[int, int]] = []

        def may_begin() -> bool:
            if gate is not None and not self._sealed and (admitted := gate.admit(sender, since, run)) is not None:
                found.append(admitted)
            return bool(found) or self._sealed

        with self._waited(ticket, may_begin, timeout_secs):
            if self._sealed:
                raise self._ended()
            return (*found[0], tuple(self._sending.marks)) if found else None

    def renew(self, ticket: Ticket, sender: str) -> None:
        """Records that an admitted worker is alive, also while an update is compiled."""
        gate = self._gate
        self._check(ticket)
        if gate is not None:
            gate.renew(sender)

    def leave(self, ticket: Ticket, sender: str, run: int) -> None:
        """Records that a run of a worker, admitted or still waiting for it, ends without an update."""
        self._check(ticket)
        if self._gate is not None:
            self._gate.leave(sender, run)
            self._waiting.notify()

    def wait_for_step(self, ticket: Ticket, step: int, timeout_secs: float) -> tuple[int, bool]:
        """Blocks until the global step is at least `step`, the training has ended or the time is over.

        Returns:
            The global step, and whether the training has ended.
        """
        with self._waited(ticket, lambda: self._state.step >= step or self._sealed, timeout_secs):
            return self._state.step, self._sealed
