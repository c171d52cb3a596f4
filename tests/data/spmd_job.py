"""Scenarios of data by process, run one after another in each of several SPMD processes; prints the results.

Arguments: a folder for what the processes leave to each other.
"""

from __future__ import annotations

import collections
import faulthandler
import json
import logging
import math
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import hookline as hl
from hookline import train
from hookline.data.lazy_gather import LazyGather  # What a process does not gather shows in no batch.
from hookline.train import Coordinator

ME = jax.process_index()
SCENARIOS = {}
DATA = {"x": np.arange(44, dtype="float32").reshape(22, 2), "y": np.arange(22)}


def scenario(function):
    """Registers a scenario, in this order; a test checks its result."""
    SCENARIOS[function.__name__] = function
    return function


def folder():
    return Path(sys.argv[1])


def plain(value):
    """Returns a batch as JSON."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf).tolist() for leaf in jax.tree.leaves(value)]


def source(last=22, **options):
    return hl.data.from_arrays(
        jax.tree.map(lambda leaf: leaf[:last], DATA), 4, **{"shuffle_seed": 1, "epochs": 2, **options}
    )


def part(count=3, rows=2, base=100):
    """Batches of this process alone."""
    return [np.arange(rows, dtype="float32") + base * ME + 10 * number for number in range(count)]


def read(given, most=99, **options):
    """Returns the batches that runs get, whole, and how they end."""
    with hl.Graph().as_default():
        batch = hl.data.iterator(given, **options)
        found = []
        with hl.Session() as session:
            try:
                while len(found) < most:
                    found.append(plain(session.run(batch)))
            except hl.errors.OutOfRangeError as error:
                found.append("the end" if "have ended" in str(error) else str(error))
    return found


def refused(given, **options):
    """Returns the error of the construction or of a run, and the number of that run."""
    with hl.Graph().as_default(), hl.Session() as session:
        number = 0
        try:
            batch = hl.data.iterator(given, **options)
            while number < 9:
                number += 1
                session.run(batch)
        except Exception as error:
            return [type(error).__name__, str(error), number]
    return None


def rows(*devices, axes=("data",)):
    """Returns the sharding of the first dimension over a mesh of these devices: numbers, or rows of them."""
    mesh = jax.sharding.Mesh(np.array(jax.devices())[np.array(devices)], axes)
    return jax.NamedSharding(mesh, jax.P("data"))


class Sums(train.SessionRunHook):
    """Records its fetches at every third step."""

    trigger = train.every(3)

    def __init__(self, fetches):
        self.fetches, self.found = fetches, []

    def on_trigger(self, firing):
        self.found.append([firing.global_step, np.asarray(firing.values).tolist()])


def trained(given, steps_per_run, **options):
    """Trains on ordered batches; returns the result, a hook's record, and how runs took batches."""
    with hl.Graph().as_default():
        batch = hl.data.iterator(given, **options)
        step = train.get_or_create_global_step()
        total = hl.Variable(jnp.zeros((), jnp.int32), name="total")
        summed = hl.op(lambda batch: sum(leaf.sum().astype(jnp.int32) for leaf in jax.tree.leaves(batch)))(batch)
        after = hl.op(lambda total, summed: (total * 31 + summed) % 1000003)(total, summed)
        train_op, hook, counts = hl.group(total.assign(after), step.assign_add(1)), Sums(summed), []
        with train.MonitoredSession(hooks=[hook], steps_per_run=steps_per_run) as session:
            while not session.should_stop():
                found = np.asarray(session.run([summed, train_op])[0])
                counts.append(int(found.size))
                last = int(session.raw_session().run(total))
    return [last, hook.found, counts]


@scenario
def arrays_shuffled_and_padded():
    return read(source(), last_batch="pad")


@scenario
def arrays_with_the_last_batch_dropped():
    return read(source(shuffle_seed=None), last_batch="drop")


@scenario
def arrays_with_a_smaller_last_batch():
    return read(source(last=20, epochs=1), last_batch="keep")


@scenario
def arrays_over_a_mesh_in_another_order():
    return read(source(last=20, epochs=1), sharding=rows(2, 0, 3, 1))


@scenario
def arrays_of_other_dtypes():
    tree = {"x": np.arange(8.0), "y": np.arange(8, dtype="int64"), "z": np.arange(8, dtype="uint8")}
    return read(hl.data.from_arrays(tree, 4, shuffle_seed=2))


