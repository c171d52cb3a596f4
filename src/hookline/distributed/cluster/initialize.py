"""initialize: connects the processes of an SPMD job, which run one script, each on its part of the data."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from hookline import arguments, clock, jax_internals, log
from hookline.coordination import process_group, service
from hookline.coordination.key_value_store import TOKEN, TOKEN_PATH, find_token
from hookline.errors import DeadlineExceededError, UnauthenticatedError, UnavailableError
from hookline.session.running import launch_log
from hookline.signals.signal_listener import try_start

_logger = log.get_logger(__name__)

WHO = "hookline.distributed.initialize"
HEARTBEAT_SECS = 10
"""Seconds without a heartbeat after which a process counts as lost; longer than load and short outages delay one."""

_SAY_AFTER_SECS = 10.0
_STUCK_SECS, _POLL_SECS = 5.0, 0.5
# At its own limit, JAX aborts the process with a trace of C++ functions: our limit comes first.
_LONGER_SECS = 60
_ADDRESS, _COUNT, _INDEX = "HOOKLINE_COORDINATOR_ADDRESS", "HOOKLINE_NUM_PROCESSES", "HOOKLINE_PROCESS_ID"
_CHECK = "HOOKLINE_CHECK_EVERY_LAUNCH"
_DIRECT = "no_grpc_proxy"
_ADVICE = (
    "Start the script with `hookline launch --spmd`, or under Slurm, Open MPI, Kubernetes or on a TPU pod, or give "
    "coordinator_address, num_processes and process_id."
)


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    *,
    coordinator_bind_address: str | None = None,
    heartbeat_timeout_secs: int = HEARTBEAT_SECS,
    start_timeout_secs: int = 300,
    check_every_launch: bool = False,
    token_path: str | None = None,
    require_token: bool = False,
) -> None:
    """Connects this process with the others of its SPMD job; call it before the process uses any device.

    Arguments that are not given come from `hookline launch --spmd`, else from JAX's own detection (Slurm, Open MPI,
    Kubernetes, TPU pods). If the processes have been connected already, by the launcher or by
    `jax.distributed.initialize`, it connects nothing. Ctrl-C ends the wait for the other processes.

    JAX's preemption service is switched off: it would keep SIGTERM from sessions, which save and end all processes at
    the same step.

    Args:
        coordinator_address: The address of process 0, as `host:port`, the same in all processes.
        num_processes: The number of processes.
        process_id: The index of this process, from 0.
        local_device_ids: The GPUs of this machine that this process uses; None for all, or for one if several processes
            were started on the machine.
        coordinator_bind_address: The interface and port at which process 0 listens. None for the loopback interface if
            `coordinator_address` is on it, else for all interfaces.
        heartbeat_timeout_secs: Seconds without a heartbeat after which a process counts as lost, and JAX ends the
            others. JAX's own default is 100.
        start_timeout_secs: Seconds to wait for the other processes.
        check_every_launch: Whether the processes compare each program before they launch it, to find the first
            difference. It costs some milliseconds a run, and also takes effect if the processes are connected already.
            If one process sets it, all compare.
        token_path: A file with a secret of 16 characters or more, the same for all processes, with which they
            authenticate their messages. By default `HOOKLINE_TOKEN_PATH` names it. `hookline launch --spmd` makes a new
            secret for each start, and then this argument has no effect.
        require_token: Whether to refuse to start without a secret.

    Raises:
        RuntimeError: The process has used a device before.
        ValueError: Nothing describes the processes, or an argument is wrong.
        DeadlineExceededError: The other processes have not connected in time.
        UnavailableError: Process 0 cannot listen.
        UnauthenticatedError: The token's file does not exist, a required token is missing, or the processes have
            different tokens.

    Example:
        >>> _ = jax.devices()
        >>> initialize("127.0.0.1:1234", num_processes=2, process_id=0)
        Traceback (most recent call last):
        ...
        RuntimeError: hookline.distributed.initialize must come before ...

    References:
        `jax.distributed.initialize`, which has the first four arguments, too. Differences: the defaults, and the
        behaviour described above.
    """
    heartbeat_secs = arguments.check_int(WHO, "heartbeat_timeout_secs", heartbeat_timeout_secs, at_least=1)
    timeout_secs = arguments.check_int(WHO, "start_timeout_secs", start_timeout_secs, at_least=1)
    given = _check_arguments(coordinator_address, num_processes, process_id)
    if check_every_launch or os.environ.get(_CHECK):
        launch_log.compare_every_launch()
    arguments.check_path(WHO, "token_path", token_path, optional=True)
    is_signed = process_group.is_signed()
    secret = None if is_signed else find_token(token_path, os.environ)
    if is_signed is False and secret is not None:
        raise RuntimeError(
            f"{WHO}: the token comes too late, the processes have connected without one. Call it right after the "
            f"imports."
        )
    if require_token and not is_signed and secret is None:
        raise UnauthenticatedError.from_message(
            f"{WHO} requires a token (require_token), and there is none: give all processes the same secret file, with "
            f"token_path or {TOKEN_PATH}, or start them with `hookline launch --spmd`.",
        )
    if jax.distributed.is_initialized():
        _keep_gloo_on_loopback(service.process_info().address)
        _logger.info("%s", service.describe())
        _handshake(secret, timeout_secs)
        return
    if jax_internals.has_started_backend():
        raise RuntimeError(
            f"{WHO} must come before anything that uses devices, such as jax.devices() or an array: this process has "
            "used a device already, so it can no longer connect to others. Call it right after the imports."
        )
    given = given or _launcher_arguments(os.environ)
    if local_device_ids is not None:
        given["local_device_ids"] = local_device_ids
    bind_address = coordinator_bind_address
    if service.is_loopback(given.get("coordinator_address")):
        bind_address = bind_address or os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or given["coordinator_address"]
        _bypass_proxies()
    if given.get("process_id") == 0 and "coordinator_address" in given:
        port = given["coordinator_address"].rpartition(":")[2]
        _check_port_free(bind_address or os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or f"[::]:{port}", given)
    # JAX's service would handle SIGTERM in place of Python's handlers.
    jax.config.update("jax_enable_preemption_service", False)
    _connect(
        timeout_secs,
        coordinator_bind_address=bind_address,
        heartbeat_timeout_seconds=heartbeat_secs,
        initialization_timeout=timeout_secs + _LONGER_SECS,
        **given,
    )
    service.record_start(heartbeat_secs, bind_address)
    _keep_gloo_on_loopback(service.process_info().address)
    _handshake(secret, timeout_secs)


def environment(
    address: str, count: int, index: int, *, check_every_launch: bool, secret: str | None = None
) -> dict[str, str]:
    """Returns the environment variables that identify a process on this machine and pass the job's token."""
    checks = {_CHECK: "1"} if check_every_launch else {}
    tokens = {} if secret is None else {TOKEN: secret}
    return {_ADDRESS: address, _COUNT: str(count), _INDEX: str(index), **checks, **tokens}


