"""Newest: the checkpoint to go on from, where no state file says it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hookline import clock
from hookline.checkpoint.manifest import Manifest

_MOST_NAMED = 3


class Described(NamedTuple):
    """A complete checkpoint and its manifest."""

    path: str
    manifest: Manifest

    def __str__(self) -> str:
        manifest, lineage = self.manifest, self.manifest.lineage
        which = "" if lineage is None else f"save {lineage.save_number} of run {lineage.run_id}, "
        step = "" if manifest.step is None else f"step {manifest.step}, "
        return f"'{self.path}' ({step}{which}saved at {clock.in_utc(manifest.timestamp)})"


class Choice(NamedTuple):
    """The newest checkpoint.

    Attributes:
        line: The checkpoints that led to it, oldest first, and itself.
        others: The newest of each other line, if there are several: saves that neither led to it nor followed.
    """

    line: Sequence[Described]
    others: Sequence[Described]

    @property
    def doubt(self) -> str:
        """The other ones and what to do to go on from one of them, as a clause; empty if there is none."""
        if not self.others:
            return ""
        chosen = self.line[-1]
        named = " and ".join(map(str, self.others[:_MOST_NAMED]))
        more = len(self.others) - _MOST_NAMED
        named += f" and {more} more" if more > 0 else ""
        alone = len(self.others) == 1
        return (
            f"{chosen} is the newest by the clock, but neither leads to {named} nor follows from "
            f"{'it. The other one is' if alone else 'them. The others are'} left alone: not counted by max_to_keep, "
            f"and replaced only by a save of the same step. To go on from {'it' if alone else 'one of them'}, end this "
            f"training and move '{chosen.path}' away"
        )


def choose(found: Sequence[Described]) -> Choice:
    """Chooses the newest of some checkpoints: the last of the line of saves that has the latest one by the clock.

    Saves with a lineage are in one line if one led to the other. Others are if clock and step agree.
    """
    ordered = sorted(found, key=_by_clock)
    heads = _heads(ordered) or list(ordered[-2:])  # None is, where the clocks of machines contradict each other.
    chosen = heads[-1]
    line = [each for each in ordered if each is not chosen and _leads_to(each, chosen)]
    if chosen.manifest.lineage is not None:
        line.sort(key=lambda each: 0 if each.manifest.lineage is None else each.manifest.lineage.save_number)
    return Choice((*line, chosen), heads[:-1][::-1])


def _by_clock(each: Described) -> tuple[float, int, bool, str]:
    # Of two copies the one whose name has its step comes last.
    step = each.manifest.step
    return each.manifest.timestamp, -1 if step is None else step, each.path.endswith(f"-{step}"), each.path


def _heads(ordered: Sequence[Described]) -> list[Described]:
    """Returns those that led to no other one; they are ordered by the clock. Takes linear time."""
    counts: dict[str, int] = {}  # By session, the number of the last save that led to a save of another session.
    last: dict[str, tuple[int, Described]] = {}  # By session, its last save.
    for each in ordered:
        if (lineage := each.manifest.lineage) is not None:
            *before, (own, number) = lineage.sessions
            for session, counted in before:
                counts[session] = max(counted, counts.get(session, 0))
            if number >= last.get(own, (0, each))[0]:
                last[own] = number, each
    heads = []
    highest = highest_unnumbered = -math.inf  # Of the steps that are later by the clock.
    for each in reversed(ordered):
        step, lineage = each.manifest.step, each.manifest.lineage
        reached = math.inf if step is None else step
        if lineage is None:
            is_head = highest < (0 if step is None else step)
            highest_unnumbered = max(highest_unnumbered, reached)
        else:
            own, number = lineage.sessions[-1]
            is_head = last[own][1] is each and number > counts.get(own, 0)
            is_head = is_head and highest_unnumbered < (0 if step is None else step)
        highest = max(highest, reached)
        if is_head:
            heads.append(each)
    return heads[::-1]


def _leads_to(each: Described, chosen: Described) -> bool:
    """Returns whether a checkpoint came before the chosen one in its line; it is not later by the clock without one."""
    own, other = each.manifest, chosen.manifest
    if own.lineage is not None and other.lineage is not None:
        return other.lineage.follows(own.lineage)
    return _by_clock(each) < _by_clock(chosen) and (own.step is None or other.step is None or own.step <= other.step)