@scenario
def each_process_gathers_its_own_rows():
    gathered, get = collections.Counter(), LazyGather.__getitem__

    def counted(self, index):
        found = get(self, index)
        gathered[len(self.array)] += found[: self._num_used].size
        return found

    LazyGather.__getitem__ = counted
    try:
        alone = trained(hl.data.from_arrays(np.arange(40, dtype="int32"), 8, shuffle_seed=1), 1)
        blocks = trained(hl.data.from_arrays(np.arange(48, dtype="int32"), 8, shuffle_seed=1), 3)
    finally:
        LazyGather.__getitem__ = get
    return [alone[0], blocks[0], gathered[40], gathered[48]]


@scenario
def several_steps_a_run():
    return [trained(source(last=20, epochs=3), count) for count in (1, 4)]


@scenario
def several_steps_a_run_of_a_source_that_waits():
    def slowly():
        for number, batch in enumerate(part(11)):
            if number % 4 == ME:
                time.sleep(0.02)
            yield batch

    return [trained(slowly, count, num_batches=11, prefetch=3) for count in (1, 4)]


@scenario
def parts():
    return read(part())


@scenario
def parts_over_a_mesh_in_another_order():
    return read(part(rows=4), sharding=rows(2, 0, 3, 1))


@scenario
def parts_with_a_common_axis():
    sharding = rows([0, 2], [1, 3], axes=("data", "model"))
    alike = [np.arange(4, dtype="float32") + number for number in range(2)]
    return [read(alike, sharding=sharding), refused(part(rows=4), sharding=sharding)]


@scenario
def parts_in_a_tree():
    batches = [{"x": batch[:, None] * np.ones(3, "float32"), "y": batch.astype("int64")} for batch in part(2)]
    return read(batches)


@scenario
def parts_of_random_keys():
    keys = [jax.random.split(jax.random.key(10 * ME + number), 2) for number in range(2)]
    return [read(keys), plain(keys)]


@scenario
def parts_that_are_padded():
    return read([*part(2), *part(1, rows=1 + ME, base=50)], last_batch="pad")


@scenario
def parts_that_are_dropped():
    batches = [*part(3), part(1, rows=1)[0]]
    return [
        read(batches, last_batch="drop"),
        read(lambda: batches, last_batch="drop"),
        read(lambda: iter(batches), last_batch="drop", num_batches=3),
    ]


@scenario
def lengths_that_differ():
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("hookline").addHandler(handler)
    found = read(part(3 + 2 * ME), prefetch=2)
    logging.getLogger("hookline").removeHandler(handler)
    return [len(found), found[-1], records]


@scenario
def a_source_that_never_ends():
    def forever():
        number = 0
        while True:
            yield np.full(2, 100 * ME + number, "float32")
            number += 1

    return read(forever, most=4, num_batches=math.inf)


@scenario
def a_function_that_makes_arrays():
    return read(lambda: hl.data.from_arrays(np.arange(6, dtype="float32") + 100 * ME, 2))


@scenario
def equal_parts_that_may_be_equal():
    return read(part(2, base=0), check_disjoint=False)


@scenario
def what_is_refused():
    def fails():
        if ME == 1:
            raise OSError("no such disk")
        yield part(1)[0]

    def smaller():
        yield from part(1)
        yield part(1, rows=1)[0]

    number = np.float32(3)
    whole = jax.make_array_from_callback((4,), rows(0, 1, 2, 3), lambda index: np.arange(4.0)[index])
    return {
        "identical": refused(part(base=0)),
        "unknown length": refused(lambda: iter(part())),
        "unknown length, with a spec": refused(lambda: iter(part()), spec=np.zeros(2, "float32")),
        "text": refused([{"x": part(1)[0], "name": np.array(["a", "b"])}]),
        "a number alone": refused([(part(1)[0], number)]),
        "a smaller last batch of a list": refused([*part(1), part(1, rows=1)[0]]),
        "a smaller last batch": refused(smaller, num_batches=2),
        "other arrays": refused(hl.data.from_arrays(np.arange(8.0) + ME, 4)),
        "parts as arrays": refused(hl.data.from_arrays(np.arange(8.0 - 4 * ME), 4)),
        "another batch size": refused(hl.data.from_arrays(np.arange(16.0), 4 + 4 * ME)),
        "a batch that is not split": refused(hl.data.from_arrays(np.arange(8.0), 6), sharding=rows(0, 1, 2, 3)),
        "a part that is not split": refused(part(rows=3)),
        "other forms": refused([np.zeros((2, 2 + ME), "float32")]),
        "a whole array": refused([whole]),
        "one device": refused(part(), device=jax.devices()[0]),
        "an early end": refused(lambda: iter(part(2)), num_batches=3),
        "an error in one process": refused(fails, spec=np.zeros(2, "float32"), num_batches=2),
    }