def _handshake(secret: bytes | None, timeout_secs: float) -> None:
    info = service.process_info()
    if info.count > 1:
        store = process_group.open_store(secret, info.index, info.count, timeout_secs)
        launch_log.answer_processes(
            process_group.ProcessGroup(store, info.index, info.count), lambda gone: _note_end(info.index, gone)
        )


def _note_end(index: int, gone: int | None) -> None:
    if gone not in (None, index):
        try_start(threading.Thread(target=_await_devices, args=(index, gone), name="hookline-devices", daemon=True))


def _await_devices(index: int, gone: int) -> None:
    """Ends this process if it starts a backend, for which JAX waits, while another has ended its script without one."""
    waited = 0.0
    while jax_internals.is_starting_backend() or not jax_internals.has_started_backend():
        if waited >= _STUCK_SECS:
            _logger.critical(
                "Process %d has ended its script without a device, and process %d, which starts its own, ends at once: "
                "JAX would wait for the other. All processes must run the script to its end.",
                gone,
                index,
            )
            service.exit_now(os.EX_TEMPFAIL)
        clock.sleep(_POLL_SECS)
        waited = waited + _POLL_SECS if jax_internals.is_starting_backend() else 0.0


def _check_arguments(address: str | None, count: int | None, index: int | None) -> dict[str, Any]:
    """Checks the arguments that a script has given, and returns those that are not None, for JAX.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """
    found: dict[str, Any] = {}
    if address is not None:
        host, _, port = arguments.check_str(WHO, "coordinator_address", address).rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{WHO} requires 'host:port' as coordinator_address, got {address!r}.")
        found["coordinator_address"] = address
    if count is not None:
        found["num_processes"] = arguments.check_int(WHO, "num_processes", count, at_least=1)
    if index is not None:
        found["process_id"] = arguments.check_int(WHO, "process_id", index, at_least=0)
    if count is not None and index is not None and index >= count:
        raise ValueError(f"{WHO} requires process_id < num_processes, got {index} of {count}.")
    return found


