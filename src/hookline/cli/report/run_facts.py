"""Reads the facts of a run, such as its state and its step, from its checkpoints and the last record of its events."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from hookline import clock
from hookline.checkpoint.directory import layout, lease
from hookline.checkpoint.directory.manifest import Manifest
from hookline.checkpoint.restoring import inspection
from hookline.checkpoint.restoring.inspection import DirectoryContents
from hookline.checkpoint.saving.contents import HOOK_STATES
from hookline.cli import runs
from hookline.cli.report import run_events
from hookline.errors import OpError
from hookline.summary import account
from hookline.summary.account import Account

_EVALUATE = f"{HOOK_STATES}hookline.Evaluate["
# Many times the interval of heartbeats, because the clocks of hosts differ.
_LIVE_SECS = 120.0


class Best(NamedTuple):
    """The best value of an evaluation's metric, such as "eval/loss", and its step."""

    metric: str
    value: float
    step: int


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """The facts of a run.

    Attributes:
        directory: Its folder.
        state: "running"; "broken", its newest checkpoint; "killed", while it could save; "finished"; "stopped", by a
            signal, an error, a time limit or a hook whose stop is not final; "unknown", without a checkpoint; or
            "unreadable".
        step: The step of its newest checkpoint, or else of its last event; None if unknown.
        timestamp: The time of its last change, in seconds since the epoch; None if unknown.
        best: The best value of its evaluations; None without one.
        nbytes: The size of its checkpoints.
        why: The reason why it cannot be read, or why its newest checkpoint cannot; empty if both can.
        contents: Its checkpoints; None if they cannot be read.
        account: The account of its process 0; empty without one.
    """

    directory: str
    state: str
    step: int | None = None
    timestamp: float | None = None
    best: Best | None = None
    nbytes: int = 0
    why: str = ""
    contents: DirectoryContents | None = None
    account: Account = dataclasses.field(default_factory=Account)

    @property
    def stop_text(self) -> str:
        """The step and the reason of its stop, by its account; empty if it runs, has finished or was killed."""
        reason = "" if self.state in ("running", "finished") else self.account.stop_reason.removesuffix(".")
        return f"stopped at step {self.account.step}: {reason}" if reason else ""


def find_runs(directory: str) -> list[RunFacts]:
    """Returns the runs in a folder and below it, the last changed first, and the folders that cannot be read.

    A folder with checkpoints is a run. So is one with event files, unless it is in a run, as that of an evaluation.
    """
    failed: list[OSError] = []
    found: list[str] = []
    for below, folders, files in os.walk(directory, onerror=failed.append):
        others = sorted(name for name in folders if not os.path.exists(os.path.join(below, name, "hookline.json")))
        is_inside = any(below.startswith(os.path.join(run, "")) for run in found)
        has_events = any("tfevents" in name for name in files) and not is_inside
        if len(others) < len(folders) or not runs.OF_A_RUN.isdisjoint(files) or has_events:
            found.append(below)
        folders[:] = others
    facts = [read_facts(run) for run in found]
    facts += [RunFacts(str(error.filename), "unreadable", why=f"{error.strerror}") for error in failed]
    return sorted(facts, key=lambda each: each.timestamp or 0.0, reverse=True)


def has_own_files(directory: str) -> bool:
    """Returns whether a folder has files of a training that saves checkpoints."""
    return not runs.OF_A_RUN.isdisjoint(os.listdir(directory))


def read_facts(directory: str) -> RunFacts:
    """Reads the facts of a run; an error becomes its state "unreadable"."""
    files = runs.event_files(directory)
    own, accounted = files.get(directory), account.read_file(account.path_of(directory, 0))
    last = run_events.last_event(own[-1]) if own else None
    step, times = None if last is None else last.step, [_modified(path) for paths in files.values() for path in paths]
    try:
        contents = inspection.inspect_directory(directory)
    except (OpError, OSError) as error:
        why = str(error).removesuffix(".")
        return RunFacts(directory, "unreadable", step, max(times, default=None), why=why, account=accounted)
    manifest = None if contents.newest is None else contents.newest.manifest
    times += [found.timestamp for found in contents.checkpoints if not found.is_unfinished]
    target = contents.restore_target
    why = contents.anomaly if target is None else f"{target.name} is broken: {target.defect}" * bool(target.defect)
    return RunFacts(
        directory,
        _state(contents, last),
        step if manifest is None or manifest.step is None else manifest.step,
        max(times, default=None),
        None if manifest is None else best_evaluation(manifest),
        sum(found.nbytes for found in contents.checkpoints),
        why,
        contents,
        accounted,
    )


def _state(contents: DirectoryContents, last: Any) -> str:
    target, writer = contents.restore_target, contents.writer
    if writer is not None and writer.is_running is None:  # On another host, so only its heartbeats show it.
        beat = _modified(os.path.join(contents.directory, lease.OWNER_NAME))
        writer = writer._replace(is_running=clock.time() - beat < _LIVE_SECS)
    if writer is not None and writer.is_running:
        return "running"
    if target is None and contents.anomaly:
        return "unreadable"
    if target is not None and target.defect:
        return "broken"
    if writer is not None:
        return "killed"
    if last is not None and last.HasField("session_log") and last.session_log.status == last.session_log.STOP:
        return "finished"
    return "unknown" if target is None else "stopped"


def best_evaluation(manifest: Manifest) -> Best | None:
    """Returns the best value that a checkpoint has: of the metric of `keep_best`, or else of a loss, or of another."""
    found = [best for state in evaluation_states(manifest).items() for best in _bests(*state)]
    return min(found, default=(0, None), key=lambda ranked: ranked[0])[1]


def evaluation_states(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Returns the states of the `Evaluate` hooks in a checkpoint, by the names of the evaluations."""
    found: dict[str, dict[str, Any]] = {}
    for name, entry in manifest.variables.items():
        if name.startswith(_EVALUATE) and (treedef := entry.treedef) is not None:
            state = treedef.unflatten([leaf.value for leaf in entry.leaves])
            if isinstance(state, dict) and isinstance(state.get("state"), dict):
                found[name.removeprefix(_EVALUATE).removesuffix("]")] = state["state"]
    return found


def _bests(name: str, state: dict[str, Any]) -> Iterator[tuple[int, Best]]:
    """Yields the best values of an evaluation, each with its rank among all; the state may be another program's."""
    best, kept = state.get("best"), state.get("kept")
    for metric, found in best.items() if isinstance(best, dict) else ():
        match found:
            case (float(value), int(step)):
                is_kept = isinstance(kept, tuple) and kept[:1] == (metric,)
                yield 0 if is_kept else 1 if metric == "loss" else 2, Best(f"{name}/{metric}", value, step)
            case _:
                pass


def _modified(path: str) -> float:
    status = layout.stat_or_none(path)
    return 0.0 if status is None else status.st_mtime
