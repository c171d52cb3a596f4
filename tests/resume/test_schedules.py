"""Whatever fails, and however often: a job comes to the end it would have come to. `make resume` tries a thousand."""

from __future__ import annotations

import collections
import logging
import os

import pytest

from .schedules import PLACES, go_through

COUNTS = [2, pytest.param(24, marks=pytest.mark.campaign)]
if asked := os.environ.get("HOOKLINE_SCHEDULES"):
    COUNTS = [int(asked)]
FIRST = int(os.environ.get("HOOKLINE_FIRST_SCHEDULE", "0"))


@pytest.mark.parametrize("count", COUNTS)
def test_random_schedules_of_failures_end_like_uninterrupted_runs(count, tmp_path, monkeypatch):
    for name in ("hookline", "tensorboard"):  # Of so many failures there would be much to read.
        monkeypatch.setattr(logging.getLogger(name), "level", logging.CRITICAL)
    _, expected = go_through(0, str(tmp_path / "uninterrupted"), most=0)
    met = collections.Counter()
    for seed in range(FIRST, FIRST + count):
        try:
            failures, outcome = go_through(seed, str(tmp_path / f"{seed}"))
            assert outcome == expected, "The last state is another one."
        except BaseException as error:
            error.add_note(f"To repeat: HOOKLINE_FIRST_SCHEDULE={seed} HOOKLINE_SCHEDULES=1")
            raise
        met.update(place for place, _ in failures)
    print(f"{count} schedules, {met.total()} failures: {dict(met)}")
    if count >= 24:
        assert met.keys() == PLACES.keys()
