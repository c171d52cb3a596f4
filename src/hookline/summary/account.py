"""The account of a run: where its time went since its first start, in one file of each process in its folder.

Each line of `account-<process>.jsonl` is a JSON object with `event`, `at` (seconds since the epoch), `monotonic`
(seconds of the host's clock since it booted) and `pid`. The events are `start`, `session` (the model is ready), `first
step`, `compiled`, `waited for data` (a second or more), `evaluated`, `save begun`, `save copied`, `saved`, `save
failed`, `progress`, `stall` and `stop`. All but `start` have `step`, and `secs`, the seconds of each state since the
start of their process; a `stall` has also `idle_secs`, the part of them without progress. One that the launcher has
written has none of the three: it began at the line before. A line `sum` replaces those before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import math
import os
import threading
from collections.abc import Iterator
from typing import Any

from hookline import clock, log

_logger = log.get_logger(__name__)

STATES = ("steps", "data", "compilation", "save", "evaluation", "start", "restore")
"""The states of a process. Steps are the time in no other state."""

MAX_BYTES = 2**20
_MOST_INTERVALS = 200


def path_of(folder: str, process: int) -> str:
    """Returns the path of the account of a process."""
    return os.path.join(folder, f"account-{process}.jsonl")


@dataclasses.dataclass
class Account:
    """The account of a run, as of its last line.

    Attributes:
        starts: The number of starts of its process.
        began_at: The time of the first one, in seconds since the epoch.
        ended_at: The time of the last line.
        secs: The seconds in each of `STATES`, in a `stall`, and `between` the processes.
        step: The last known step.
        repeated_steps: Steps that were made again after a restart, to within a line of progress.
        repeated_secs: Their seconds, which `secs["steps"]` includes.
        stop_reason: Why it stopped; empty if it runs or was killed.
        last_stall: What hung in its last stall; empty without one.
        hosts: The hosts of its starts.
        has_clock_errors: Whether a process began before the last line of the one before it, by the clocks of two hosts.
    """

    starts: int = 0
    began_at: float = 0.0
    ended_at: float = 0.0
    secs: dict[str, float] = dataclasses.field(default_factory=dict)
    step: int = 0
    repeated_steps: int = 0
    repeated_secs: float = 0.0
    stop_reason: str = ""
    last_stall: str = ""
    hosts: list[str] = dataclasses.field(default_factory=list)
    has_clock_errors: bool = False
    # Of the process that writes: its id, its seconds in the last line, and the steps of the run with their seconds.
    pid: int = 0
    boot: str = ""
    ended_monotonic: float = 0.0
    last_secs: dict[str, float] = dataclasses.field(default_factory=dict)
    intervals: list[list[float]] = dataclasses.field(default_factory=list)

    @property
    def total_secs(self) -> float:
        """The seconds since the first start."""
        return sum(self.secs.values())

    @property
    def useful_secs(self) -> float:
        """The seconds in steps that are part of the run's history."""
        return max(self.secs.get("steps", 0.0) - self.repeated_secs, 0.0)

    @property
    def useful_share(self) -> float:
        """`useful_secs` as a share of `total_secs`; 0 without any."""
        return self.useful_secs / self.total_secs if self.total_secs else 0.0

    def share(self, state: str) -> float:
        """Returns the seconds in a state as a share of `total_secs`; 0 without any."""
        return self.secs.get(state, 0.0) / self.total_secs if self.total_secs else 0.0

    def add(self, line: dict[str, Any]) -> None:
        """Adds a line of the file; one of a process that another one has replaced is left out."""
        event, at = line["event"], float(line["at"])
        if event == "sum":
            vars(self).update(vars(Account(**line["account"])))
            return
        if event == "start":
            self._add_start(line, at)
        elif line["pid"] != self.pid:
            return
        since_secs = float(line["monotonic"]) - self.ended_monotonic
        self.ended_at, self.ended_monotonic = max(self.ended_at, at), float(line["monotonic"])
        if event == "session":
            self._return_to(int(line["step"]))
        if isinstance(secs := line.get("secs"), dict):
            self._add_secs(secs, line.get("step"))
        if event == "stop":
            self.stop_reason = str(line["reason"])
        if event == "stall":
            self.last_stall = str(line["reason"])
            self.stop_reason = f"a stall: {self.last_stall}"
            self._add_stall(str(line.get("under_way", "")), float(line.get("idle_secs", since_secs)))

    def _add_start(self, line: dict[str, Any], at: float) -> None:
        age = float(line["age"])
        if self.starts:
            # On the same host, until it boots again, the monotonic clock is exact.
            is_same = line["boot"] == self.boot
            gap = (line["monotonic"] - self.ended_monotonic if is_same else at - self.ended_at) - age
            self.secs["between"] = self.secs.get("between", 0.0) + max(gap, 0.0)
            self.has_clock_errors |= gap < -1.0
        else:
            self.began_at = at - age
        self.starts, self.boot = self.starts + 1, line["boot"]
        self.pid, self.last_secs, self.stop_reason = line["pid"], {}, ""
        self.hosts = sorted({*self.hosts, str(line["host"])})

    def _add_secs(self, secs: dict[str, float], step: int | None) -> None:
        added = {what: secs.get(what, 0.0) - self.last_secs.get(what, 0.0) for what in STATES}
        self.last_secs = {what: float(secs.get(what, 0.0)) for what in STATES}
        for what in STATES:
            self.secs[what] = self.secs.get(what, 0.0) + added[what]
        # While a program compiles, lines of progress count the time as steps; it is taken back at the end.
        taken_back, steps_secs = min(added["steps"], 0.0), max(added["steps"], 0.0)
        if self.intervals:
            self.intervals[-1][2] += taken_back
        if step is not None and step > self.step:
            self.intervals.append([self.step, step, steps_secs])
            self.step = step
        elif self.intervals:
            self.intervals[-1][2] += steps_secs
        while len(self.intervals) > _MOST_INTERVALS:
            (first, _, secs_before), (_, last, secs_after), *rest = self.intervals
            self.intervals = [[first, last, secs_before + secs_after], *rest]

    def _add_stall(self, under_way: str, secs: float) -> None:
        """Counts seconds as a stall, and not as the state that was under way."""
        self.secs["stall"] = self.secs.get("stall", 0.0) + secs
        if under_way in self.secs:
            self.secs[under_way] = max(self.secs[under_way] - secs, 0.0)
        if under_way == "steps" and self.intervals:
            self.intervals[-1][2] = max(self.intervals[-1][2] - secs, 0.0)

    def _return_to(self, step: int) -> None:
        """Counts the steps after this one as repeated, because the model has been restored there."""
        while self.intervals and self.intervals[-1][1] > step:
            first, last, secs = self.intervals.pop()
            share = min((last - step) / (last - first), 1.0)
            self.repeated_steps += round((last - first) * share)
            self.repeated_secs += secs * share
            if share < 1.0:
                self.intervals.append([first, step, secs * (1 - share)])
        self.step = step


