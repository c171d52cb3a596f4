"""Lineage: which save of a training came before which, told without a clock."""

from __future__ import annotations

import dataclasses
import secrets
import weakref

from hookline.session import Session


@dataclasses.dataclass(frozen=True)
class Lineage:
    """The place of a save in its run.

    Attributes:
        run_id: The random id of the run. A model that was initialised anew begins one, a restored one continues its
            own.
        save_number: The number of its parent plus one: of the last save of the session, or the restored checkpoint.
        sessions: For each session that led to it, oldest first, its random id and the number of its last save that
            counts: for its own session, its own number.

    Example:
        A session saves 1 and 2; the next one restores 1, and saves another 2.
        >>> first, last = Lineage("run", 1, (("a", 1),)), Lineage("run", 2, (("a", 2),))
        >>> other = Lineage("run", 2, (("a", 1), ("b", 2)))
        >>> last.follows(first), other.follows(first), other.follows(last), last.follows(other)
        (True, True, False, False)
    """

    run_id: str
    save_number: int
    sessions: tuple[tuple[str, int], ...]

    def follows(self, other: Lineage) -> bool:
        """Returns whether the other save is this one, or led to it."""
        session, number = other.sessions[-1]
        return number <= dict(self.sessions).get(session, -1)


@dataclasses.dataclass
class _Line:
    """The last save or restored checkpoint of a session, and whether the session has saved since its restore."""

    last: Lineage
    is_own: bool


_lines: weakref.WeakKeyDictionary[Session, _Line] = weakref.WeakKeyDictionary()


def next_of(session: Session) -> Lineage:
    """Returns the lineage of the next save of a session, which must be made."""
    line = _lines.get(session)
    if line is None:
        found = Lineage(secrets.token_hex(8), 1, ((secrets.token_hex(6), 1),))
    else:
        last, number = line.last, line.last.save_number + 1
        *before, (own, _) = last.sessions
        sessions = (*before, (own, number)) if line.is_own else (*last.sessions, (secrets.token_hex(6), number))
        found = Lineage(last.run_id, number, sessions)
    _lines[session] = _Line(found, True)
    return found


def last_of(session: Session) -> Lineage | None:
    """Returns the lineage of the last save of a session, or of what it restored; None if it began anew."""
    line = _lines.get(session)
    return None if line is None else line.last


def restored(session: Session, lineage: Lineage | None, *, is_whole: bool = True) -> None:
    """Records the lineage of the values that a session has restored.

    A part of the model does not make the session another run's; it begins one of its own where there is none. Without
    a lineage (older versions saved none), the next save begins a run.
    """
    if not is_whole and session in _lines:
        return
    if lineage is None:
        _lines.pop(session, None)
    else:
        _lines[session] = _Line(lineage, False)