def positions(session, name="iterator"):
    """Returns where a session is in an iterator, as JSON."""
    _, found = session.backend.values_with_positions([], [name])
    return json.loads(json.dumps(found[name].value))


def gone_on(given, position, most=99, **options):
    """Returns the batches behind a position; or the error."""
    with hl.Graph().as_default():
        batch, found = hl.data.iterator(given, **options), []
        with hl.Session() as session:
            session.backend.load({}, positions={"iterator": position})
            try:
                while len(found) < most:
                    found.append(plain(session.run(batch)))
            except hl.errors.OutOfRangeError:
                found.append("the end")
            except hl.errors.OpError as error:
                return [type(error).__name__, str(error)]
    return found


def used(given, count, **options):
    """Returns the position after some batches."""
    with hl.Graph().as_default():
        batch = hl.data.iterator(given, **options)
        with hl.Session() as session:
            for _ in range(count):
                session.run(batch)
            return positions(session)


@scenario
def arrays_go_on():
    """Goes on where one process has left, and leaves a position to it."""
    position = used(source(), 4, last_batch="pad")
    of_one = json.loads((folder() / "of_one.json").read_text())
    return [position, gone_on(source(), position, last_batch="pad"), gone_on(source(), of_one, last_batch="pad")]


@scenario
def arrays_go_on_with_another_batch_size():
    return gone_on(hl.data.from_arrays(DATA, 8, shuffle_seed=1, epochs=2), used(source(), 4, last_batch="pad"))


@scenario
def parts_of_arrays_go_on_with_another_batch_size():
    """Of 8 examples of this process in each of 3 epochs, 4 were used."""

    def of_this_process(size, epochs=3):
        return lambda: hl.data.from_arrays(np.arange(8) + 100 * ME, size, epochs=epochs)

    position = used(of_this_process(2), 2)
    return [gone_on(of_this_process(size), position, last_batch="drop") for size in (4, 6)]


class Stateful:
    """Batches of this process, with a state of arrays and bytes."""

    def __init__(self, count=6):
        self.at, self.count = 0, count

    def __len__(self):
        return self.count

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.count:
            raise StopIteration
        self.at += 1
        return np.full(2, 100 * ME + self.at, "float32")

    def get_state(self):
        return {"at": np.array([self.at]), "who": (f"{ME}", b"\xff"), "more": [None, 1.5]}

    def set_state(self, state):
        assert state["who"] == (f"{ME}", b"\xff"), state
        self.at = int(state["at"][0])


@scenario
def parts_go_on():
    found = {}
    for name, made in {"a list": part(6), "a state": Stateful, "an iterator with a state": Stateful()}.items():
        position = used(made, 2)
        found[name] = [gone_on(made, position), position["count"], len(position["of"])]
    position = used(part(6), 2)
    found["none used"] = gone_on(part(6), used(part(6), 0))
    found["of three"] = gone_on(part(6), {**position, "of": [*position["of"], position["of"][0]]})
    found["of one"] = gone_on(part(6), {"count": 2, "crc32c": 5})
    found["for arrays"] = gone_on(source(), position, last_batch="pad")
    return found


@scenario
def a_checkpoint():
    """Saves and restores as a script does."""
    found = []
    for last_step in (3, 7):
        with hl.Graph().as_default():
            batch = hl.data.iterator(part(9), name="parts")
            shuffled = hl.data.iterator(source(last=20), name="arrays")
            step = train.get_or_create_global_step()
            total = hl.Variable(jnp.zeros(()), name="total")
            both = hl.op(lambda total, a, b: total * 2 + a.sum() + b["x"].sum())(total, batch, shuffled)
            train_op = hl.group(total.assign(both), step.assign_add(1))
            with train.MonitoredTrainingSession(
                checkpoint_dir=str(folder() / "job"),
                hooks=[train.StopAtStepHook(last_step=last_step)],
                save_checkpoint_steps=100,
                log_step_count_steps=None,
            ) as session:
                while not session.should_stop():
                    session.run(train_op)
                found.append(float(session.raw_session().run(total)))
    return found


