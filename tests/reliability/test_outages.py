"""A second in which the file system knows only errors, and a clock that leaps, end neither saves nor trainings."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import pytest
from tests.stand_ins import await_saves

import hookline as hl
from hookline import clock, train
from hookline.errors import ResourceExhaustedError
from hookline.summary import FileWriterCache
from hookline.testing import FakeClock

from .file_calls import FileCall, watched

_ERRORS = (errno.EIO, errno.ESTALE, errno.EMFILE)
_SHORT = {(1, errno.EIO), (8, errno.ESTALE), (32, errno.EMFILE)}
_DAY_SECS = 86400.0


@pytest.fixture(autouse=True)
def close_writers() -> Iterator[None]:
    yield
    FileWriterCache.clear()


class Outage:
    """From one call in a directory on, every call there fails with this error, until so much time has passed.

    Attributes:
        seen: How many calls there were.
    """

    def __init__(self, directory: str, first: float, number: int = errno.EIO, secs: float = 1.0) -> None:
        self.seen = 0
        self._directory, self._first, self._number, self._secs = directory, first, number, secs
        self._over = float("inf")

    def around(self, call: FileCall, proceed: Callable[[], Any]) -> Any:
        if not self._is_inside(call):
            return proceed()
        self.seen += 1
        if self.seen == self._first:
            self._over = clock.monotonic() + self._secs
        if self.seen >= self._first and clock.monotonic() < self._over:
            raise OSError(self._number, os.strerror(self._number))
        return proceed()

    def _is_inside(self, call: FileCall) -> bool:
        place = call.path if call.descriptor is None else os.path.realpath(f"/proc/self/fd/{call.descriptor}")
        return os.path.abspath(place).startswith(self._directory)


@contextlib.contextmanager
def outage(directory: pathlib.Path, first: float, number: int = errno.EIO, secs: float = 1.0) -> Iterator[Outage]:
    found = Outage(str(directory), first, number, secs)
    with FakeClock(), watched(found.around, reads=True):
        yield found


def names_in(directory: pathlib.Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if not name.startswith(".hookline-"))


@pytest.mark.parametrize("apart", [43, *[pytest.param(n, marks=pytest.mark.campaign) for n in (9, 4, 1)]])
def test_one_second_of_errors_from_any_call_does_not_fail_a_save(tmp_path, apart):
    hl.Variable(jnp.arange(1000), name="w")
    saver, path = train.Saver(max_to_keep=2), str(tmp_path / "model.ckpt")
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        for step in range(3):
            saver.save(sess, path, step)
        for first in itertools.count(1, apart):
            with outage(tmp_path, first, _ERRORS[first % 3]) as found:
                saved = saver.save(sess, path, first + 2)
            train.verify(saved)
            assert train.latest_checkpoint(str(tmp_path)) == saved
            if found.seen < first:
                break
        assert first > 50
        saver.save(sess, path, first + 3)  # The next save removes checkpoints that could not be removed.
        assert [name for name in names_in(tmp_path) if "writing" not in name] == [
            "checkpoint", f"model.ckpt-{first + 2}", f"model.ckpt-{first + 3}"
        ]  # fmt: skip


@pytest.mark.parametrize("apart", [25, pytest.param(7, marks=pytest.mark.campaign)])
def test_one_second_of_errors_from_any_call_does_not_fail_the_first_save(tmp_path, apart):
    hl.Variable(1.0, name="w")
    init = hl.global_variables_initializer()
    for first in itertools.count(1, apart):
        directory = tmp_path / str(first)
        directory.mkdir()
        with hl.Session() as sess, outage(directory, first, _ERRORS[first % 3]) as found:
            sess.run(init)
            saved = train.Saver().save(sess, str(directory / "model.ckpt"), 1)
        train.verify(saved)
        assert [name for name in names_in(directory) if "writing" not in name] == ["checkpoint", "model.ckpt-1"]
        if found.seen < first:
            break
    assert first > 50


class Model:
    def __init__(self) -> None:
        weight = hl.Variable(0.0, name="weight")
        self.step = train.get_or_create_global_step()
        self.train = hl.group(weight.assign_add(1.0), self.step.assign_add(1))

    def trained_through(self, directory: pathlib.Path, secs: float) -> None:
        """Trains until the failure of a save ends it: from step 1 on, the disk is away for so long."""
        with self.session(directory, train.Scaffold(saver=Later())) as sess:
            sess.run(self.train)
            await_saves()
            with outage(directory, 1, errno.EMFILE, secs):
                while True:
                    self.completed = sess.raw_session().global_step + 1
                    sess.run(self.train)

    def session(
        self, directory: pathlib.Path, scaffold: train.Scaffold | None = None
    ) -> train.MonitoredTrainingSession:
        return train.MonitoredTrainingSession(
            checkpoint_dir=str(directory), scaffold=scaffold, save_checkpoint_steps=2, save_summaries_steps=None,
            log_step_count_steps=None,
        )  # fmt: skip


class Later(train.Saver):
    """Some time passes before the last save."""

    def save_async(self, *given: Any, extra: bool = False, **named: Any) -> Any:
        if extra:
            clock.sleep(2)
        return super().save_async(*given, extra=extra, **named)


@pytest.mark.parametrize(
    ("first", "number"),
    [
        pytest.param(first, number, marks=() if (first, number) in _SHORT else pytest.mark.campaign)
        for first in (1, 2, 4, 8, 16, 32)
        for number in _ERRORS
    ],
)
def test_one_second_of_errors_does_not_end_a_training(tmp_path, number, first, caplog):
    model = Model()
    with model.session(tmp_path) as sess:
        sess.run(model.train)
        with outage(tmp_path, first, number):
            for _ in range(6):
                sess.run(model.train)
    assert "Attempt 2 of 4 follows" in caplog.text
    train.verify(str(tmp_path))
    assert train.load_variable(str(tmp_path), "weight") == 7


def test_permanently_failed_save_is_followed_by_a_save_of_the_last_state(tmp_path, caplog):
    model = Model()
    with pytest.raises(ResourceExhaustedError, match="model.ckpt-2' could not be written: Too many open files"):
        model.trained_through(tmp_path, 8)  # The attempts come after 0, 1, 3 and 7 s.
    assert model.completed > 2
    saved = f"{tmp_path}/model.ckpt-{model.completed}"
    assert f"Saved checkpoint {saved}, because ResourceExhaustedError ends the training" in caplog.text
    assert train.latest_checkpoint(str(tmp_path)) == saved
    assert train.load_variable(saved, "weight") == model.completed


def test_training_ends_with_the_first_failure_if_that_save_fails_too(tmp_path, caplog):
    model = Model()
    with pytest.raises(ResourceExhaustedError, match="model.ckpt-2' could not be written: Too many open files"):
        model.trained_through(tmp_path, 1e9)
    assert "The last attempt to save a checkpoint failed: ResourceExhaustedError" in caplog.text
    assert caplog.text.count("Attempt 2 of 4 follows") == 1, "the last save has nothing to wait for"
    assert train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-0"


class Leaping(clock.Clock):
    """The calendar leaps a day forward when it has been read so often, by anybody."""

    def __init__(self, reads: int) -> None:
        self.left, self._time = reads, time.time

    def time(self) -> float:
        self.left -= 1
        return self._time() + (_DAY_SECS if self.left < 0 else 0)

    def sleep(self, secs: float) -> None:
        """Does not wait."""


@contextlib.contextmanager
def leaping(reads: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leaping]:
    found = Leaping(reads)
    previous = clock.install(found)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", found.time)  # Orbax reads that.
            yield found
    finally:
        clock.install(previous)


@pytest.mark.parametrize("apart", [3, pytest.param(1, marks=pytest.mark.campaign)])
def test_clock_jump_of_a_day_does_not_fail_a_save(tmp_path, monkeypatch, caplog, apart):
    hl.Variable(jnp.arange(1000), name="w")
    saver, path = train.Saver(max_to_keep=2), str(tmp_path / "model.ckpt")
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        saver.save(sess, path, 0)
        for reads in itertools.count(0, apart):
            with leaping(reads, monkeypatch) as found:
                saved = saver.save(sess, path, reads + 1)
            train.verify(saved)
            if found.left >= 0:
                break
    assert " follows" not in caplog.text


def test_clock_jump_makes_no_save_due(tmp_path, monkeypatch):
    model = Model()
    with train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_secs=600) as sess:
        for _ in range(2):
            sess.run(model.train)
        with leaping(0, monkeypatch):
            for _ in range(2):
                sess.run(model.train)
    assert "checkpoint" in names_in(tmp_path)
    assert [name for name in names_in(tmp_path) if "ckpt" in name] == ["model.ckpt-0", "model.ckpt-4"]