def _launcher_arguments(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments for JAX that the launcher has put into the environment, if any.

    Raises:
        ValueError: A variable is missing or wrong.
    """
    if not environ.get(_ADDRESS):
        return {}
    try:
        count, index = int(environ[_COUNT]), int(environ[_INDEX])
    except (KeyError, ValueError):
        raise ValueError(
            f"{WHO} requires whole numbers in {_COUNT} and {_INDEX} if {_ADDRESS} is set, got "
            f"{environ.get(_COUNT)!r} and {environ.get(_INDEX)!r}."
        ) from None
    # One GPU of the machine for each, as JAX does under Slurm. Detection is off, because a scheduler around the
    # launcher does not know these processes.
    found = _check_arguments(environ[_ADDRESS], count, index)
    return {**found, "local_device_ids": [index] if count > 1 else None, "cluster_detection_method": "deactivate"}


def _keep_gloo_on_loopback(address: str | None) -> None:
    """Binds Gloo to the loopback interface if process 0 listens there: then all processes are on this machine."""
    if address is not None and service.is_loopback(address) and not jax_internals.has_started_backend():
        jax_internals.bind_gloo_to(address.rpartition(":")[0].strip("[]"))


def _check_port_free(address: str, given: Mapping[str, Any]) -> None:
    """Checks that process 0 can listen: otherwise jaxlib's service may crash instead of raising an error.

    Raises:
        UnavailableError: Process 0 cannot listen.
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(AttributeError):  # The service sets this option too, where the system has it.
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            tried.bind(where)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:  # Without IPv6 the service listens on all interfaces of IPv4.
            text = f"{WHO}: process 0 of {given.get('num_processes')} cannot start at {address}: {error.strerror}"
            raise UnavailableError.from_message(text) from error


def _bypass_proxies() -> None:
    """Bypasses the proxies in the environment: through a proxy, a local connection would wait for ever."""
    if any(name.lower().endswith("_proxy") for name in os.environ):
        others = os.environ.get(_DIRECT) or os.environ.get("no_proxy")
        os.environ[_DIRECT] = ",".join(filter(None, [others, "127.0.0.1,localhost,::1"]))
        jax.config.update("jax_check_proxy_envs", False)


def _connect(timeout_secs: int, **given: Any) -> None:
    """Connects with the other processes, in a thread, because a wait in C++ would not end on Ctrl-C."""
    done, failures = threading.Event(), []

    def connect() -> None:
        try:
            jax.distributed.initialize(**given)
        except BaseException as error:  # The caller, which waits for this thread, raises it.
            failures.append(error)
        done.set()

    threading.Thread(target=connect, name="hookline-start", daemon=True).start()
    first_secs = min(_SAY_AFTER_SECS, timeout_secs)
    if not clock.wait(done, first_secs):
        _logger.warning("%s. It waits up to %d s.", _waiting_message(first_secs), timeout_secs)
        if not clock.wait(done, timeout_secs - first_secs):
            raise DeadlineExceededError.from_message(
                f"{_waiting_message(timeout_secs)}. Check the output of the other processes, and the address."
            )
    if failures:
        raise _map_error(failures[0])


def _waiting_message(secs: float) -> str:
    info = service.process_info()
    return (
        f"{WHO}: process {info.index} of {info.count} has waited {secs:g} s for the others, with process 0 at "
        f"{info.address}"
    )


def _map_error(error: BaseException) -> BaseException:
    if isinstance(error, ValueError):
        return ValueError(f"{WHO} found no description of the job's processes. {_ADVICE} The error of JAX: {error}")
    if isinstance(error, jax.errors.JaxRuntimeError):
        info = service.process_info()
        text = f"{WHO}: process {info.index} of {info.count} cannot start at {info.address}: {error}"
        return UnavailableError.from_message(text)
    return error