@scenario
def grain():
    import grain as library

    whole = library.MapDataset.source(np.arange(24, dtype="float32")).shuffle(seed=3)
    mine = whole[ME :: jax.process_count()].batch(2)
    position = used(mine, 2)
    return [
        read(mine),
        read(mine.to_iter_dataset(), num_batches=6),
        gone_on(mine, position),
        refused(mine.to_iter_dataset())[1],
        refused(whole.batch(2))[1],
        plain([whole[number] for number in range(24)]),
    ]


@scenario
def what_the_thread_calls():
    """Records the prefetching thread's calls into JAX, and the devices of its arrays."""
    called, places = collections.Counter(), set()

    def note(frame, event, argument):
        code = frame.f_code
        if event != "call" or not threading.current_thread().name.startswith("hookline-data"):
            return
        if "/jax/" in code.co_filename:
            called[code.co_name] += 1
            if code.co_name == "batched_device_put":
                places.update(device.process_index for device in frame.f_locals["devices"])

    def waiting():
        for batch in part(12):
            time.sleep(0.002)
            yield {"x": batch, "y": np.ones((2, 300), "float32")}

    threading.setprofile(note)
    try:
        with hl.Graph().as_default():
            batch = hl.data.iterator(
                waiting, num_batches=12, prefetch=2, spec={"x": part(1)[0], "y": np.ones((2, 300), "f4")}
            )
            shuffled = hl.data.iterator(hl.data.from_arrays(np.arange(200.0), 8, epochs=4), prefetch=2, name="arrays")
            found = hl.op(lambda batch, more: batch["x"].sum() + more.sum())(batch, shuffled)
            with hl.Session() as session:
                for _ in range(10):
                    session.run(found)
    finally:
        threading.setprofile(None)
    return [sorted(called), sorted(places)]


@scenario
def a_stop_changes_nothing_that_runs_get():
    with hl.Graph().as_default():
        batch, coord, found = hl.data.iterator(part(8), prefetch=2), Coordinator(), []
        with hl.Session() as session:
            session.backend.attach_coordinator(coord)
            for number in range(8):
                found.append(plain(session.run(batch)))
                if number == 3 and ME == 1:
                    coord.request_stop()
    return found


@scenario
def a_run_that_fails_leaves_its_batch():
    with hl.Graph().as_default():
        batch = hl.data.iterator(part(4))
        step = train.get_or_create_global_step()
        seen = hl.op(lambda batch: batch.sum())(batch)
        train_op = hl.group(step.assign_add(1))
        with hl.Session() as session:
            session.run([step.initializer, seen])
            session.run(train_op)
            session.run([train_op, seen], options=hl.RunOptions(last_step=1))
            return [float(session.run(seen)), positions(session)["count"]]


@scenario
def the_default_follows_the_variables():
    with hl.Graph().as_default():
        batch = hl.data.iterator(source(last=20, epochs=1))
        where = jax.NamedSharding(rows(3, 1, 2, 0).mesh, jax.P())
        weight = hl.Variable(jnp.ones(2), name="weight", sharding=where)
        found = hl.op(lambda weight, batch: (weight * batch["x"]).sum())(weight, batch)
        with hl.Session() as session:
            session.run(hl.global_variables_initializer())
            return [float(session.run(found)) for _ in range(2)]


def loop(batches, **options):
    def train_step(state, batch):
        return {"seen": state["seen"] * 2 + batch.sum()}, {"loss": batch.mean()}

    return train.Loop(train_step, {"seen": jnp.zeros(())}, batches, **options)


@scenario
def a_loop():
    found = []
    for options in ({}, {"batch_sharding": jax.P("data")}, {"steps_per_run": 3}):
        state = loop(hl.data.from_arrays(np.arange(64, dtype="float32"), 8, shuffle_seed=5), **options).run(
            progress=False
        )
        found.append(float(state["seen"]))
    found.append(float(loop(part(6)).run(progress=False)["seen"]))
    with hl.Graph().as_default():
        batches = hl.data.iterator(lambda: iter(part(6)), num_batches=6)
    found.append(float(loop(batches).run(progress=False)["seen"]))
    return found


