"""JAX's coordination service: the key-value store and numbers of SPMD processes, and how one of them ends."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import signal
from typing import Any, NoReturn

import jax

from hookline import clock, jax_internals
from hookline.signals import preemption
from hookline.signals import signal_listener as listener

_PREFIX = "hookline/"
_LAST = f"{_PREFIX}last/"
# After its own failure a process waits longer, because the others mostly fail, too; after the loss of another one,
# less, because that one may never answer.
_AFTER_FAILURE_SECS, _AFTER_LOSS_SECS = 2.0, 0.5
# The time that a process takes to end after its last message.
_TO_END_SECS = 0.2
_heartbeat_secs: int | None = None
_bind_address: str | None = None
_status: int | None = None

# Words in errors of Gloo and the coordination service after the loss of a process.
_LOST = ("Gloo", "Socket closed", "Connection reset by peer", "Connection closed by peer", "heartbeat")


def _client() -> Any:
    return jax_internals.distributed_state().client


class JaxKeyValueStore:
    """The key-value store of the processes that `jax.distributed.initialize` has connected."""

    def set(self, key: str, value: str) -> bool:
        """See `KeyValueStore`."""
        try:
            _client().key_value_set(_PREFIX + key, value)
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    def get(self, key: str, timeout_secs: float) -> str | None:
        """See `KeyValueStore`."""
        try:
            return _client().blocking_key_value_get(_PREFIX + key, max(1, int(timeout_secs * 1000)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise

    def delete(self, prefix: str) -> None:
        """See `KeyValueStore`."""
        _client().key_value_delete(_PREFIX + prefix)


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
    """The number of a process in its SPMD job, the size of the job, and its address.

    Attributes:
        index: The number of the process.
        count: The number of processes.
        address: The address at which process 0 listens; None if it is not known yet.
    """

    index: int
    count: int
    address: str | None


def process_info() -> ProcessInfo:
    """Returns the number of this process and its job; unlike `jax.process_index` it starts no backend."""
    state = jax_internals.distributed_state()
    return ProcessInfo(state.process_id, state.num_processes, state.coordinator_address)


def record_start(heartbeat_secs: int, bind_address: str | None) -> None:
    """Records the heartbeat timeout and the address at which process 0 listens; JAX does not expose them."""
    global _heartbeat_secs, _bind_address
    _heartbeat_secs, _bind_address = heartbeat_secs, bind_address


def is_loopback(address: str | None) -> bool:
    """Returns whether an address, as `host:port`, is unreachable from other machines."""
    host = (address or "").rpartition(":")[0]
    return host in ("localhost", "[::1]") or host.startswith("127.")


def listens_on_loopback() -> bool:
    """Returns whether the service is known to listen on loopback only; by default it listens on all interfaces."""
    return is_loopback(_bind_address or os.environ.get("JAX_COORDINATOR_BIND_ADDRESS"))


def describe() -> str:
    """Describes this process, and the time until the loss of one is detected, for the log."""
    heartbeat = (
        f"A process that sends no heartbeat for {_heartbeat_secs} s counts as lost."
        if _heartbeat_secs is not None
        else "The script has called jax.distributed.initialize itself: a lost process is detected after "
        "heartbeat_timeout_seconds, by default 100."
    )
    return f"This is process {process_info().index} of {process_info().count} in this SPMD job. {heartbeat}"


def is_connection_loss(error: BaseException | None) -> bool:
    """Returns whether an error, or its cause, shows that the connection to another process is lost."""
    seen: set[int] = set()  # Causes may form a cycle.
    while error is not None and id(error) not in seen:
        if isinstance(error, ValueError | jax.errors.JaxRuntimeError) and any(word in str(error) for word in _LOST):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def exit_status_of(exit: SystemExit) -> int:
    """Returns the exit status that a `SystemExit` requests."""
    return 0 if exit.code is None else exit.code & 0xFF if isinstance(exit.code, int) else 1


def skip_exit_barrier(status: int) -> None:
    """Makes this process end with a status after the script, where JAX would wait for the others, and they for it.

    Only the first status counts. A negative one is the number of a signal.
    """
    global _status
    _status = status if _status is None else _status


@atexit.register
def _leave() -> None:
    """Ends the process before JAX waits for the others, but after the script's own exit handlers."""
    if _status is not None:
        if _status > 0:
            _wait_for_others(_AFTER_LOSS_SECS if _status == os.EX_TEMPFAIL else _AFTER_FAILURE_SECS)
        exit_now(_status)
    if preemption.has_interrupted_jax():
        exit_now(128 + signal.SIGINT)


def _wait_for_others(secs: float) -> None:
    """Reports that this process has finished; process 0 waits until all have, at most `secs`.

    The service is in process 0. If that process ends first, JAX aborts the others with a C++ trace, perhaps before they
    have printed their own error, in most jobs the same one.
    """
    client, own, until = _client(), process_info(), clock.monotonic() + secs
    listener.flush()
    with contextlib.suppress(jax.errors.JaxRuntimeError, AttributeError):  # AttributeError: the client is gone.
        client.key_value_set(f"{_LAST}{own.index}", "")
        for other in range(1, own.count if own.index == 0 else 1):
            left_secs = until - clock.monotonic()
            client.blocking_key_value_get(f"{_LAST}{other}", max(1, int(left_secs * 1000)))
        if own.index == 0:
            clock.sleep(_TO_END_SECS)


def exit_now(status: int) -> NoReturn:
    """Ends the process with a status, or by a signal: no exit handler runs, but printed output is flushed."""
    listener.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
