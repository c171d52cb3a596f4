"""Seeded schedules, run one after another by each of several SPMD processes, with the same results.

What a schedule does is drawn from its seed; how long a process is held up, and where, from its seed and the process.
The sum of a training is of whole numbers: with a step more, or another example, it would be another.
"""

import contextlib
import dataclasses
import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tests import spmd

import hookline as hl
from hookline import train
from hookline.session.running import launch_log

ME, COUNT = jax.process_index(), jax.process_count()
SIZE, BATCH = 64, 8


class Notes(train.SessionRunHook):
    """Records its firings: steps and values."""

    def __init__(self, trigger, fetches, late, pause):
        self.trigger, self.fetches, self.deferred, self.noted, self._pause = trigger, fetches, late, [], pause

    def on_trigger(self, firing):
        self._pause()
        self.noted.append([firing.global_step, int(firing.values)])


class Stops(train.SessionRunHook):
    """Asks for a stop: in some processes, at a step, in the callback or from another thread."""

    trigger = train.every(1)

    def __init__(self, step, processes, from_thread):
        self._step, self._is_here, self._from_thread = step, ME in processes, from_thread
        self._threads = []

    def on_trigger(self, firing):
        if self._is_here and firing.global_step >= self._step and not self._threads:
            ask = firing.context.request_stop
            thread = threading.Thread(target=ask)
            self._threads.append(thread)
            thread.start() if self._from_thread else ask()

    def end(self, session):
        for thread in self._threads:
            with contextlib.suppress(RuntimeError):
                thread.join()


class Looks(train.SessionRunHook):
    """Notes at which step the training has ended, and with which sum."""

    def __init__(self, total):
        self._total, self.found = total, None

    def end(self, session):
        self.found = [session.global_step, int(session.run(self._total))]
        print("ended at", *self.found, flush=True)


class Sends(train.SessionRunHook):
    """Sends SIGTERM to one of the processes."""

    trigger = train.every(1)

    def __init__(self, step, process):
        self._step, self._is_here = step, process == ME

    def on_trigger(self, firing):
        if self._is_here and firing.global_step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


@dataclasses.dataclass
class Schedule:
    """The schedule of a seed."""

    seed: int
    ends_by_signal: bool = False

    def __post_init__(self):
        draw, own = random.Random(self.seed), random.Random(f"{self.seed} {ME}")
        self.steps_per_run = draw.choice([1, 1, 1, 4, 7])
        self.last_step = draw.randint(5, 60)
        self.epochs = None if self.ends_by_signal else draw.choice([None, None, draw.randint(1, 6)])
        self.cadences = [self._cadence(draw) for _ in range(draw.randint(1, 3))]
        asks = draw.choice([[], [draw.randrange(COUNT)], list(range(COUNT))])
        self.stop = draw.randint(1, 50), asks, draw.random() < 0.5
        self.saves = draw.choice([None, None, {"save_checkpoint_steps": 9}, {"save_checkpoint_secs": 0.1}])
        self.signal = draw.randint(3, 30), draw.randrange(COUNT)
        chance, longest = draw.choice([(0, 0), (0.1, 0.01), (0.5, 0.002), (0.02, 0.1)])
        self.pause = lambda: time.sleep(own.random() * longest) if own.random() < chance else None

    def _cadence(self, draw):
        secs, steps = draw.choice([0.005, 0.02, 0.1]), draw.choice([1, 3, 7, 10])
        kind, late = draw.randrange(5), draw.choice([False, False, True, 3])
        kinds = [
            lambda: train.every(steps),
            lambda: train.every(secs=secs),
            lambda: train.every(secs=secs) & train.every(steps),
            lambda: train.every(secs=secs) | train.every(steps),
            lambda: train.every(runs=steps),
        ]
        return kinds[kind], late

    def run(self):
        """Trains by the schedule; returns results that must be the same in all processes."""
        with hl.Graph().as_default(), tempfile.TemporaryDirectory() as folder:
            step = train.get_or_create_global_step()
            source = hl.data.from_arrays(
                np.arange(SIZE, dtype=np.int32), BATCH, shuffle_seed=self.seed, epochs=self.epochs
            )
            total = hl.Variable(jnp.zeros((), jnp.int32), name="total")
            summed = hl.op(lambda batch: batch.sum())(hl.data.iterator(source))
            train_op = hl.group(total.assign_add(summed), step.assign_add(1))
            notes = [Notes(trigger(), summed, late, self.pause) for trigger, late in self.cadences]
            last = Looks(total)
            hooks = [*notes, Stops(*self.stop), train.StopAtStepHook(last_step=self.last_step)]
            if self.ends_by_signal:
                hooks[-2:] = [Sends(*self.signal)]
            saves = self.saves or ({"save_checkpoint_steps": 100} if self.ends_by_signal else None)
            # If all save, they save to the chief's directory.
            place = spmd.gather("folder", folder)[0]
            where = {"checkpoint_dir": place, **saves} if saves else {}
            with train.MonitoredTrainingSession(
                hooks=[*hooks, last], log_step_count_steps=None, save_summaries_steps=None, save_summaries_secs=None,
                steps_per_run=self.steps_per_run, **where,
            ) as session:  # fmt: skip
                while not session.should_stop():
                    self.pause()
                    session.run(train_op)
            found = last.found
            spmd.meet("the end of a schedule")
            saved = sorted(path.name for path in Path(place).glob("model.ckpt-*"))
            spmd.meet("the look into its folder")
        batches = [int(batch.sum()) for batch, _ in zip(iter(source), range(found[0]), strict=False)]
        assert found[1] == sum(batches), f"{found} for {sum(batches)}"
        values = dict(enumerate(batches, 1))
        for each in notes:
            assert all(values[step] == value for step, value in each.noted), (each.noted, batches)
        return [found, [each.noted for each in notes], saved, launch_log.current().count]


def main(first, count, ends_by_signal):
    """Makes so many schedules; prints the number of the one that fails."""
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(60, exit=True)
        try:
            found = Schedule(seed, ends_by_signal and seed == first + count - 1).run()
            every = spmd.gather("what was found", found)
            assert all(each == every[0] for each in every), every
        except Exception:
            print("failed in schedule", seed, flush=True)
            raise
        print("schedule", seed, found, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