@scenario
def a_loop_over_several_lengths():
    """Records parts of 2 rows, and the lengths that its step was traced for."""
    found = []
    for steps_per_run in (1, 3):
        traced = set()

        def train_step(state, batch, traced=traced):
            if isinstance(batch.shape[0], int):
                traced.add(batch.shape)
            return {"seen": state["seen"] * 2 + batch.sum()}, {}

        parts = [np.full((2, length), ME + 1.0, "float32") for length in (4, 8, 8, 4, 6, 6)]
        made = train.Loop(train_step, {"seen": jnp.zeros(())}, parts, steps_per_run=steps_per_run)
        found.append([float(made.run(progress=False)["seen"]), sorted(traced)])
    return found


@scenario
def a_loop_without_batches():
    """The state of one that was started twice, and of one that was not interrupted; with one step a run, and with 4."""

    def train_step(state, key):
        return {"w": state["w"] + jax.random.normal(key, (4,))}, {"mean": state["w"].mean()}

    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    found = []
    for number, (steps_per_run, options) in enumerate(
        [(1, {}), (4, {}), (4, {"sharding": jax.NamedSharding(mesh, jax.P("data"))})]
    ):
        for name, ends in (("whole", [10]), ("parts", [3, 10])):
            for last_step in ends:
                made = train.Loop(train_step, {"w": jnp.zeros(4)}, None, seed=1, steps_per_run=steps_per_run, **options)
                made.run(str(folder() / f"none {number} {name}"), last_step, progress=False, nan_check=None)
            found.append(float(jax.jit(jnp.sum)(made.result["w"])))
    return found


@scenario
def epochs():
    """The steps at which epochs end, with a restart in one: of arrays, of parts, and of parts of different lengths."""

    class Fired(train.SessionRunHook):
        def __init__(self):
            self.trigger, self.steps = train.every("epoch"), []

        def on_trigger(self, firing):
            self.steps.append(firing.global_step)

    found = []
    of_arrays = lambda: hl.data.from_arrays(np.arange(32, dtype="float32"), 8)  # noqa: E731
    for name, make in (("arrays", of_arrays), ("parts", lambda: part(4)), ("unequal", lambda: part(4 + ME))):
        for last_step in (6, None):
            hook = Fired()
            try:
                loop(make()).run(str(folder() / f"epochs of {name}"), last_step, epochs=3, hooks=[hook], progress=False)
                found.append(hook.steps)
            except ValueError as error:
                found.append(str(error))
    return found


@scenario
def passes():
    """The sums of a second run, and of two passes with a restart in the second one."""
    found = []
    for name, batches in (("arrays", hl.data.from_arrays(np.arange(32, dtype="float32"), 8)), ("parts", part(4))):
        made = loop(batches)
        made.run(progress=False)
        made.run(progress=False)
        of_run = [float(made.result["seen"])]
        for arguments in ({"last_step": 6}, {}, {}):
            begun = loop(batches)
            begun.run(str(folder() / f"passes of {name}"), epochs=2, progress=False, **arguments)
            of_run.append(float(begun.result["seen"]))
        found.append(of_run)
    return found


@scenario
def one_process_stops_for_good():
    """The last steps of a training that process 1 alone has declared complete, and of its next start."""

    class Stop(train.SessionRunHook):
        trigger = train.at_steps(3)

        def on_trigger(self, firing):
            if ME == 1:
                firing.context.request_stop(final="enough")

    found = []
    for hooks in ([Stop()], []):
        made = loop(hl.data.from_arrays(np.ones(160, dtype="float32"), 8))
        made.run(
            str(folder() / "for good"),
            20,
            hooks=hooks,
            progress=False,
            checkpoints=train.CheckpointOptions(save_steps=1),
        )
        found.append(hl.train.latest_checkpoint(str(folder() / "for good")).rpartition("-")[2])
    return found


@scenario
def dropout():
    """Applies dropout to the weights, which are replicated, and to a batch, which is sharded."""
    with hl.Graph(seed=3).as_default(), hl.Session() as session:
        batch = hl.data.iterator(hl.data.from_arrays(np.ones(16, "float32"), 16))
        weights = hl.Variable(jnp.ones(16), name="weights")
        drop = hl.op(lambda key, x: jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0))
        key = hl.random_key()
        session.run(hl.global_variables_initializer())
        return [np.asarray(kept).tolist() for kept in session.run((drop(key, weights), drop(key, batch)))]


