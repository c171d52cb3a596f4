"""Schedules of failures: their points, times and kinds, and a job that meets them."""

from __future__ import annotations

import collections
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np

import hookline as hl
from hookline import train
from hookline.errors import AbortedError, UnavailableError

from .events import shown
from .training import fingerprint

LAST_STEP = 16
PLACES = {
    "run, before": 20,
    "run, after": 20,
    "before_run": 20,
    "after_run": 20,
    "body": 20,
    "thread": 20,
    "iterator": 40,
    "save": 8,
    "saved": 8,
    "restore": 4,
    "restored": 4,
}
"""Where something fails, and up to which arrival there."""


class Fatal(Exception):
    """A failure that no session recovers from: the job is started again."""


class Failures:
    """Raises at the arrivals that were chosen by chance: errors by place and arrival; `met` are those raised."""

    def __init__(self, chance, count):
        self.chosen, self.met = {}, []
        self._arrivals, self._lock = collections.Counter(), threading.Lock()
        places = [*sorted(PLACES), "iterator"]  # Twice: not every source can fail.
        for _ in range(count):
            place = chance.choice(places)
            error = Fatal if place == "body" else chance.choice((AbortedError, UnavailableError, Fatal))
            self.chosen[place, chance.randint(1, PLACES[place])] = error

    def reach(self, place):
        """Reports that the job has reached a point."""
        with self._lock:
            self._arrivals[place] += 1
            arrival = place, self._arrivals[place]
            error = self.chosen.get(arrival)
            if error is None:
                return
            self.met.append(arrival)
        raise error(str(arrival)) if error is Fatal else error(None, None, str(arrival))


def _batch(number):
    return np.full((1, 1), number, np.int32)


class Counting:
    """An iterator with a state, whose reads may fail."""

    def __init__(self, reach):
        self.at, self.reach = 0, reach

    def __iter__(self):
        return self

    def __next__(self):
        self.reach("iterator")
        if self.at == LAST_STEP:
            raise StopIteration
        self.at += 1
        return _batch(self.at)

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


def _generated(reach):
    for number in range(1, LAST_STEP + 1):
        reach("iterator")
        yield _batch(number)


SOURCES = {
    "arrays": lambda reach: hl.data.from_arrays(np.arange(1, LAST_STEP + 1, dtype=np.int32)[:, None], 1, epochs=1),
    "list": lambda reach: [_batch(number) for number in range(1, LAST_STEP + 1)],
    "function": lambda reach: lambda: _generated(reach),
    "state": Counting,
    "states": lambda reach: lambda: Counting(reach),
    "one-shot": lambda reach: iter([_batch(number) for number in range(1, LAST_STEP + 1)]),
}
"""One-shot iterators do not fail: what they raise once, they raise for good."""


class Model:
    """The graph: used batches are counted, and their order shows in the last bits of the weight."""

    def __init__(self, source, prefetch, reach):
        self.graph = hl.Graph(seed=1)
        with self.graph.as_default():
            step = train.get_or_create_global_step()
            # Its form is given, so that nothing is read, and fails, while the graph is built.
            spec = jax.ShapeDtypeStruct((1, 1), np.int32)
            self.batch = hl.op(jnp.sum)(hl.data.iterator(source, prefetch=prefetch, spec=spec))
            weight = hl.Variable(1.0, name="weight")
            used = hl.Variable(np.zeros(LAST_STEP, np.int32), name="used")
            moved = weight.assign(hl.op(_moved)(weight, self.batch, hl.random_key()))
            counted = used.assign(hl.op(lambda used, batch: used.at[batch - 1].add(1))(used, self.batch))
            before = hl.host_op(lambda step: reach("run, before"))(step)
            after = hl.host_op(lambda step, batch: reach("run, after"))(step, self.batch)
            self.train_op = hl.group(moved, counted, step.assign_add(1), before, after)
            hl.summary.scalar("batch", hl.op(lambda batch: batch * 1.0)(self.batch))


def _moved(weight, batch, key):
    return weight * 1.01 + batch + jax.random.uniform(key)


class FailingSaver(train.Saver):
    """Fails before and after it saves and restores."""

    def __init__(self, reach):
        super().__init__(max_to_keep=2)
        self._reach = reach

    def save_async(self, *args, **kwargs):
        self._reach("save")
        pending = super().save_async(*args, **kwargs)
        wait = pending.wait

        def wait_and_fail():
            wait()
            pending.wait = wait
            self._reach("saved")

        pending.wait = wait_and_fail
        return pending

    def restore(self, *args, **kwargs):
        self._reach("restore")
        super().restore(*args, **kwargs)
        self._reach("restored")


class Companion(train.SessionRunHook):
    """Keeps a thread that works once in each run, and may fail."""

    def __init__(self, reach):
        self.reach = reach

    def after_create_session(self, session, coord):
        self.asked, self.done = threading.Semaphore(0), threading.Semaphore(0)
        thread = threading.Thread(target=self._live, args=(coord, self.asked, self.done), name="companion", daemon=True)
        coord.register_thread(thread)
        thread.start()

    def _live(self, coord, asked, done):
        with coord.stop_on_exception():
            while not coord.should_stop():
                if asked.acquire(timeout=0.01):
                    try:
                        self.reach("thread")
                    finally:
                        done.release()

    def before_run(self, run_context):
        self.reach("before_run")

    def after_run(self, run_context, run_values):
        self.asked.release()
        self.done.acquire(timeout=1)
        self.reach("after_run")


