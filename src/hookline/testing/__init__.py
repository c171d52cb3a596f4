"""Tools for tests of hooks and training code, public for the tests of users."""

from __future__ import annotations

from hookline.testing.check_hook import check_hook
from hookline.testing.fake_clock import FakeClock
from hookline.testing.fake_session import FakeSession
from hookline.testing.read_events import read_events
from hookline.testing.recording_hook import RecordedEvent, RecordingHook

__all__ = ["FakeClock", "FakeSession", "RecordedEvent", "RecordingHook", "check_hook", "read_events"]
