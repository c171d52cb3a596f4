"""The variable store of a session whose variables are on parameter servers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from hookline import clock, errors, log
from hookline.distributed.protocol import Committed, Transport, encode_leaves, flatten
from hookline.distributed.server.server_state import Apply, Put
from hookline.distributed.staleness_bound import AdmissionClient
from hookline.distributed.worker.membership import Membership
from hookline.distributed.worker.pulls import Pulls
from hookline.distributed.worker.transactions import Transactions
from hookline.graph.global_step import get_global_step
from hookline.graph.graph import Graph
from hookline.graph.nodes import spec as specs
from hookline.graph.registry import GraphKeys
from hookline.graph.variable import Update, Variable, check_value
from hookline.session.local_store import LocalStore
from hookline.session.store import Leaves, VariableStore

logger = log.get_logger(__name__)

_POLL_SECS = 1.0


class RemoteStore(VariableStore):
    """Stores global variables on parameter servers, and all others in this process.

    It belongs to one epoch of the servers. Calls after a restore, or to a restarted server, raise an `AbortedError`,
    and a new session must be created. No transaction is ever sent twice.

    Args:
        graph: The graph of the variables.
        transport: Calls the servers.
        worker_index: The index of this worker; 0 is the chief, and only the chief initialises and restores.
        placement: Hints, as in `assign_servers`.
        max_staleness: The number of other workers' updates that an update may miss, the same for all workers. A run
            waits before it begins until this is certain. `None` for no bound.
        overlap: Whether to pull the next run's values while this one computes. They then lack this worker's last
            update.
        deliver_secs: The timeout of messages between servers.

    Example:
        >>> import hookline as hl, types
        >>> weight = hl.Variable(1.0, name="weight")
        >>> count = hl.Variable(0, name="count", collections=[hl.GraphKeys.LOCAL_VARIABLES])
        >>> store = RemoteStore(hl.get_default_graph(), types.SimpleNamespace(count=2))  # It calls no server.
        >>> store.is_remote(weight), store.is_remote(count)
        (True, False)
    """

    step_changes = 0  # Not counted, because other processes write the step, too.

    def __init__(
        self,
        graph: Graph,
        transport: Transport,
        *,
        worker_index: int = 0,
        placement: Mapping[str, int] | None = None,
        max_staleness: int | None = None,
        overlap: bool = False,
        deliver_secs: float = 60.0,
    ) -> None:
        self._graph = graph
        self._transport = transport
        self._remote: set[Variable] = set()
        self._seen = 0
        self.worker_index = worker_index
        self._global_step = get_global_step(graph)
        self._local = LocalStore(graph)
        self._max_staleness, self._deliver_secs = max_staleness, deliver_secs
        self._members = Membership(
            graph, transport, self.is_remote, worker_index == 0, placement or {}, max_staleness=max_staleness
        )
        self._pulls = Pulls(transport, self._members, overlap=overlap, deliver_secs=deliver_secs)
        self._transactions = Transactions(transport, self._members, self._pulls, worker_index)
        self._step: int | None = None
        self._published = False
        self._run_lock = threading.Lock()
        self._admission_client: AdmissionClient | None = None
        self._admission: tuple[AdmissionClient | None, tuple[int, int, Sequence[int]]] = (None, (0, 0, ()))
        self._closed = threading.Event()

    @property
    def local(self) -> LocalStore:
        """The store of this worker's own variables."""
        return self._local

    def is_remote(self, variable: Variable) -> bool:
        """Returns whether a variable is on a server: all global ones are, except `per_worker` variables."""
        variables = self._graph.get_collection_ref(GraphKeys.GLOBAL_VARIABLES)
        if len(variables) != self._seen:
            self._seen = len(variables)
            self._remote = {item for item in variables if not getattr(item, "per_worker", False)}
        return variable in self._remote

    # Values -----------------------------------------------------------------------------------------------------

    def read_leaves(self, variables: Iterable[Variable]) -> tuple[Leaves, ...]:
        """Returns current values, flattened: pulled from their servers, or received with the last update."""
        variables = list(variables)
        remote, local = self._split(variables)
        taken = dict(zip(local, self._local.read_leaves(local), strict=True))
        pulled = self._pulls.take([variable.op.name for variable in remote]) if remote else {}
        return tuple(taken[v] if v in taken else pulled[v.op.name] for v in variables)

    def _split(self, variables: Sequence[Variable]) -> tuple[list[Variable], list[Variable]]:
        """Splits variables into those on servers and the others."""
        remote = [variable for variable in variables if self.is_remote(variable)]
        return remote, [variable for variable in variables if variable not in self._remote]

    def structure(self, variable: Variable) -> Any:
        """Returns the tree structure of a variable that has a value."""
        if not self.is_remote(variable):
            return self._local.structure(variable)
        if variable.spec is not specs.UNKNOWN:
            return jax.tree.structure(variable.spec)
        return self._pulls.structure(variable.op.name)

    def read_counter(self, variable: Variable) -> int:
        """Returns the value of an integer scalar; for the global step, the last known value."""
        if not self.is_remote(variable):
            return self._local.read_counter(variable)
        if variable is self._global_step:
            return self.step()
        return int(self.read_leaves([variable])[0][0])

    def uninitialized(self, variables: Iterable[Variable]) -> list[str]:
        """Returns the names of variables without a value."""
        variables = list(variables)
        remote, local = self._split(variables)
        held = self._members.initialized() if remote else frozenset()
        missing = {*self._local.uninitialized(local), *(v.op.name for v in remote if v.op.name not in held)}
        return [variable.op.name for variable in variables if variable.op.name in missing]

    # The global step --------------------------------------------------------------------------------------------

    def _shares_step(self) -> bool:
        return self._global_step is not None and self.is_remote(self._global_step)

    def step(self) -> int:
        """Returns the last known global step."""
        if not self._shares_step():
            return self._local.step()
        if self._step is None:
            self._step = self._members.step()
        return self._step

    def known_step(self) -> int | None:
        """Returns the last known global step, or `None` if this worker has not read it yet."""
        if not self._shares_step():
            return self._local.known_step()
        return self._step

    def wait_for_step(self, step: int, timeout_secs: float | None) -> int:
        """Waits until the global step is at least `step` or the time is over, and returns it.

        Raises:
            OutOfRangeError: The training has ended below `step`.
        """
        if not self._shares_step():
            return self._local.wait_for_step(step, timeout_secs)
        ticket, now = self._members.ticket(0), 0
        for secs in self._poll_timeouts(math.inf if timeout_secs is None else timeout_secs):
            now, has_ended = self._transport.call(0, "wait_for_step", ticket, step, secs).get()
            self._step = now
            if now >= step:
                break
            if has_ended and secs > 0:
                raise errors.OutOfRangeError.from_message(
                    f"The training has ended at global step {now}; step {step} will not be reached."
                )
        return now

    def _poll_timeouts(self, timeout_secs: float) -> Iterator[float]:
        """Yields the timeout of each of several calls, until the time is over or the session is closed."""
        deadline = clock.monotonic() + timeout_secs
        while True:
            left = max(deadline - clock.monotonic(), 0.0)
            yield min(left, _POLL_SECS)
            if left <= _POLL_SECS or self._closed.is_set():
                return

    # Changes ----------------------------------------------------------------------------------------------------

    @contextmanager
    def admit_run(self, updates: Sequence[Update], *, nested: bool = False) -> Iterator[None]:
        """Waits until a run with these updates may begin, if staleness is bounded; the body of the context is the run.

        Raises:
            OutOfRangeError: The training has ended.
            CancelledError: The session was closed in the meantime.
            Preempted: The process has got a signal to end.
            AbortedError, UnavailableError: The step server was lost, or does not answer.
            UnimplementedError: Staleness is bounded, and the run is nested in another one.
        """
        if not self._is_bounded(updates):
            yield
            return
        if nested:
            raise errors.UnimplementedError.from_message(
                "With max_staleness, a host operation that reads a counter or the session cannot itself run updates of "
                "shared variables: all workers would wait for it. Run the updates in a run of their own.",
            )
        # The bound on staleness counts all threads as one worker, so they take turns.
        with self._run_lock:
            if self._admission_client is None:
                self._admission_client = AdmissionClient(
                    self._transport, self._members.ticket(0), self._transactions.sender
                )
            client = self._admission_client
            if self._closed.is_set():
                client.close()
            try:
                # `enter` ends the previous run, so its update must be decided before.
                self._transactions.resolve_outcome()
                self._admission = client, client.enter(self._pulls.since)
                yield
            except BaseException:  # Other workers need not wait for this run's update.
                client.leave(undecided=not self._transactions.is_outcome_known)
                raise

    def _is_bounded(self, updates: Sequence[Update]) -> bool:
        return self._max_staleness is not None and not all(update.is_initializer for update in updates)

    def begin_run(self, updates: Sequence[Update]) -> None:
        """Starts a run, with the values prefetched for it."""
        self._pulls.begin_run()
        if self._is_bounded(updates):
            client, admission = self._admission
            if client is not self._admission_client:
                raise errors.AbortedError.from_message("All variables were set again just before this run began.")
            self._pulls.enter(*admission)

    def submit(self, updates: Sequence[tuple[Update, Sequence[Any]]], last_step: int | None = None) -> bool:
        """Applies updates on the servers of their variables, either all or none.

        Args:
            updates: The updates in order, each with the values of its inputs; `None` for an input that the server reads
                itself, after the earlier updates.
            last_step: Nothing is applied if the global step is this or more.

        Returns:
            Whether they were applied.

        Raises:
            OutOfRangeError: The training has ended.
            AbortedError: A server was lost, and the values with it.
            UnavailableError: A server does not answer. The message notes if the update may have been applied. A retry
                of the run under the same `RETRY` does not apply it twice.
            FailedPreconditionError: The servers have no values yet, or the chief's graph differs from this worker's.
        """
        initial = all(update.is_initializer for update, _ in updates)
        if initial:
            # A worker that ran an initializer would reset the variables that all others train.
            self._members.check_is_chief()
            self._members.ensure_epoch()
        self._members.register([update for update, _ in updates])
        entries = [
            (update.variables[0].op.name, Apply(update.name, [_encode_input(value) for value in values]))
            for update, values in updates
        ]
        if initial:
            outcome = self._transactions.set(entries)
        else:
            counts = any(self._global_step in update.variables for update, _ in updates)
            outcome = self._transactions.update(entries, last_step, counts=counts)
            if outcome.is_repeat and self._admission_client is not None:
                self._admission_client.leave()
        # The last known step may be later than that of an update which was not sent again.
        self._step = max(outcome.step, self._step or 0) if outcome.is_repeat else outcome.step
        return outcome.accepted

    def load(self, values: Mapping[Variable, Any], *, owned: bool = False) -> None:
        """Sets variables to concrete values.

        To set all variables on the servers begins a new epoch: other workers lose their sessions, and new ones see the
        new values. An ordinary transaction sets fewer variables.
        """
        for variable, value in values.items():
            if variable.spec is not specs.UNKNOWN:
                check_value(variable.op.name, variable.spec, value)
        remote, local = self._split([*values])
        self._local.load({variable: values[variable] for variable in local}, owned=owned)
        if not remote:
            return
        is_remote = self._remote.issubset(remote)
        if is_remote:
            self._begin()
        else:
            self._members.ensure_epoch()
        puts = [(v.op.name, Put(v.op.name, *flatten(_cast_to_spec(v, values[v])))) for v in remote]
        self._step = self._transactions.set(puts).step
        if is_remote:
            self._log_lost_steps()
        if is_remote and self._published:
            # The epoch that admitted workers is over, and only this session can admit them again.
            self.publish()

    def _begin(self) -> None:
        """Begins a new epoch, and discards all state of the previous one."""
        self._members.begin()
        self._step = None
        self._pulls.begin_epoch()
        if self._admission_client is not None:
            self._admission_client.close()
            self._admission_client = None

    # Snapshots --------------------------------------------------------------------------------------------------

    def values(self, variables: Iterable[Variable]) -> dict[str, Any]:
        """Returns the values by name, all after the same transactions; local values are not copied."""
        return self._consistent_values(variables, self._local.values)

    def snapshot(self, variables: Iterable[Variable]) -> dict[str, Any]:
        """Returns a copy of the values by name, all after the same transactions."""
        return self._consistent_values(variables, self._local.snapshot)

    def _consistent_values(
        self, variables: Iterable[Variable], take_local: Callable[[Iterable[Variable]], dict[str, Any]]
    ) -> dict[str, Any]:
        variables = list(variables)
        remote, local = self._split(variables)
        result = take_local(local) if local else {}
        if remote:
            self._step, values = self._pulls.snapshot([variable.op.name for variable in remote])
            for variable in remote:
                leaves = [jnp.array(leaf) for leaf in values[variable.op.name]]
                result[variable.op.name] = jax.tree.unflatten(self.structure(variable), leaves)
        return {variable.op.name: result[variable.op.name] for variable in variables}

    def wait_until_ready(self, timeout_secs: float) -> bool:
        """Waits until the chief has published the model or the time is over; returns whether it has."""
        return any(
            self._transport.call(0, "wait_until_ready", secs).get() for secs in self._poll_timeouts(timeout_secs)
        )

    def publish(self) -> None:
        """Publishes the model: from now on workers may train it, even if an earlier training has ended."""
        self._members.check_is_chief()
        self._members.ensure_epoch()
        self._transport.call(0, "publish", self._members.ticket(0)).get()
        self._published = True
        self._log_lost_steps()

    def _log_lost_steps(self) -> None:
        """Logs, once per epoch, the number of steps that were lost."""
        before, self._members.previous_step = self._members.previous_step, 0
        if before and self._shares_step():
            now = self._members.step()
            if now < before:
                logger.error(
                    "The variables return from global step %d to %d: %d steps are lost.", before, now, before - now
                )

    def end_training(self) -> None:
        """Ends the training: refuses further updates, and returns when all accepted ones are applied."""
        self._members.check_is_chief()
        try:
            reply: Committed = self._call_with_retry("end_training", self._members.ticket(0))
            self._step = reply.step
            self._pulls.wait_until_delivered(reply.sent_seqs)
        except (errors.AbortedError, errors.UnavailableError) as error:
            raise type(error)(
                None,
                None,
                f"{error} This was at the end of the training, before the final checkpoint: start the job again, and "
                f"it resumes from the newest checkpoint.",
            ) from error

    def _call_with_retry(self, method: str, *args: Any) -> Any:
        """Calls an idempotent method of the step server; retries for `deliver_secs` if there is no answer."""
        deadline = clock.monotonic() + self._deliver_secs
        while True:
            try:
                return self._transport.call(0, method, *args).get()
            except errors.UnavailableError as error:
                if clock.monotonic() >= deadline:
                    raise
                logger.warning("Calling the step server again (%s): %s", method, error)
                clock.sleep(_POLL_SECS)

    def staleness(self) -> tuple[int, float, int]:
        """Returns the number of this worker's updates since the last call, and their mean and maximum staleness."""
        return self._pulls.staleness()

    def close(self) -> None:
        """Ends waits and connections, and discards prefetched values. The servers keep their values."""
        self._closed.set()
        self._pulls.clear()
        if self._admission_client is not None:
            self._admission_client.close()
            self._transactions.give_up()
        self._transport.close()


def _encode_input(value: Any) -> Any:
    if value is None:
        return None
    leaves, treedef = jax.tree.flatten(value)
    if jax.tree_util.treedef_is_leaf(treedef) and len(leaves) == 1:
        return encode_leaves(leaves), None
    return flatten(value)


def _cast_to_spec(variable: Variable, value: Any) -> Any:
    """Returns a value with the variable's dtypes."""
    if variable.spec is specs.UNKNOWN:
        return value

    def cast(leaf: Any, wanted: Any) -> Any:
        return leaf if getattr(leaf, "dtype", None) == wanted.dtype else jnp.asarray(leaf, wanted.dtype)

    return jax.tree.map(cast, value, variable.spec)