class Watch(train.SessionRunHook):
    """Checks the invariants of each session, after those of earlier ones of the job; the first of the hooks."""

    def __init__(self, directory, batch, seen):
        self.directory, self.batch, self.seen, self.total = directory, batch, seen, 0
        self.ends, self.exceptions = 0, 0

    def get_state(self):
        return {"total": self.total}

    def set_state(self, state):
        self.total = state["total"]

    def after_create_session(self, session, coord):
        path = train.latest_checkpoint(self.directory)
        saved, step = int(path.rpartition("-")[2]) if path else 0, session.global_step
        assert saved >= self.seen.saved, f"The newest checkpoint was that of {self.seen.saved}, now of {saved}."
        assert step == saved, f"It went on at step {step}, and the newest checkpoint is that of {saved}."
        self.seen.saved = saved
        del self.seen.history[step:]
        if not step:
            self.total = 0

    def before_run(self, run_context):
        return train.SessionRunArgs(self.batch)

    def after_run(self, run_context, run_values):
        step = run_context.session.global_step
        assert len(self.seen.history) == step - 1, f"Step {step} follows {len(self.seen.history)} steps."
        self.seen.history.append(int(run_values.results))
        self.total += int(run_values.results)

    def end(self, session):
        self.ends += 1

    def on_exception(self, session, exception):
        self.exceptions += 1


class Seen:
    """The course of a job: the batch of each step that survives, and the newest checkpoint."""

    def __init__(self):
        self.history, self.saved, self.sessions = [], 0, 0


def go_through(seed, directory, most=7):
    """Runs a job through the schedule of a seed; raises an `AssertionError` where something does not hold.

    Returns the failures it met, `most` at most, and the fingerprint of the last state.
    """
    chance = random.Random(seed)
    failures, seen = Failures(chance, min(most, chance.randint(1, 7))), Seen()
    reach = failures.reach
    kind, prefetch = chance.choice(sorted(SOURCES)), chance.randrange(4)
    save_steps, in_background = chance.randint(1, 6), chance.random() < 0.5
    model, threads = Model(SOURCES[kind](reach), prefetch, reach), set(threading.enumerate())
    outcome = None
    while outcome is None:
        watch = Watch(directory, model.batch, seen)
        try:
            outcome = _session(model, directory, watch, reach, save_steps, in_background)
        except (Fatal, AbortedError, UnavailableError) as error:
            if not any(str(arrival) in str(error) for arrival in failures.met):
                raise AssertionError("This is none of the failures of the schedule.") from error
        assert watch.ends + watch.exceptions <= 1, f"{watch.ends} times end, {watch.exceptions} times on_exception."
        for thread in set(threading.enumerate()) - threads:
            thread.join(10)
            assert not thread.is_alive(), f"The thread {thread.name} is left."
        seen.sessions += 1
        assert seen.sessions <= len(failures.met) + 1, "A failure has ended more than one session."
        if kind != "one-shot" and chance.random() < 0.5:
            model = Model(SOURCES[kind](reach), prefetch, reach)  # As in another process.
    steps = [*range(1, LAST_STEP + 1)]
    assert watch.ends == 1, "The last session was not ended."
    assert seen.history == steps, f"The batches that count are {seen.history}."
    assert watch.total == sum(steps), f"The hook's sum is {watch.total}, that of the batches {sum(steps)}."
    events = shown(directory)
    assert events == {"batch": [(step, float(step)) for step in steps]}, f"TensorBoard shows {events}."
    return failures.met, outcome


def _session(model, directory, watch, reach, save_steps, in_background):
    scaffold = train.Scaffold(saver=FailingSaver(reach))
    listeners = () if in_background else (Listener(),)
    with (
        model.graph.as_default(),
        train.MonitoredTrainingSession(
            checkpoint_dir=directory,
            scaffold=scaffold,
            chief_only_hooks=[watch],
            hooks=[
                train.CheckpointSaverHook(directory, save_steps=save_steps, scaffold=scaffold, listeners=listeners),
                Companion(reach),
                train.StopAtStepHook(last_step=LAST_STEP),
            ],
            save_checkpoint_secs=None,
            save_summaries_steps=1,
            log_step_count_steps=None,
            checkpoints=train.CheckpointOptions(recovery=train.RecoveryPolicy(initial_backoff_secs=0)),
        ) as session,
    ):
        while not session.should_stop():
            session.run(model.train_op)
            reach("body")
        raw = session.raw_session()
        return fingerprint(raw) if raw.global_step == LAST_STEP else None


class Listener(train.CheckpointSaverListener):
    """Makes each save one that is waited for."""

    def after_save(self, session, global_step):
        pass
