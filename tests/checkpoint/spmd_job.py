"""Saves and restores, one after another, in each of several SPMD processes; or in one, for comparison."""

import errno
import json
import os
import pathlib
import sys

import jax
import numpy as np

import hookline as hl
from hookline import clock, train

# Moments of a save in which a process fails, and how arrays are laid out.
from hookline.checkpoint import orbax_io
from hookline.checkpoint.directory import collective
from hookline.checkpoint.saving import moves
from hookline.coordination import process_group
from hookline.graph import placement
from hookline.session.running import launch_log

ME = jax.process_index()
FOLDER = pathlib.Path(sys.argv[2])
SCENARIOS = {}
ONCE = train.RetryPolicy(max_attempts=1)


def scenario(function):
    """Registers a scenario by its name; it gets its own folder, and its result is checked by a test."""
    SCENARIOS[function.__name__] = function
    return function


def values():
    """Returns the models' values: numbers that differ in all elements, more of them than a small node holds."""
    return {
        "rows": np.arange(256 * 24, dtype=np.float32).reshape(256, 24),
        "columns": np.arange(16 * 512, dtype=np.int32).reshape(16, 512) * 7 + 2**30,
        "both": np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 3 + 0.1,
        "bias": np.arange(4096, dtype=np.float32) + 0.25,
        "wide": np.arange(8 * 1024, dtype=np.float32).reshape(8, 1024) + 0.75,
        "number": np.float32(2.5),
    }


