"""docs/lifecycle.md, row by row."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from pathlib import Path

import pytest

import hookline
from hookline import errors
from hookline.train import CheckpointSaverHook, MonitoredSession, PreemptionOptions, Scaffold, SessionRunHook, every

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
        else {kind.__name__: kind for kind in (ValueError, StopIteration, KeyboardInterrupt, SystemExit)}[name]()
    )


def test_page_lists_and_counts_all_callbacks_and_no_other_page_counts_them():
    page = PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)\(", page.partition("## The table")[0], re.MULTILINE)
    for name in listed:  # Each is enough to be a hook.
        MonitoredSession(hooks=[type("Duck", (), {name: lambda self, *given: None})()]).close()
    counted = re.compile(r"\b(\w+teen|twelve|eleven|ten|nine|eight|seven|six)\s+(?:\w+\s+)?callbacks")
    pages = [PAGE.parents[1] / "README.md", *PAGE.parent.glob("*.md"), *Path(hookline.__file__).parent.glob("**/*.py")]
    counts = {path.name: counted.findall(path.read_text(encoding="utf-8")) for path in pages}
    assert {name: found for name, found in counts.items() if found} == {PAGE.name: ["twelve"]}
    assert len(listed) == 12


class Noting(SessionRunHook):
    def __init__(self):
        self.events, self.fails, self.stops, self.coord = [], {}, False, None
        self.closes, self.runs, self.monitored, self.during = None, None, None, None
        self.signalled = None

    def _note(self, callback):
        self.events.append(callback)
        if callback == self.signalled:
            self.signalled = os.kill(os.getpid(), signal.SIGTERM)
        if callback in self.fails:
            raise self.fails.pop(callback)
        if callback == self.closes:
            self.monitored.close()
        if callback == self.runs:
            self.monitored.run("global_step:0")
        if callback == "before_run" and self.during:
            self.during()

    def begin(self):
        self._note("begin")

    def after_create_session(self, session, coord):
        self.coord = coord
        if "preempted again" in self.fails:
            coord.request_stop(self.fails.pop("preempted again"))
        self._note("after_create_session")

    def before_run(self, run_context):
        self._note("before_run")

    def after_run(self, run_context, run_values):
        if self.stops:
            run_context.request_stop()
        self._note("after_run")
        super().after_run(run_context, run_values)

    def on_trigger(self, firing):
        self._note("on_trigger")

    def end(self, session):
        self._note("end")

    def on_exception(self, session, exception):
        self._note("on_exception")


class Elsewhere:
    """Acts on a session in another thread, during a run."""

    def __init__(self, call, clock):
        self.caught, self._clock = "nothing", clock
        self._thread = threading.Thread(target=self._do, args=(call,))

    def _do(self, call):
        try:
            call()
        except Exception as exc:
            self.caught = type(exc).__name__

    def begin(self):
        """Returns when the other thread is done, or waits for the run."""
        self._thread.start()
        while self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                self._clock.await_waiters(real_timeout_secs=0.01)
                return

    def join(self):
        self._thread.join()
        return self.caught


def send(number, again=False):
    """Sends a signal to this process; again and again, until that does not come back."""
    os.kill(os.getpid(), number)
    while again:
        threading.Event().wait(0.01)
        os.kill(os.getpid(), number)


def play_signal(row, training, hook, directory):
    """Acts as a row with a signal describes."""
    number = signal.SIGINT if row.startswith("Ctrl-C") else signal.SIGTERM
    place = re.search(r" in (the body|the run|\w+)", row)[1]
    saver = CheckpointSaverHook(directory, save_steps=1000, scaffold=Scaffold())
    hook.signalled = place
    error = error_called(found[1]) if (found := re.search(r"which raises (\w+)", row)) else None
    hook.trigger = every(runs=1) if place == "on_trigger" else None
    session = MonitoredSession(
        hooks=[hook] if "nothing is saved" in row else [hook, saver],
        preemption=PreemptionOptions(on_signal="ignore" if "ignored" in row else "exit"),
    )
    if place == "begin":
        hook.events.remove("begin")
    else:
        hook.events.clear()
    with session:
        if place in ("begin", "after_create_session"):
            session.run(training.train_op)
        elif place == "the body":
            send(number, again="once more" in row)
            if "then run" in row:
                session.run(training.train_op)
            elif "then close" in row:
                session.close()
            elif "then should_stop" in row:
                assert session.should_stop()
            elif error:
                raise error
        else:
            if place == "the run":
                training.faults.append(lambda: send(number))
                training.faults.append(error)
            session.run(training.train_op)
            if place != "end":
                session.run(training.train_op)


def play(row, training, hook, clock):
    """Acts as the row describes, and returns the record of another thread, if there was one."""
    if row.startswith("after_create_session raises"):
        hook.fails["after_create_session"] = ValueError()
        return MonitoredSession(hooks=[hook])
    hook.trigger = every(runs=1) if row.startswith("on_trigger") else None
    session = MonitoredSession(hooks=[hook], **({"recovery": None} if "recovery off" in row else {}))
    hook.events.clear()
    hook.monitored = session
    error = error_called(found[1]) if (found := re.search(r"(?:raises|reports) (\w+)", row)) else None
    if row in ("close, then close", "close, then run"):
        session.close()
        return session.close() if row.endswith("close") else session.run(training.train_op)
    if row.startswith("another thread"):
        calls = {"runs": lambda: session.run(training.train_op), "closes": session.close, "asks": session.should_stop}
        elsewhere = Elsewhere(calls[row.split()[2]], clock)
        hook.during = elsewhere.begin
        session.run(training.train_op)
        caught = elsewhere.join()
        if not session.should_stop():
            session.close()
        return caught
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
        if row.endswith("runs the session"):
            hook.runs = callback
            if callback == "end":
                return None
        if row.startswith("close"):
            session.close()
        if "on_exception raises" in row:
            hook.fails["on_exception"] = KeyboardInterrupt()
        if row.endswith("leave the with block") and row.startswith("close"):
            return None
        if row.endswith("the body raises ValueError") or row.startswith("the body raises"):
            raise error
        if row.startswith("a thread reports"):
            if "twice" in row:
                hook.fails["preempted again"] = error_called(found[1])
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
            if callback == "end":
                return None
        session.run(training.train_op)
    return None


@pytest.mark.parametrize(("row", "callbacks", "seen"), rows(), ids=lambda cell: cell)
def test_every_row_of_the_table_is_true(training, clock, tmp_path, row, callbacks, seen):
    hook, caught, elsewhere = Noting(), "nothing", None
    try:
        if row.startswith(("SIGTERM", "Ctrl-C")):
            play_signal(row, training, hook, str(tmp_path))
        else:
            elsewhere = play(row, training, hook, clock)
    except BaseException as exc:
        caught = type(exc).__name__
    assert (caught if elsewhere is None else f"{caught}; the other thread: {elsewhere}") == seen
    assert ", ".join(hook.events) == callbacks
    assert not training.graph.finalized


def test_table_has_all_its_rows():
    assert len(rows()) == 65
    assert len({row[0] for row in rows()}) == 65
