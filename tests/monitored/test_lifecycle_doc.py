"""docs/lifecycle.md, row by row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookline import errors
from hookline.hooks import SessionRunHook
from hookline.monitored import DEFAULT_RECOVERY, MonitoredSession

PAGE = Path(__file__).parents[2] / "docs" / "lifecycle.md"


def rows():
    table = PAGE.read_text(encoding="utf-8").partition("## The table")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return [tuple(row) for row in cells[2:]]


def error_called(name):
    kind = getattr(errors, name, None)
    return (
        kind(None, None, "scripted")
        if kind
        else {"ValueError": ValueError, "StopIteration": StopIteration, "KeyboardInterrupt": KeyboardInterrupt}[name]()
    )


class Noting(SessionRunHook):
    def __init__(self):
        self.events, self.fails, self.stops, self.coord = [], {}, False, None
        self.closes, self.monitored = None, None

    def _note(self, callback):
        self.events.append(callback)
        if callback in self.fails:
            raise self.fails.pop(callback)
        if callback == self.closes:
            self.monitored.close()

    def begin(self):
        self._note("begin")

    def after_create_session(self, session, coord):
        self.coord = coord
        self._note("after_create_session")

    def before_run(self, run_context):
        self._note("before_run")

    def after_run(self, run_context, run_values):
        if self.stops:
            run_context.request_stop()
        self._note("after_run")

    def end(self, session):
        self._note("end")

    def settle(self, session):
        self._note("settle")

    def on_exception(self, session, exception):
        self._note("on_exception")


def play(row, training, hook):
    """Does what the row says."""
    session = MonitoredSession(hooks=[hook], recovery=None if "recovery off" in row else DEFAULT_RECOVERY)
    hook.events.clear()
    hook.monitored = session
    error = error_called(found[1]) if (found := re.search(r"(?:raises|reports) (\w+)", row)) else None
    if row.startswith("close"):
        session.close()
        return session.close() if row.endswith("close") else session.run(training.train_op)
    if "without a with block" in row:
        training.faults.append(error)
        try:
            return session.run(training.train_op)
        finally:
            session.close()
    with session:
        callback = row.split()[0]
        if row.endswith("closes the session"):
            hook.closes = callback
            if callback == "end":
                return None
        if row.startswith("the body raises"):
            raise error
        if row.startswith("a thread reports"):
            hook.coord.request_stop(error)
            if "should_stop" in row:
                session.should_stop()
            return None
        if row.startswith("a hook requests"):
            hook.stops = True
            session.run(training.train_op)
        if row.startswith("the coordinator"):
            hook.coord.request_stop()
        if row.startswith("the run raises"):
            training.faults.append(error)
        elif error is not None:
            hook.fails[callback] = error
            if callback in ("settle", "end"):
                return None
        session.run(training.train_op)
    return None


@pytest.mark.parametrize(("row", "callbacks", "seen"), rows(), ids=lambda cell: cell)
def test_every_row_of_the_table_is_true(training, clock, row, callbacks, seen):
    hook, caught = Noting(), "nothing"
    try:
        play(row, training, hook)
    except BaseException as exc:
        caught = type(exc).__name__
    assert caught == seen
    assert ", ".join(hook.events) == callbacks


def test_the_table_has_all_its_rows():
    assert len(rows()) == 28
    assert len({row[0] for row in rows()}) == 28
