"""The contents of a checkpoint: copied from a session, and loaded into one."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import platform
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import jax

from hookline import arguments, log
from hookline.checkpoint.directory import collective, leaves, schema
from hookline.checkpoint.directory.manifest import Lineage, Manifest
from hookline.checkpoint.restoring import reading
from hookline.checkpoint.saving import host_copy
from hookline.checkpoint.saving.host_copy import HostCopy
from hookline.coordination import process_group
from hookline.graph import GraphKeys, Tensor, Variable
from hookline.graph.nodes.spec import UNKNOWN
from hookline.session import Session
from hookline.session.plan.source_positions import Position
from hookline.version import __version__

_logger = log.get_logger(__name__)

HOOK_STATES = "hooks/"
"""The prefix of hooks' states in a checkpoint."""


class ContentsCopy(NamedTuple):
    """The data of a save: the manifest without its pieces, the copies by leaf name, the positions of iterators."""

    manifest: Manifest
    stored: dict[str, HostCopy]
    positions: Mapping[str, Position]


def copy_contents(sess: Session, variables: Mapping[str, Variable], global_step: Any, is_chief: bool) -> ContentsCopy:
    """Copies everything that this process must write to the host.

    If the variables are the whole model, the positions of iterators and the states of hooks belong to it.
    """
    is_whole = _is_whole_model(sess, variables)
    iterators = [name for name in sess.backend.sources.names() if is_whole and name not in variables]
    states = sess.backend.hook_states() if is_whole else {}
    is_saved = isinstance(global_step, Variable) and global_step in variables.values()
    if not is_saved and isinstance(global_step, Tensor | Variable | str):
        global_step = sess.run(global_step)
    with sess.backend.lock:  # The next run may donate the values.
        values, positions = sess.backend.values_with_positions(list(variables.values()), iterators)
        contents = {name: values[variable.op.name] for name, variable in variables.items()}
        contents |= {name: position.value for name, position in positions.items()}
        contents |= {f"{HOOK_STATES}{name}": state for name, state in states.items()}
        entries, stored = leaves.pack(contents)
        if is_saved:
            global_step = values[global_step.op.name]  # The checkpoint's own; the session may advance.
        if global_step is not None:
            global_step = arguments.check_int("Saver.save", "global_step", global_step, at_least=0)
            if global_step > schema.LARGEST:
                raise ValueError(f"Saver.save requires a global_step of at most 2**63 - 1, got {global_step}.")
        on = devices_of(stored.values())
        manifest = Manifest(
            entries,
            _next_lineage(sess),
            global_step,
            devices=on if len(on) > 1 else (),
            environment=environment(),
        )
        return ContentsCopy(manifest, host_copy.copy_to_host(stored, is_chief), positions)


# The settings of JAX that may change the bits of a step.
_SETTINGS = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable"),
    *("jax_disable_most_optimizations", "jax_numpy_dtype_promotion", "jax_softmax_custom_jvp"),
)


