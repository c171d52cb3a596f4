"""HookStates: saves and restores the states of hooks and the phases of their triggers, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hookline import log
from hookline.coordination import process_group
from hookline.monitored.hooked.callbacks import (
    check_unique_identities,
    declared_trigger,
    describe,
    indices_by_identity,
    overridden_callback,
)

logger = log.get_logger(__name__)

_STATE, _PHASE, _PHASES, _STEP = "state", "trigger", "triggers", "step"


class HookStates:
    """Collects the states of hooks for a checkpoint, and restores them.

    A checkpoint has one entry for each `identity` of hooks. The parts of an entry are:

    - `state`: the result of `get_state`;
    - `trigger`: the phase of the trigger; or `triggers`: the phases of several hooks with this identity and no state;
    - `step`: the global step of the state, if it is older than the checkpoint.

    If a hook of a checkpoint is not in the session, later checkpoints keep its state and drop its phase.

    Args:
        hooks: The hooks.
        previous: If a hook is added to an open session, the states so far; else None.

    Example:
        A session with hooks A[x], A[y] and B saves a checkpoint; a session with A[y], A[z] and C restores it:

            A[y]   continues from its state
            A[z]   starts over: the checkpoint has no state of A[z]
            A[x]   is absent: its state stays in later checkpoints, with the step at which it was saved
            B      is absent, as A[x]
            C      starts over, as A[z]
    """

    def __init__(self, hooks: Sequence[Any], previous: HookStates | None = None) -> None:
        self._hooks = hooks
        # The entries that belong to no hook here, and the names that were logged. The entries of `previous` are copied:
        # if adding the hook fails, they must be unchanged.
        self._unclaimed: dict[str, dict[str, Any]] = {} if previous is None else dict(previous._unclaimed)
        self._logged_names: set[str] = set() if previous is None else previous._logged_names

    def collect(self, step: int | None = None) -> dict[str, Any]:
        """Returns the entries for a checkpoint.

        Args:
            step: The global step; None in a graph without one.
        """
        found: dict[str, Any] = {
            name: {part: entry[part] for part in (_STATE, _STEP) if part in entry}
            for name, entry in self._unclaimed.items()
            if _STATE in entry
        }
        for name, indices in indices_by_identity(self._hooks).items():
            hooks = [self._hooks[index] for index in indices]
            phases = [_trigger_state(hook, step) for hook in hooks]
            entry: dict[str, Any] = {}
            if any(phases):
                entry = {_PHASES: phases} if len(hooks) > 1 else {_PHASE: phases[0]}
            get_state = overridden_callback(hooks[0], "get_state") if len(hooks) == 1 else None
            state = None if get_state is None else get_state()
            if state is not None:
                entry[_STATE] = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, state)
                found.pop(name, None)
            if entry:
                found[name] = found.get(name, {}) | entry
        return found

    def restore(self, states: Mapping[str, Any], step: int | None) -> None:
        """Restores the states of the hooks from a checkpoint; logs entries without a hook once.

        Args:
            states: The entries, from `collect`. If there are none, nothing changes: a chief with parameter servers that
                has lost its session continues from the servers' variables, and restores no checkpoint.
            step: The global step of the checkpoint; None in a graph without one.
        """
        check_unique_identities(self._hooks, "hooks")  # Again, because `begin` may have set a `state_key`.
        if not states:
            return
        self._unclaimed = {name: dict(entry) for name, entry in states.items()}
        for entry in self._unclaimed.values():
            if step is not None:
                entry.setdefault(_STEP, step)
        unclear = self.assign(self._hooks, step)
        if unclear and process_group.is_primary():
            logger.warning(
                "The triggers of these hooks start over, because the phases in the checkpoint do not match: %s.",
                ", ".join(sorted(unclear)),
            )
        kept = {name for name, entry in self._unclaimed.items() if _STATE in entry}
        if not kept <= self._logged_names and process_group.is_primary():
            logger.info(
                "The checkpoint has states of hooks that are not in this session: %s. Later checkpoints keep them.",
                ", ".join(sorted(kept)),
            )
        dropped = self._unclaimed.keys() - kept
        if not dropped <= self._logged_names and process_group.is_primary():
            logger.info(
                "The checkpoint has phases of triggers whose hooks are not in this session: %s. Later checkpoints "
                "drop them.",
                ", ".join(sorted(dropped)),
            )
        self._logged_names |= self._unclaimed.keys()

    def assign(self, hooks: Sequence[Any], step: int | None) -> list[str]:
        """Restores the states of some hooks; returns the names of entries whose phases do not match the hooks.

        Args:
            hooks: The hooks to restore.
            step: The current global step; None in a graph without one.
        """
        unclear: list[str] = []
        for name, indices in indices_by_identity(self._hooks).items():
            group = [self._hooks[index] for index in indices]
            if not any(hook is asked for hook in group for asked in hooks):
                continue
            entry = self._unclaimed.pop(name, None)
            if entry is None:
                continue
            if len(group) == 1 and _PHASES not in entry:
                self._assign_one(name, group[0], entry, step)
            else:
                if not _resume_triggers(group, entry, step):
                    unclear.append(name)
                if _STATE in entry:  # In the session that saved it, only one hook had this identity.
                    self._unclaimed[name] = {part: entry[part] for part in (_STATE, _STEP) if part in entry}
        return unclear

    def _assign_one(self, name: str, hook: Any, entry: dict[str, Any], step: int | None) -> None:
        taken_at = entry.get(_STEP)
        if entry.get(_PHASE):
            _resume_trigger(hook, entry[_PHASE], step, taken_at)
        if _STATE not in entry:
            return
        set_state = overridden_callback(hook, "set_state")
        if set_state is None:
            self._unclaimed[name] = entry
            return
        try:
            set_state(entry[_STATE])
        except Exception as exc:
            _warn(hook, "state", exc)
            return
        if taken_at != step and process_group.is_primary():
            logger.info(
                "The %s continues from its state of step %s; the training is at step %s.",
                describe(hook),
                taken_at,
                step,
            )


def _trigger_state(hook: Any, step: int | None = None) -> dict[str, Any]:
    trigger = declared_trigger(hook)
    if trigger is None:
        return {}
    if step is not None:
        trigger.check_up_to(step)
    return trigger.get_state()


def _resume_trigger(hook: Any, phase: Mapping[str, Any], step: int | None, saved_step: int | None) -> None:
    trigger = declared_trigger(hook)
    if trigger is None:  # Its after_create_session creates the trigger.
        return
    try:
        trigger.resume(phase, step, saved_step)
    except Exception as exc:
        trigger.reset()
        _warn(hook, "phase", exc)


def _resume_triggers(hooks: Sequence[Any], entry: Mapping[str, Any], step: int | None) -> bool:
    """Resumes the triggers of hooks with one identity; returns False if the saved triggers are not equal to them."""
    phases = entry.get(_PHASES) or [entry.get(_PHASE, {})]
    present = [_trigger_state(hook).get("text") for hook in hooks]
    if not any(phases) or not any(present):
        return True
    if [phase.get("text") for phase in phases] != present or "" in present:
        return False
    for hook, phase in zip(hooks, phases, strict=True):
        if phase:
            _resume_trigger(hook, phase, step, entry.get(_STEP))
    return True


def _warn(hook: Any, what: str, error: Exception) -> None:
    logger.warning(
        "The %s starts over, because it cannot be restored from its %s in the checkpoint: %s: %s",
        describe(hook),
        what,
        type(error).__name__,
        error,
    )