@scenario
def means_by_process():
    numbers, found = np.arange(16, dtype="float32"), []
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    explicit = jax.NamedSharding(mesh, jax.P("data"))
    for place in (None, rows(2, 3, 0, 1), explicit, jax.NamedSharding(mesh, jax.P())):
        with hl.Graph().as_default(), hl.Session() as session:
            batch = hl.data.iterator(hl.data.from_arrays(np.stack([numbers, numbers + 1], 1), 8), sharding=place)
            means = hl.op(lambda x: hl.data.per_process_mean("mean", x))(batch)
            found.append({name: float(mean) for name, mean in session.run(means).items()})

    def train_step(state, batch):
        batch, mask = batch
        bad = jnp.where(batch == 13, jnp.nan, batch)
        return state, hl.data.per_process_mean("mean", batch, mask=mask) | hl.data.per_process_mean(
            "bad", bad, mask=mask
        )

    # The last batch has one row, which goes whole to each device.
    with hl.Graph().as_default(), hl.Session() as session:
        means = hl.op(lambda x: hl.data.per_process_mean("mean", x))(
            hl.data.iterator(hl.data.from_arrays(numbers[:9], 8))
        )
        found.append([{name: float(mean) for name, mean in session.run(means).items()} for _ in range(2)][1])

    # Process 1 has the first rows here.
    options = {"batch_sharding": rows(2, 3, 0, 1), "last_batch": "pad", "steps_per_run": 2}
    made = train.Loop(
        train_step, {"w": jnp.zeros(())}, hl.data.from_arrays(np.arange(18, dtype="float32"), 8), **options
    )
    with made.session(progress=False) as session:
        session.run(made.train_op)  # The first step is a run of its own, which hooks fire in.
        of_steps = session.run((made.train_op, made.metrics))[1]
        found.append({name: np.nan_to_num(rows, nan=-1.0).tolist() for name, rows in of_steps.items()})
    return found


@scenario
def an_evaluation():
    def evaluate(state, batch):
        batch, mask = batch if isinstance(batch, tuple) else (batch, jnp.ones(len(batch)))
        return {"mean": (batch * mask).sum() / mask.sum()}

    found = []
    numbers = np.arange(20, dtype="float32") ** 2
    mine = numbers[:12] if ME == 0 else numbers[12:19]
    for batches, options in [
        (hl.data.from_arrays(numbers, 8, shuffle_seed=1), {"last_batch": "pad"}),
        (hl.data.from_arrays(numbers, 8), {"last_batch": "pad", "steps_per_run": 2}),
        (lambda: hl.data.from_arrays(mine, 4), {"last_batch": "pad"}),
        ([mine[:4], mine[4:6]] if ME == 0 else [mine[:4], mine[4:7], mine[:4]], {"last_batch": "pad"}),
        ([numbers[:4]], {}),
        (lambda: iter([mine[:4]] if ME == 0 else []), {}),
        (failing, {}),
    ]:
        hook, runs = train.Evaluate(evaluate, batches, every=100, **options), CountRuns()
        try:
            loop(part(2)).run(progress=False, hooks=[hook, runs])
            found.append(hook.values["mean"])
        except Exception as error:
            found.append([type(error).__name__, str(error), runs.count])
    return found


@scenario
def an_evaluation_that_counts_its_examples():
    """Means of the first number of a batch, weighted by the sum of the batch."""
    found, numbers = [], np.arange(1, 17, dtype="float32")
    for batches in (hl.data.from_arrays(numbers, 8), [batch for batch in numbers.reshape(2, 2, 4)[:, ME]]):
        hook = train.Evaluate(
            lambda state, batch: {"first": batch[0]}, batches, every=100, batch_size=lambda batch: batch.sum()
        )
        loop(part(2)).run(progress=False, hooks=[hook])
        found.append(hook.values["first"])
    return found


class CountRuns(train.SessionRunHook):
    count = 0

    def after_run(self, run_context, run_values):
        self.count += 1


def failing():
    yield part(1)[0]
    if ME == 1:
        raise OSError("no such disk")
    yield part(1)[0]


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100, exit=True)
    for name, found in SCENARIOS.items():
        if name in sys.argv[2:] or len(sys.argv) == 2:
            print(json.dumps([name, found()]), flush=True)