def environment() -> dict[str, str]:
    """Returns the environment of this process, for the manifest: all that may change the bits of a step."""
    flags = [f"{name}={os.environ[name]}" for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") if os.environ.get(name)]
    settings = [f"{name}={found}" for name in _SETTINGS if (found := getattr(jax.config, name, None)) is not None]
    return _versions() | {
        "device": jax.devices()[0].device_kind,
        "flags": " ".join([*flags, *settings]),
        "processes": str(jax.process_count()),
    }


@functools.cache
def _versions() -> dict[str, str]:
    return {"hookline": __version__, "python": platform.python_version(), "jax": version("jax")}


def load(
    sess: Session,
    path: str,
    variables: Mapping[str, Variable],
    *,
    reshapes: bool,
    verifies: bool,
    only_variables: bool = False,
    before_reading: Callable[[], None] | None = None,
) -> None:
    """Sets variables to their values in a checkpoint.

    Args:
        sess: The session.
        path: The checkpoint.
        variables: The variables, by their names in the checkpoint. If they are the whole model, the positions of
            iterators and the states of hooks are restored, too.
        reshapes: As `reshape` of a `Saver`.
        verifies: As `verify` of a `Saver`.
        only_variables: Whether to leave iterators and hooks unchanged.
        before_reading: Called once the checkpoint is known to fit, before its arrays are read.

    Raises:
        OpError: As in `Saver.restore`.
    """
    is_whole = not only_variables and _is_whole_model(sess, variables)
    specs = {name: variable.spec for name, variable in variables.items()}
    iterators = [name for name in sess.backend.sources.names() if is_whole and name not in variables]
    was_read: list[Manifest] = []

    def choose(manifest: Manifest) -> dict[str, leaves.Match]:
        was_read[:] = [manifest]
        held = {name: UNKNOWN for name in iterators if name in manifest.variables}
        if is_whole:
            held |= {name: UNKNOWN for name in manifest.variables if name.startswith(HOOK_STATES)}
        fits = leaves.match_variables(path, manifest.variables, specs | held, reshape=reshapes)
        if before_reading is not None:
            before_reading()
        return fits

    shardings = {name: variable.shardings for name, variable in variables.items()}
    read = reading.read(path, choose, verifies, shardings, collective.current())
    is_placed = any(variable.given_shardings for variable in variables.values())
    restored = [read[name] for name in variables]
    _warn_fewer_devices(path, was_read[0], restored, is_placed=is_placed)
    values = {variable.op.name: read[name] for name, variable in variables.items()}
    if reshapes:
        values = {v.op.name: leaves.reshape_like(v.spec, values[v.op.name]) for v in variables.values()}
    for name in iterators:
        if name not in read and process_group.is_primary():
            _logger.warning(
                "Checkpoint '%s' holds no position of the iterator %r, which keeps its position: in a new session "
                "the beginning of its data.",
                path,
                name,
            )
    # Nothing else refers to these arrays, so they need not be copied: a large model may not fit twice.
    sess.backend.load(values, owned=True, positions={name: read[name] for name in iterators if name in read})
    sess.backend.restored = path, frozenset(values)
    if not only_variables:
        begin_from(sess, was_read[0].lineage, is_whole=is_whole)
    if is_whole:
        sess.backend.restored_hook_states = {
            name.removeprefix(HOOK_STATES): state for name, state in read.items() if name.startswith(HOOK_STATES)
        }


def hook_states(path: str) -> dict[str, Any]:
    """Returns the states of hooks in a checkpoint, by the hooks' names there.

    Raises:
        OpError: As in `Saver.restore`.
    """

    def choose(manifest: Manifest) -> dict[str, leaves.Match]:
        wanted = {name: UNKNOWN for name in manifest.variables if name.startswith(HOOK_STATES)}
        return leaves.match_variables(path, manifest.variables, wanted)

    read = reading.read(path, choose, on_host=True)
    return {name.removeprefix(HOOK_STATES): state for name, state in read.items()}


def _is_whole_model(sess: Session, variables: Mapping[str, Variable]) -> bool:
    """Returns whether these are all variables of the model, so that positions and hook states belong to them."""
    model = sess.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
    return all(variables.get(variable.op.name) is variable for variable in model)


# The lineage of a session's saves.


@dataclasses.dataclass
class _SessionLineage:
    """The last save or restored checkpoint of a session, and whether the session has saved since its restore."""

    last: Lineage
    is_own: bool


_session_lineages: weakref.WeakKeyDictionary[Session, _SessionLineage] = weakref.WeakKeyDictionary()


def _next_lineage(session: Session) -> Lineage:
    """Advances the lineage of a session to its next save, and returns it; that save must follow."""
    current = _session_lineages.get(session)
    if current is None:
        found = Lineage(secrets.token_hex(8), 1, ((secrets.token_hex(6), 1),))
    else:
        last, number = current.last, current.last.save_number + 1
        *before, (own, _) = last.sessions
        sessions = (*before, (own, number)) if current.is_own else (*last.sessions, (secrets.token_hex(6), number))
        found = Lineage(last.run_id, number, sessions)
    _session_lineages[session] = _SessionLineage(found, True)
    return found


def last_lineage(session: Session) -> Lineage | None:
    """Returns the lineage of a session's last save or restored checkpoint; None if it has neither."""
    current = _session_lineages.get(session)
    return None if current is None else current.last


def begin_from(session: Session, lineage: Lineage | None, *, is_whole: bool = True) -> None:
    """Records the lineage of the values that a session has restored; after None its next save begins a run.

    Restoring a part of the model does not replace a lineage that the session already has.
    """
    if not is_whole and session in _session_lineages:
        return
    if lineage is None:
        _session_lineages.pop(session, None)
    else:
        _session_lineages[session] = _SessionLineage(lineage, False)


# The devices of arrays when they were saved, and when they are restored.


def format_devices(names: Sequence[str]) -> str:
    """Formats devices for messages: "3 devices (cpu:0 to cpu:2)", "1 device (cuda:1)"."""
    kinds = {name.rpartition(":")[0] for name in names}
    numbers = [name.rpartition(":")[2] for name in names]
    in_a_row = len(kinds) == 1 and all(map(str.isdecimal, numbers))
    in_a_row = in_a_row and [*map(int, numbers)] == [*range(int(numbers[0]), int(numbers[0]) + len(names))]
    inside = f"{names[0]} to {names[-1]}" if in_a_row and len(names) > 2 else ", ".join(names)
    return f"{len(names)} device{'s' * (len(names) != 1)} ({inside})"


def _warn_fewer_devices(path: str, manifest: Manifest, values: Any, *, is_placed: bool) -> None:
    """Warns if the restored arrays are on fewer devices than the saved ones.

    If no variable was given a sharding (not `is_placed`), the step moves whole arrays to the devices of its batches, as
    it did before the restore; then there is no warning, unless an array was saved in pieces or devices are missing.
    """
    now = devices_of(jax.tree.leaves(values))
    if not now or len(now) >= len(manifest.devices):
        return
    is_split = any(len(leaf.pieces) > 1 for leaf in manifest.leaves.values())
    if process_group.is_primary() and (is_placed or is_split or jax.device_count() < len(manifest.devices)):
        _logger.warning(
            "Checkpoint '%s' was saved from %s and is restored onto %s. To train on as many as before, give sharding= "
            "to the loop or the variables.",
            path,
            format_devices(manifest.devices),
            format_devices(now),
        )


def devices_of(arrays: Iterable[Any]) -> tuple[str, ...]:
    """Returns the names of the devices that the JAX arrays among some values are on, in order."""
    return device_names(set[Any]().union(*(array.devices() for array in arrays if isinstance(array, jax.Array))))


def device_names(devices: Iterable[Any]) -> tuple[str, ...]:
    """Returns the names of devices, in order."""
    return tuple(map(str, sorted(devices, key=operator.attrgetter("platform", "id"))))
