"""RollCall: what processes in step have to say of themselves, also those whose main thread hangs."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import threading
import weakref
from collections.abc import Callable
from typing import Any

from hookline import clock
from hookline.coordination.peers import Peers

_WAIT_SECS, _HEARD_SECS, _LEAVE_SECS, _TRIES = 3600.0, 2.0, 2.0, 20
_CALL, _NEWS, _END = "call ", "news ", "end"


class RollCall:
    """Has all processes say how they stand, and tells all of them what follows from that.

    A thread in each answers, because the main thread may be the one that hangs: in a collective for which another
    process does not come. Rounds follow each other as those of `agreement` do; nothing else depends on them.

    Args:
        of: The processes.
        answer: Returns what this one has to say to a question, as JSON.
        judge: Called in process 0 with what all have said; returns what is wrong, or None.

    Attributes:
        verdict: What is wrong, as process 0 has found it; None as long as nothing is.
        heard: Called with the news that a process has told.
    """

    def __init__(self, of: Peers, answer: Callable[[str], Any], judge: Callable[[list[Any]], str | None]) -> None:
        self._peers, self._answer, self._judge = of, answer, judge
        self._number = 0
        self.heard: Callable[[Any], None] = lambda news: None
        self.verdict: str | None = None
        self._thread = threading.Thread(target=self._work, name="hookline-roll-call", daemon=True)
        self._thread.start()
        _open.add(self)

    def call(self, question: str) -> None:
        """Has all answer; the verdict comes later. Where somebody has called already, his question is answered."""
        self._set(f"{self._number}/call", f"{_CALL}{question}")

    def tell(self, news: Any) -> None:
        """Tells all processes something, as JSON: their threads call `heard`, whatever their main threads do."""
        until, text = clock.monotonic() + _LEAVE_SECS, f"{_NEWS}{json.dumps(news)}"
        while not self._set(f"{self._number}/call", text):  # There is a roll call, or other news.
            self._thread.join(_LEAVE_SECS / _TRIES)
            if not self._thread.is_alive() or clock.monotonic() >= until:
                return

    def silent(self, within_secs: float) -> list[int]:
        """Returns the processes that do not answer so soon."""
        number, until = self._number, clock.monotonic() + within_secs
        try:
            self._set(f"{number}/call", _CALL)
            places = [_key(f"{number}/answer/{process}") for process in range(self._peers.count)]
            found = [self._peers.board.get(place, max(0.0, until - clock.monotonic())) for place in places]
        except Exception:  # The board is in process 0.
            return [0]
        return [process for process, answer in enumerate(found) if answer is None]

    def await_heard(self) -> None:
        """Waits a little, until all have heard the verdict: who ends now may end the others too."""
        for process in range(self._peers.count):
            self._peers.board.get(_key(f"heard/{process}"), _HEARD_SECS)

    def close(self) -> None:
        """Ends the roll calls of all processes, unless one of them answers no more."""
        _open.discard(self)
        for _ in range(_TRIES):
            with contextlib.suppress(Exception):  # Whoever is lost need not be told.
                self._set(f"{self._number}/call", _END)
            self._thread.join(_LEAVE_SECS / _TRIES)
            if not self._thread.is_alive():
                return

    def _work(self) -> None:
        try:
            self._listen()
        except Exception:  # The board is gone, and the other processes with it: all that use it say so.
            return

    def _listen(self) -> None:
        index, board = self._peers.index, self._peers.board
        for self._number in itertools.count():
            number = self._number
            called = self._get(f"{number}/call")
            if called == _END:
                return
            if called.startswith(_NEWS):
                self.heard(json.loads(called.removeprefix(_NEWS)))
                continue
            self._set(f"{number}/answer/{index}", json.dumps(self._answer(called.removeprefix(_CALL))))
            if self._peers.is_chief:
                answers = [json.loads(self._get(f"{number}/answer/{each}")) for each in range(self._peers.count)]
                self._set(f"{number}/verdict", json.dumps(self._judge(answers)))
                board.delete(_key(f"{number - 1}/"))  # Who has answered has read what was said before.
            if (verdict := json.loads(self._get(f"{number}/verdict"))) is not None:
                self.verdict = verdict
                self._set(f"heard/{index}", "")

    def _get(self, key: str) -> str:
        while (text := self._peers.board.get(_key(key), _WAIT_SECS)) is None:
            pass
        return text

    def _set(self, key: str, text: str) -> bool:
        return self._peers.board.set(_key(key), text)


def _key(name: str) -> str:
    return f"roll-call/{name}"


_open: weakref.WeakSet[RollCall] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the threads before JAX ends what they listen to."""
    for roll_call in list(_open):
        roll_call.close()
