"""Advice: the command that shows the steps before a NaN."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

from hookline.hooks import SessionRunHook
from hookline.hooks.lookup import REPLAY_ADVICE, session_savers
from hookline.redirection import is_redirected_to
from hookline.session import Session

_SHOWN_STEPS = 10


class AdviceHook(SessionRunHook):
    """Lets a session tell how its steps can be replayed.

    Args:
        describe_call: Returns the call that replays, for a folder and steps, where no script is run.
    """

    def __init__(self, describe_call: Callable[[str, tuple[int, int]], str]) -> None:
        self._describe_call = describe_call

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Puts the advice into `hook_data`."""
        session.hook_data[REPLAY_ADVICE] = self._advise

    def _advise(self, session: Session, step: int) -> str:
        paths = [path for saver in session_savers(session) for path in getattr(saver, "last_checkpoints", ())]
        numbered = [(path.rpartition("-")[2], os.path.dirname(path)) for path in paths]
        saved = {int(number): folder for number, folder in numbered if number.isdecimal()}
        if not (before := [each for each in saved if each < step]):
            return ""
        first, folder = max(step - _SHOWN_STEPS, min(before)), saved[before[0]]
        if is_redirected_to(folder):  # The session is a replay.
            return ""
        if sys.argv[0].endswith(".py"):
            how = shlex.join(["hookline", "replay", folder, "--steps", f"{first}:{step}", "--nan", *sys.argv])
        else:
            how = self._describe_call(folder, (first, step))
        return f" To look at the steps before it: {how}"
