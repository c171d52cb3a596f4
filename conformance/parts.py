"""What many scenarios are made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from conformance.system import System


def raised(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Returns the class of the error that a call raises; None if it raises none."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error).__name__
    return None


def said(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Returns the class and the first line of the error that a call raises; None if it raises none."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return None


def recorder(
    s: System,
    events: list[Any],
    name: str = "hook",
    fails: Mapping[str, Iterable[Exception | None]] | None = None,
    asks: Any = None,
    feeds: Any = None,
    stops_at_run: int | None = None,
    results: bool = False,
) -> Any:
    """Returns a hook that records its callbacks as `name.callback`.

    Args:
        s: The system.
        events: Where to.
        name: What to call it.
        fails: For a callback, what each call of it raises in turn.
        asks: What it fetches.
        feeds: What it feeds.
        stops_at_run: It requests a stop in the `after_run` of that run.
        results: Whether to record what the fetches gave, as `[name, results]`.
    """
    failures = {callback: iter(errors) for callback, errors in (fails or {}).items()}
    runs = 0

    def record(callback: str) -> None:
        events.append(f"{name}.{callback}")
        error = next(failures.get(callback, iter(())), None)
        if error is not None:
            raise error

    class Recorder(s.train.SessionRunHook):
        def begin(self) -> None:
            record("begin")

        def after_create_session(self, session: Any, coord: Any) -> None:
            record("created")

        def before_run(self, run_context: Any) -> Any:
            record("before")
            return None if asks is None and feeds is None else s.train.SessionRunArgs(asks, feeds)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            nonlocal runs
            runs += 1
            if runs == stops_at_run:
                run_context.request_stop()
            record("after")
            if results:
                events.append([name, run_values.results])

        def end(self, session: Any) -> None:
            record("end")

    return Recorder()


def counting(s: System, by: int = 1) -> tuple[Any, Any]:
    """Returns the global step and an operation that counts it on, after hooks have read it."""
    step = s.train.get_or_create_global_step()
    return step, s.group(s.counted(step, by))


def aborted(s: System, message: str = "preempted") -> Exception:
    """An error that a recoverable session recovers from."""
    return s.errors.AbortedError(None, None, message)


def report(coord: Any, error: Exception) -> None:
    """Reports an error to a coordinator, as a thread does whose work fails."""
    with coord.stop_on_exception():
        raise error


def out_of_range(s: System) -> Exception:
    """The end of the input."""
    return s.errors.OutOfRangeError(None, None, "no more")


def train(sess: Any, train_op: Any, limit: int = 50) -> int:
    """Runs until the session should stop, and returns how many runs that took."""
    runs = 0
    while not sess.should_stop() and runs < limit:
        sess.run(train_op)
        runs += 1
    return runs


def initialised(s: System) -> Any:
    """Returns a session whose variables are initialised."""
    session = s.Session()
    session.run(s.global_variables_initializer())
    return session


def basenames(paths: Iterable[str]) -> list[str]:
    """Returns the last parts of paths."""
    return [os.path.basename(path) for path in paths]


def scalars(events: Iterable[Any]) -> list[tuple[int, str, float]]:
    """Returns the scalar summaries among events: step, tag, value."""
    return [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value if v.HasField("simple_value")]


def kinds(events: Iterable[Any]) -> list[str]:
    """Returns what each event is, and at which step."""
    return [f"{event.WhichOneof('what')}@{event.step}" for event in events]


def session_logs(events: Iterable[Any]) -> list[str]:
    """Returns the session logs among events: status and step."""
    return [
        f"{event.session_log.SessionStatus.Name(event.session_log.status)}@{event.step}"
        for event in events
        if event.HasField("session_log")
    ]


def only(log: Iterable[str], *parts: str) -> list[str]:
    """Returns the log lines that hold one of the texts."""
    return [line for line in log if any(part in line for part in parts)]