def layouts(turned=False, kind=jax.sharding.AxisType.Auto):
    """Returns the sharding of each; turned: with other pieces in other processes."""
    count = jax.device_count()
    mesh = jax.make_mesh((count // 2 or 1, min(2, count)), ("x", "y"), axis_types=(kind,) * 2)
    first, second = ("y", "x") if turned else ("x", "y")
    specs = {
        "rows": jax.P(first),
        "columns": jax.P(None, first),
        "both": jax.P(second, first),
        "wide": jax.P() if turned else jax.P(None, ("x", "y")),
    }
    return {name: jax.NamedSharding(mesh, specs.get(name, jax.P())) for name in values()}


class Model:
    """A graph with the values, or with as many zeros, and a session."""

    def __init__(self, zeros=False, turned=False):
        with hl.Graph().as_default() as self.graph:
            places = layouts(turned)
            self.variables = {
                name: hl.Variable(placement.device_put(value * 0 if zeros else value, places[name]), name=name)
                for name, value in values().items()
            }
            self.key = hl.Variable(jax.random.key(0 if zeros else 17), name="key")
            self.step = train.get_or_create_global_step()
            self.next = self.step.assign_add(1)
            self.clear = hl.group([v.assign(hl.op(lambda x: x * 0)(v)) for v in self.variables.values()])
            self.raise_bias = self.variables["bias"].assign_add(1.0)
            self.session = hl.Session()
            self.session.run(hl.global_variables_initializer())

    def wrong(self):
        """Returns the names of the variables whose values in this process differ anywhere from the saved ones."""
        found = self.session.backend.store.values([*self.variables.values(), self.key])
        wrong = [] if int(jax.random.key_data(placement.addressable_data(found["key"]))[1]) == 17 else ["key"]
        for name, value in values().items():
            shards = found[name].addressable_shards
            if not all(np.array_equal(shard.data, value[shard.index]) for shard in shards):
                wrong.append(name)
        return wrong


def failing(where, name, error, times=1000, process=0):
    """Makes a function raise an error in one process a given number of times; returns a function that undoes it."""
    before, left = getattr(where, name), [times]

    def fail(*arguments, **named):
        if process == ME and left[0]:
            left[0] -= 1
            raise error
        return before(*arguments, **named)

    setattr(where, name, fail)
    return lambda: setattr(where, name, before)


def said(function):
    """Returns the kind and the text of the error that a call raises."""
    try:
        return ["", str(function())]
    except Exception as error:
        return [type(error).__name__, str(error)]


def names(folder):
    """Returns the names in a folder, after all processes have arrived here."""
    if (others := process_group.current()) is not None:
        others.barrier("names")
    return sorted(name for name in os.listdir(folder) if not name.startswith(".hookline-"))


@scenario
def saves(folder):
    """Saves, lets the values go while they are written, and restores."""
    model = Model()
    with model.session as sess:
        pending = train.Saver().save_async(sess, str(folder / "model.ckpt"), model.step)
        sess.run(model.clear)
        pending.wait()
        cleared = model.wrong()
        train.Saver().restore(sess, pending.path)
        if ME == 0:  # A reader needs no other process.
            train.verify(pending.path)
        return [cleared, model.wrong(), os.path.basename(pending.path)]


@scenario
def restores_in_another_layout(folder):
    return restored(folder.parent / "saves" / "model.ckpt-0", turned=True)


def restored(path, turned=False):
    model = Model(zeros=True, turned=turned)
    with model.session as sess:
        kind, text = said(lambda: train.Saver().restore(sess, str(path)))
        return [kind, text] if kind else model.wrong()


@scenario
def restores_all(folder):
    """Restores the checkpoints of other jobs, whose names have their numbers of processes."""
    return {other.name: restored(other / "saves" / "model.ckpt-0") for other in sorted(FOLDER.parent.glob("of-*"))}


@scenario
def flipped_bits(folder):
    """Flips a bit of an element, in the file, and restores it in the other layout; `wide` in that of the save."""
    return flipped(folder, (False,), lambda name: (name != "wide",))


@scenario
def flipped_bits_everywhere(folder):
    """Does the same in both layouts, with checkpoints saved in both."""
    return flipped(folder, (False, True), lambda name: (False, True))


def flipped(folder, layouts_of_saves, layouts_of_restores):
    found = {}
    for turned in layouts_of_saves:
        model = Model(turned=turned)
        with model.session as sess:
            # Their elements lie in the last process, in its part of the last or of each row, or everywhere.
            for name, element in {"rows": 255 * 24 + 1, "wide": 1023, "bias": 3}.items():
                path = pathlib.Path(train.Saver().save(sess, str(folder / f"{name}-{turned}")))
                if ME == 0:
                    flip(path, values()[name].reshape(-1)[element].tobytes())
                names(folder)
                found[f"{name} {turned}"] = [restored(path, turned=to) for to in layouts_of_restores(name)]
    return found


def flip(path, pattern):
    """Flips a bit of the first such bytes in the data of a checkpoint."""
    for file in path.rglob("d/*"):
        data = bytearray(file.read_bytes())
        if (at := data.find(pattern)) >= 0:
            data[at] ^= 1
            file.write_bytes(data)
            return
    raise AssertionError(f"{pattern} is not in {path}")


@scenario
def disk_errors(folder):
    """Fills the disk: for the chief when it commits; then for the other when it writes; then for a moment."""
    model, found = Model(), []
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with model.session as sess:
        keeper = train.Saver(retry=ONCE)
        keeper.save(sess, str(folder / "model.ckpt"), 0)
        for process, (where, name) in enumerate([(moves, "commit"), (orbax_io, "start_writing")]):
            undo = failing(where, name, full, process=process)
            pending = keeper.save_async(sess, str(folder / "model.ckpt"), 1)
            found.append([*said(pending.wait), names(folder)])
            undo()
        undo = failing(orbax_io, "start_writing", full, times=2, process=1)
        patient = train.Saver(retry=train.RetryPolicy(max_attempts=3, initial_backoff_secs=0.01))
        path = patient.save(sess, str(folder / "model.ckpt"), 2)
        undo()
    return [*found, restored(path), names(folder)]


@scenario
def a_directory_that_cannot_be_made(folder):
    (folder / "file").write_text("")
    model = Model()
    with model.session as sess:
        return said(lambda: train.Saver(retry=ONCE).save(sess, str(folder / "file" / "model.ckpt"), 0))


@scenario
def another_has_the_directory(folder):
    """The test has it."""
    model = Model()
    with model.session as sess:
        keeper = train.Saver(retry=ONCE, lock_timeout_secs=0)
        found = said(lambda: keeper.save(sess, str(folder / "model.ckpt"), 0))
    return [found, said(lambda: trained(folder, 4, lock_timeout_secs=0))]


@scenario
def one_process_saves_elsewhere(folder):
    model = Model()
    with model.session as sess:
        return said(lambda: train.Saver().save(sess, str(folder / f"model-{ME}"), 0))


class Listener(train.CheckpointSaverListener):
    """Notes its calls; may fail, or ask for a stop."""

    def __init__(self, fails_at=None, stops_at=None):
        self.calls, self.fails_at, self.stops_at = [], fails_at, stops_at

    def begin(self):
        self.calls.append("begin")

    def before_save(self, session, global_step_value):
        self.calls.append(f"before {global_step_value}")
        if global_step_value == self.fails_at:
            raise ZeroDivisionError("by the listener")

    def after_save(self, session, global_step_value):
        self.calls.append(f"after {global_step_value}")
        return global_step_value == self.stops_at

    def end(self, session, global_step_value):
        self.calls.append("end")


class Counts(train.SessionRunHook):
    """A hook with a state."""

    trigger = train.every(3)

    def __init__(self):
        self.count, self.began = 0, None

    def on_trigger(self, firing):
        self.count += 1

    def get_state(self):
        return {"count": np.int64(self.count)}

    def set_state(self, state):
        self.count = self.began = int(state["count"])


def trained(
    folder, last_step, listener=None, restore="latest", hooks=(), saver_class=train.CheckpointSaverHook, **named
):
    """Trains to a step, with checkpoints; returns the step, the sum, and where it began."""
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        place = layouts()["rows"]
        weights = hl.Variable(placement.device_put(np.zeros((256, 24), np.float32), place), name="weights")
        train_op = hl.group(weights.assign_add(np.float32(1)), step.assign_add(1))
        total = hl.op(lambda weights: weights.sum())(weights)
        listeners = None if listener is None else [listener]
        saving = saver_class(str(folder), save_steps=4, listeners=listeners, **named)
        creator = train.ChiefSessionCreator(checkpoint_dir=str(folder), restore=restore)
        every = [saving, train.StopAtStepHook(last_step=last_step), *hooks]
        with train.MonitoredSession(creator, hooks=every) as sess:
            began = sess.raw_session().origin
            while not sess.should_stop():
                sess.run(train_op)
            raw = sess.raw_session()
            return [raw.global_step, float(raw.run(total)), began.replace(str(folder), "")]


@scenario
def a_training_that_goes_on(folder):
    listener, counts, again = Listener(), Counts(), Counts()
    found = [trained(folder, 10, listener, hooks=[counts]), trained(folder, 14, hooks=[again])]
    return [*found, listener.calls, again.began, names(folder)]


@scenario
def a_listener_that_asks_for_a_stop(folder):
    return trained(folder, 20, Listener(stops_at=8))[:2]


@scenario
def a_listener_that_fails(folder):
    found = said(lambda: trained(folder, 20, Listener(fails_at=8)))
    names(folder)

    class Held(train.CheckpointSaverHook):
        """Fails in process 0 only after process 1 has ended because of it."""

        def save(self, session, global_step):
            try:
                return super().save(session, global_step)
            except ZeroDivisionError:
                while not os.path.exists(folder / "has_ended"):
                    clock.sleep(0.01)
                raise

    again = said(lambda: trained(folder, 20, Listener(fails_at=12), saver_class=Held))
    if ME == 1:
        (folder / "has_ended").touch()
    return [found, again]


@scenario
def a_broken_newest(folder):
    trained(folder, 8)
    if ME == 0:
        flip(folder / "model.ckpt-8", np.float32(8).tobytes())
    names(folder)
    refused = said(lambda: trained(folder, 12))
    return [refused, trained(folder, 12, restore="latest-valid"), names(folder)]


@scenario
def a_rollback(folder):
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        weights = hl.Variable(placement.device_put(np.ones(8, np.float32), layouts()["bias"]), name="weights")
        bad = hl.op(lambda step: (step == 9) * np.float32("nan"))(step)
        train_op = hl.group(weights.assign_add(hl.op(lambda bad: 1 + bad)(bad)), step.assign_add(1))
        loss = hl.op(lambda weights: weights.sum(), name="loss")(weights)
        hooks = [
            train.CheckpointSaverHook(str(folder), save_steps=4),
            train.NanTensorHook(loss, on_nan="rollback"),
            train.StopAtStepHook(last_step=14),
        ]
        with train.MonitoredSession(hooks=hooks) as sess:
            while not sess.should_stop():
                sess.run(train_op)
            return [sess.raw_session().global_step, float(sess.raw_session().run(loss))]


@scenario
def processes_that_part(folder):
    """One makes a run more, without a collective, which nothing else would notice; then one alone saves.

    The last, for they are not at the same place afterwards.
    """
    collective.START_TIMEOUT_SECS = 1.0
    model, keeper = Model(), train.Saver()
    with model.session as sess:
        sess.run(model.raise_bias)
        if ME == 1:
            sess.run(model.raise_bias)
        found = [said(lambda: keeper.save(sess, str(folder / "model.ckpt"), 0)), names(folder)]
        launch_log.current().reset()  # Else that difference is reported again.
        return [*found, said(lambda: keeper.save(sess, str(folder / "model.ckpt"), 1)) if ME == 0 else None]


@scenario
def is_killed(folder):
    """One process is killed in the midst of its fourth save."""
    victim, where = int(sys.argv[3]), sys.argv[4]
    model = Model()
    with model.session as sess:
        keeper = train.Saver(max_to_keep=2)
        for step in range(4):
            if step == 3 and victim == ME:
                module, name = {"part": (orbax_io, "start_writing"), "commit": (moves, "commit")}[where]
                setattr(module, name, lambda *_, **__: os.kill(os.getpid(), 9))
            path = keeper.save(sess, str(folder / "model.ckpt"), step)
            print(json.dumps(path), flush=True)


if __name__ == "__main__":
    for each in sys.argv[1].split(","):
        here = FOLDER / each
        here.mkdir(parents=True, exist_ok=True)
        print(json.dumps([each, SCENARIOS[each](here)]), flush=True)
