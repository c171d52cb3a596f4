"""The newest of several checkpoints, by their ancestry; the clock decides only between branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hookline import clock
from hookline.checkpoint.directory.manifest import Manifest

_MOST_NAMED = 3


class Candidate(NamedTuple):
    """A complete checkpoint and its manifest."""

    path: str
    manifest: Manifest

    def __str__(self) -> str:
        manifest, lineage = self.manifest, self.manifest.lineage
        step = "" if manifest.step is None else f"step {manifest.step}, "
        which = f"save {lineage.save_number} of run {lineage.run_id}"
        return f"'{self.path}' ({step}{which}, saved at {clock.format_utc(manifest.timestamp)})"


class Choice(NamedTuple):
    """The newest checkpoint.

    Attributes:
        ancestry: The checkpoints that led to it, oldest first, and itself.
        others: The newest checkpoint of each other branch, which neither led to the chosen one nor followed from it.
    """

    ancestry: Sequence[Candidate]
    others: Sequence[Candidate]

    @property
    def ambiguity(self) -> str:
        """The other checkpoints, and how to continue from one of them, as a clause; empty if there is none."""
        if not self.others:
            return ""
        chosen = self.ancestry[-1]
        named = " and ".join(map(str, self.others[:_MOST_NAMED]))
        more = len(self.others) - _MOST_NAMED
        named += f" and {more} more" if more > 0 else ""
        alone = len(self.others) == 1
        return (
            f"{chosen} is the newest by the clock, but neither leads to {named} nor follows from "
            f"{'it. The other one is' if alone else 'them. The others are'} left alone: not counted by max_to_keep, "
            f"and replaced only by a save of the same step. To continue from {'it' if alone else 'one of them'}, end "
            f"this training and move '{chosen.path}' away"
        )


def choose_newest(found: Sequence[Candidate]) -> Choice:
    """Chooses the newest of some checkpoints: of those that led to no other one, the latest by the clock.

    Example: sessions a, b and c of one run have saved; b restored a's second save, and c its first. `sessions` are

        model.ckpt-10   (a, 1)
        model.ckpt-20   (a, 2)
        model.ckpt-30   (a, 2) (b, 3)      saved at 12:30
        model.ckpt-25   (a, 1) (c, 2)      saved at 12:40

    Nothing followed b's save 3 or c's save 2: they are the heads. By the clock 25 is the newer head; its ancestry is 10
    and 25. 30 is the other head, and left alone. Without 25 the ancestry would be 10, 20, 30, whatever the clocks.
    """
    ordered = sorted(found, key=_by_clock)
    heads = _heads(ordered) or ordered[-1:]  # Hand-made lineages may form a cycle, without a head.
    chosen = heads[-1]
    ancestry = [
        each for each in ordered if each is not chosen and chosen.manifest.lineage.follows(each.manifest.lineage)
    ]
    ancestry.sort(key=lambda each: each.manifest.lineage.save_number)
    return Choice((*ancestry, chosen), heads[:-1][::-1])


def _by_clock(each: Candidate) -> tuple[float, int, bool, str]:
    # Of two copies, the one whose name ends with its step counts as newer.
    step = each.manifest.step
    return each.manifest.timestamp, -1 if step is None else step, each.path.endswith(f"-{step}"), each.path


def _heads(ordered: Sequence[Candidate]) -> Sequence[Candidate]:
    """Returns the checkpoints that led to no other one, in the same order. Takes linear time."""
    counts: dict[str, int] = {}  # By session, the number of the last save that led to a save of another session.
    last: dict[str, tuple[int, Candidate]] = {}  # By session, its last save.
    for each in ordered:
        *before, (own, number) = each.manifest.lineage.sessions
        for session, counted in before:
            counts[session] = max(counted, counts.get(session, 0))
        if number >= last.get(own, (0, each))[0]:
            last[own] = number, each
    return sorted((head for own, (number, head) in last.items() if number > counts.get(own, 0)), key=_by_clock)
