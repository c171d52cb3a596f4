"""A worker's view of the servers and their epoch, and the check that its graph matches the chief's."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookline import errors, log
from hookline.distributed.protocol import Epoch, Status, Ticket, Transport
from hookline.distributed.worker.server_assignment import assign_servers, unused_hints
from hookline.distributed.worker.updates import PortableUpdate, check_fingerprints, portable, variable_fingerprints
from hookline.graph.global_step import get_global_step
from hookline.graph.graph import Graph
from hookline.graph.registry import GraphKeys
from hookline.graph.variable import Update, Variable

logger = log.get_logger(__name__)


class Membership:
    """Tracks the servers, their epoch and their variables; on the chief, also begins epochs.

    Attributes:
        previous_step: The servers' global step just before this chief began its epoch.
    """

    def __init__(
        self,
        graph: Graph,
        transport: Transport,
        is_remote: Callable[[Variable], bool],
        is_chief: bool,
        placement: Mapping[str, int],
        *,
        max_staleness: int | None = None,
    ) -> None:
        self._graph, self._transport, self._is_remote = graph, transport, is_remote
        self._is_chief, self._placement, self._max_staleness = is_chief, placement, max_staleness
        self._epoch: Epoch | None = None
        self._owners: dict[str, int] = {}
        self._portable: dict[Update, PortableUpdate] = {}
        self._registered: set[str] = set()
        self.previous_step = 0

    # The servers' state -----------------------------------------------------------------------------------------

    def _statuses(self) -> list[Status]:
        calls = [self._transport.call(server, "status") for server in range(self._transport.count)]
        return [call.get() for call in calls]

    def initialized(self) -> frozenset[str]:
        """Returns the names of the variables that have values; none unless all servers are in the same epoch."""
        statuses = self._statuses()
        epoch = _common_epoch(statuses)
        if epoch is None:
            return frozenset()
        if self._epoch is None:
            if self._is_chief and statuses[0].ready_at is None and not self._matches_graph(epoch):
                # An earlier chief, with another script, never published the model, so these values are not in use.
                return frozenset()
            self._check_graph(epoch)
            self._epoch, self._owners = epoch, dict(epoch.owners)
            # The previous chief may have died before it sent its updates, so a chief sends those that it uses again.
            self._registered = set() if self._is_chief else set(epoch.updates)
        return frozenset().union(*(status.initialized for status in statuses))

    def step(self) -> int:
        """Returns the servers' global step."""
        return self._transport.call(0, "wait_for_step", self.ticket(0), 0, 0.0).get()[0]

    def ready_at(self) -> int | None:
        """Returns the global step at which training began in this epoch; `None` if the chief is still preparing it."""
        self._require_epoch()
        return self._statuses()[0].ready_at

    def ticket(self, server: int) -> Ticket:
        """Returns the ticket that identifies this worker's epoch in a call of a server."""
        return self._require_epoch().ticket(server)

    def owner(self, name: str) -> int:
        """Returns the server of a variable."""
        self._require_epoch()
        if name not in self._owners:
            raise errors.FailedPreconditionError.from_message(
                f"Variable {name!r} is not assigned to a server: the chief has to initialise it first."
            )
        return self._owners[name]

    def _require_epoch(self) -> Epoch:
        if self._epoch is None:
            self.initialized()
        if self._epoch is None:
            raise errors.FailedPreconditionError.from_message(
                "The parameter servers have no values yet, or are not all in the same epoch: the chief has to "
                "initialise or restore the variables (its MonitoredTrainingSession does, and those of workers wait).",
            )
        return self._epoch

    def _matches_graph(self, epoch: Epoch) -> bool:
        try:
            self._check_graph(epoch)
        except errors.FailedPreconditionError:
            return False
        return True

    def _check_graph(self, epoch: Epoch) -> None:
        """Raises `FailedPreconditionError` if this worker's graph or bound differs from the chief's."""
        check_fingerprints(epoch.variables, variable_fingerprints(self._remote_variables()), "variable")
        # Only the chief needs the initial values; their functions need not even run elsewhere.
        own = {u.name: self.portable(u).fingerprint for u in self._remote_updates() if not u.is_initializer}
        check_fingerprints(epoch.updates, own, "update")
        if epoch.max_staleness != self._max_staleness:
            raise errors.FailedPreconditionError.from_message(
                f"This worker's max_staleness is {self._max_staleness}, and the chief's is {epoch.max_staleness}: set "
                f"the same value in all processes.",
            )

    # The chief --------------------------------------------------------------------------------------------------

    def check_is_chief(self) -> None:
        """Raises `FailedPreconditionError` on a worker."""
        if not self._is_chief:
            raise errors.FailedPreconditionError.from_message(
                "Only the chief, worker 0, initialises, restores and ends a training on parameter servers.",
            )

    def ensure_epoch(self) -> None:
        """Begins an epoch, on the chief, if the servers are not all in the same one."""
        if self._is_chief and self._epoch is None:
            self.initialized()
            if self._epoch is None:
                self.begin()

    def begin(self) -> None:
        """Begins a new epoch on all servers, with this graph's updates; they discard their values.

        Raises:
            FailedPreconditionError: This worker is not the chief.
        """
        self.check_is_chief()
        statuses = self._statuses()
        self.previous_step = max(status.step for status in statuses)
        variables, updates = self._remote_variables(), self._remote_updates()
        global_step = get_global_step(self._graph)
        count = self._transport.count
        owners = assign_servers(variables, updates, count, global_step=global_step, hints=self._placement)
        for prefix in unused_hints(self._placement, variables):
            logger.warning("The hint placement[%r] has no effect: no shared variable has this name or prefix.", prefix)
        ready = {update.name: self.portable(update) for update in updates}
        epoch = Epoch(
            name=uuid.uuid4().hex,
            incarnations=tuple(status.incarnation for status in statuses),
            step_name=global_step.op.name if global_step is not None and self._is_remote(global_step) else None,
            updates={name: update.fingerprint for name, update in ready.items()},
            variables=variable_fingerprints(variables),
            owners=owners,
            max_staleness=self._max_staleness,
        )
        logger.info("Beginning an epoch of %d variables on %d parameter servers.", len(variables), count)
        peers = self._transport.peer_client()
        # The step server first, so that it refuses all transactions of the previous epoch that are still on their way.
        for server in range(count):
            self._transport.call(server, "begin", epoch, server, peers).get()
        self._epoch, self._owners = epoch, owners
        self._send(list(ready.values()), owners)
        self._registered = set(ready)

    def _send(self, updates: Sequence[PortableUpdate], owners: Mapping[str, int], *grown: Mapping[str, Any]) -> None:
        parts: dict[int, list[PortableUpdate]] = {}
        for update in updates:
            parts.setdefault(owners[update.variables[0]], []).append(update)
        try:
            calls = [
                self._transport.call(server, "register", self.ticket(server), parts.get(server, ()), *grown)
                for server in range(self._transport.count)
            ]
        except (TypeError, AttributeError) as error:
            self._raise_unpicklable(parts, error)
            raise
        for call in calls:
            call.get()

    def _raise_unpicklable(self, parts: Mapping[int, Sequence[PortableUpdate]], error: Exception) -> None:
        """Raises an error that names the first update that cannot be pickled."""
        for server, updates in parts.items():
            for update in updates:
                try:
                    self._transport.call(server, "register", self.ticket(server), [update])
                except (TypeError, AttributeError) as own:
                    # Ray's own message is a page long, but does not name the update.
                    raise TypeError(
                        f"Update {update.name!r} cannot be sent to its server: its function refers to an object that "
                        f"cannot be pickled ({own.__cause__ or type(own).__name__}). It may refer to plain values and "
                        f"functions, not to the graph, its tensors, or objects that hold them."
                    ) from error

    # Updates ----------------------------------------------------------------------------------------------------

    def register(self, updates: Sequence[Update]) -> None:
        """Sends updates to their servers, unless these have them already; checks them against the chief's."""
        epoch = self._require_epoch()
        ready = [self.portable(update) for update in updates if update.name not in self._registered]
        if not ready:
            return
        if not self._is_chief:
            check_fingerprints(epoch.updates, {update.name: update.fingerprint for update in ready}, "update")
        # On the chief, the graph has grown since the epoch began.
        variables = self._remote_variables()
        new = [variable for variable in variables if variable.op.name not in self._owners]
        owners = assign_servers(
            variables, self._remote_updates(), self._transport.count, placed=self._owners, hints=self._placement
        )
        self._send(ready, owners, variable_fingerprints(new), {v.op.name: owners[v.op.name] for v in new})
        # Only now that all servers have answered: after a failure, the next call sends the variables again.
        self._owners = owners
        self._registered.update(update.name for update in ready)

    def portable(self, update: Update) -> PortableUpdate:
        """Returns the portable form of an update, from a cache."""
        if update not in self._portable:
            self._portable[update] = portable(update)
        return self._portable[update]

    def _remote_variables(self) -> list[Variable]:
        return list(filter(self._is_remote, self._graph.get_collection(GraphKeys.GLOBAL_VARIABLES)))

    def _remote_updates(self) -> list[Update]:
        updates = [operation for operation in self._graph.get_operations() if isinstance(operation, Update)]
        return [update for update in updates if all(map(self._is_remote, update.variables))]


def _common_epoch(statuses: Sequence[Status]) -> Epoch | None:
    """Returns the epoch of the servers, if it is the same for all, and none was restarted since it began; else None."""
    epoch = statuses[0].epoch
    if epoch is None or epoch.incarnations != tuple(status.incarnation for status in statuses):
        return None
    return epoch if all(status.epoch is not None and status.epoch.name == epoch.name for status in statuses) else None
