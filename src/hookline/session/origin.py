"""Describes the origin of a session's values in messages: `RawSession.origin`."""

from __future__ import annotations

from hookline.session.raw_session import RawSession

INITIALISED = "newly initialised"
"""The model came neither from a checkpoint nor from parameter servers."""
SHARED = "found on the parameter servers"
FROM_MEMORY = "restored from memory"
"""A loop resumed from its last session."""


def describe_session(session: RawSession) -> str:
    """Returns the global step of a session and its origin, for messages: "at global step 3 (restored from x)"."""
    at = f"at global step {session.global_step}"
    return f"{at} ({session.origin})" if session.origin else at


def restart_advice(session: RawSession) -> str:
    """Returns advice on how to train without the restored values, for the end of messages; "" if none were restored."""
    if not session.origin.startswith(("restored", SHARED)):
        return ""
    return f"; to start over, {'make a new Loop' if session.origin == FROM_MEMORY else 'use another directory'}"