def read(folder: str) -> dict[int, Account]:
    """Returns the accounts in a folder, by process; those that cannot be read are left out."""
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "account-*.jsonl"))):
        number = os.path.basename(path)[len("account-") : -len(".jsonl")]
        if number.isdecimal() and (account := read_file(path)).starts:
            found[int(number)] = account
    return found


def read_file(path: str) -> Account:
    """Returns the account in a file; empty if there is none. Torn and foreign lines are left out."""
    account = Account()
    for line in _lines(path):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            account.add(line)
    return account


def _lines(path: str) -> Iterator[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for text in file:
                with contextlib.suppress(ValueError):
                    if isinstance(line := json.loads(text), dict):
                        yield line
    except OSError:
        return


class AccountWriter:
    """Appends lines to an account; a failure is logged once, and then no more is written.

    Each line is one write, without a sync: it survives the death of the process. Above 1 MiB all lines are replaced by
    their sum.

    Args:
        path: The file.

    Attributes:
        account: The account so far.
    """

    _file = -1

    def __init__(self, path: str) -> None:
        self._path, self.account = path, read_file(path)
        self._lock = threading.RLock()  # Saves end in threads of their own.
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._open()
            if (size := os.fstat(self._file).st_size) and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # The last line is torn.
        except OSError as error:
            self._give_up(error)

    def write(self, **line: Any) -> None:
        """Appends a line."""
        with self._lock:
            if self._file < 0:
                return
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # As in `read_file`.
                self.account.add(line)
            try:
                os.write(self._file, f"{json.dumps(line, default=str)}\n".encode())
                if os.fstat(self._file).st_size > MAX_BYTES:
                    self._sum_up()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Closes the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:  # Of a session that is dropped without being closed.
        self.close()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def _sum_up(self) -> None:
        account = dataclasses.asdict(self.account)
        line = {"event": "sum", "at": self.account.ended_at, "pid": self.account.pid, "account": account}
        temporary = f"{self._path}.new"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(f"{json.dumps(line)}\n")
        os.replace(temporary, self._path)
        os.close(self._file)
        self._open()

    def _give_up(self, error: OSError) -> None:
        self.close()
        _logger.warning("The account of the run is not written any more, '%s': %s", self._path, error.strerror)


def mark_stall(path: str, pid: int, reason: str) -> None:
    """Writes a stall into the account of a process that could not do so itself."""
    writer = AccountWriter(path)
    writer.write(
        event="stall",
        at=round(clock.REAL.time(), 3),
        monotonic=round(clock.REAL.monotonic(), 3),
        pid=pid,
        reason=reason,
    )
    writer.close()


def rounded(secs: dict[str, float]) -> dict[str, float]:
    """Returns seconds in milliseconds' resolution; what is not finite is left out."""
    return {what: round(value, 3) for what, value in secs.items() if math.isfinite(value)}
