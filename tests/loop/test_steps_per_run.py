"""Several steps in one run give the results of single steps: the same bits, points, batches and ends."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tests import python
from tests.resume.events import shown

import hookline as hl
from hookline import train
from hookline.testing import FakeClock

from .devices import run as run_on_devices
from .killed_steps import LAST_STEP, WHOLE
from .steps import WRITTEN, X, Y, batches, mse

FORMS = ["nnx", "nnx, functional", "equinox, filter_jit", "linen, jitted"]
MANY = [4, 16, 64]


def bits(state):
    """Returns all numbers of a state, also of the objects in it."""
    leaves = jax.tree.leaves(nnx.state(state) if isinstance(state, tuple) and _has_objects(state) else state)
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
    return [np.asarray(jax.random.key_data(a) if _is_key(a) else a).tobytes() for a in arrays]


def _has_objects(state):
    return isinstance(state[0], nnx.Module)


def _is_key(leaf):
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def saved(caplog):
    """Returns the steps of the checkpoints that the log names."""
    return [int(line.rpartition("-")[2].rstrip(".")) for line in caplog.messages if line.startswith("Saved checkpoint")]


def ended(caplog):
    """Returns the log lines with metrics and steps, without the times."""
    lines = [re.sub(r" \([\d.]+ sec\)", "", line) for line in caplog.messages if line.startswith("step ")]
    caplog.clear()
    return lines


# The same bits -----------------------------------------------------------------------------------------------------


def mlp(key):
    one, other = jax.random.split(key)
    return {"w": jax.random.normal(one, (4, 33)) / 2, "b": jnp.zeros(33), "v": jax.random.normal(other, (33,)) / 6}


def mlp_loss(params, batch):
    x, y = batch
    return mse(jnp.tanh(x @ params["w"] + params["b"]) @ params["v"], y)


def transformer(key, depth=2):
    keys = iter(jax.random.split(key, 10))
    make = lambda *shape: jax.random.normal(next(keys), shape) / shape[0] ** 0.5  # noqa: E731
    blocks = [{"qkv": make(32, 96), "out": make(32, 32), "up": make(32, 64), "down": make(64, 32)} for _ in range(2)]
    return {"places": make(4, 32), "inner": make(1, 32), "blocks": blocks[:depth]}


def shallow_transformer(key):
    return transformer(key, depth=1)


def transformer_loss(params, batch):
    x, y = batch
    seen = x[..., None] @ params["inner"] + params["places"]
    for block in params["blocks"]:
        q, k, v = jnp.split((jax.nn.standardize(seen) @ block["qkv"]).reshape(*seen.shape[:2], 12, 8), 3, axis=2)
        seen += jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(seen.shape) @ block["out"]
        seen += jax.nn.gelu(jax.nn.standardize(seen) @ block["up"]) @ block["down"]
    return mse(seen[:, -1].mean(axis=-1), y)


SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 10, 100)
OPTIMIZERS = {
    "sgd": optax.sgd(0.05),
    "adam": optax.adam(SCHEDULE),
    "clipped adamw": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(SCHEDULE)),
}


def plain_step(loss_fn, optimizer):
    def step(state, batch, key):
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
        changes, opt_state = optimizer.update(grads, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], changes)
        average = optax.incremental_update(params, state["average"], 0.1)
        noise = 1e-3 * jax.random.normal(key)
        return {"params": params, "opt_state": opt_state, "average": average, "noise": state["noise"] + noise}, {
            "loss": loss,
            "norm": optax.tree.norm(grads),
        }

    return step


@pytest.mark.rounding
@pytest.mark.parametrize("many", [[16], pytest.param(MANY, marks=pytest.mark.campaign)])
@pytest.mark.parametrize(
    ("make", "loss_fn", "optimizer"),
    [
        (mlp, mlp_loss, "clipped adamw"),
        (shallow_transformer, transformer_loss, "sgd"),
        *[pytest.param(mlp, mlp_loss, name, marks=pytest.mark.campaign) for name in ("sgd", "adam")],
        *[pytest.param(transformer, transformer_loss, name, marks=pytest.mark.campaign) for name in OPTIMIZERS],
    ],
)
def test_state_has_the_bits_of_single_steps(make, loss_fn, optimizer, many):
    params, chosen = make(jax.random.key(0)), OPTIMIZERS[optimizer]
    state = {"params": params, "opt_state": chosen.init(params), "average": params, "noise": jnp.zeros(())}
    step = plain_step(loss_fn, chosen)

    def trained(steps_per_run):
        loop = train.Loop(step, state, batches(), seed=7, steps_per_run=steps_per_run)
        return bits(loop.run(last_step=90 if 64 in many else 40, progress=False))

    single = trained(1)
    assert single != bits(state)
    for steps_per_run in many:
        assert trained(steps_per_run) == single


@pytest.mark.rounding
def test_gpu_program_with_a_loop_gives_the_same_bits(monkeypatch):
    """It is compiled for the processor here."""
    state = {"params": mlp(jax.random.key(0)), "noise": jnp.zeros(())}
    state |= {"opt_state": OPTIMIZERS["sgd"].init(state["params"]), "average": state["params"]}

    def trained(steps_per_run):
        loop = train.Loop(
            plain_step(mlp_loss, OPTIMIZERS["sgd"]), state, batches(), seed=7, steps_per_run=steps_per_run
        )
        return bits(loop.run(last_step=30, progress=False))

    single = trained(1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert trained(8) == single, "a single step, whole loops and a rest"


@pytest.mark.parametrize(
    ("kind", "many"), [(FORMS[0], [16]), *[pytest.param(kind, MANY, marks=pytest.mark.campaign) for kind in FORMS]]
)
def test_output_of_all_default_hooks_equals_that_of_single_steps(kind, many, tmp_path, caplog):
    last_step = 100 if 64 in many else 50
    caplog.set_level(logging.INFO, "hookline")

    def trained(steps_per_run):
        directory = str(tmp_path / str(steps_per_run))
        job = WRITTEN[kind]()
        evaluate = train.Evaluate(lambda *state_and_batch: {"one": 1.0}, [(X[:4], Y[:4])], 30)
        state = train.Loop(job.step, job.state, batches(), steps_per_run=steps_per_run).run(
            directory,
            last_step=last_step,
            hooks=[evaluate],
            checkpoints=train.CheckpointOptions(save_steps=10),
            logging=train.LoggingOptions(summary_steps=7, rate_steps=20),
            log_steps=5,
        )
        loaded = bits([train.load_variable(directory, name) for name in names_in(directory)])
        return bits(state), loaded, shown(directory), saved(caplog), ended(caplog)

    single = trained(1)
    for steps_per_run in many:
        several = trained(steps_per_run)
        for one, other in zip(several, single, strict=True):
            assert one == other
    assert single[3] == [*range(0, last_step + 1, 10)]
    assert len(single[4]) == last_step // 5
    assert [step for step, _ in single[2]["loss"]] == [*range(1, last_step + 1, 7)]


def names_in(directory):
    path = train.latest_checkpoint(directory)
    return [name for name, _ in train.list_variables(path) if name.startswith(("state/", "global_step"))]


def counting(state, batch):
    """The step of the tests of order: another order gives another result. It is exact."""
    seen = sum(leaf.sum() for leaf in jax.tree.leaves(batch))
    total = (state["total"] * 3 + seen) % 65521
    return {"total": total, "n": state["n"] + 1}, {"loss": total, "seen": seen}


def start():
    return {"total": jnp.zeros(()), "n": jnp.zeros((), int)}


ROWS = np.arange(230, dtype="float32").reshape(115, 2)


def endless(steps_per_run, step=counting):
    return train.Loop(step, start(), hl.data.from_arrays(ROWS[:100], 10, 1, epochs=None), steps_per_run=steps_per_run)


class Notes(train.SessionRunHook):
    def __init__(self, trigger, fetches=None):
        self.trigger, self.fetches, self.seen = trigger, fetches, []

    def on_trigger(self, firing):
        self.seen.append(firing.global_step)


def runs_of(loop, fetches=None, **keywords):
    """Returns the result of each run of a training."""
    quiet = train.LoggingOptions(rate_steps=None)
    with loop.session(progress=False, logging=quiet, **keywords) as session:
        found = []
        while not session.should_stop():
            found.append(session.run(loop.train_op if fetches is None else fetches))
    return found


def test_log_lines_end_no_run(caplog):
    caplog.set_level(logging.INFO, "hookline")
    runs = runs_of(endless(64), last_step=64 * 5, log_steps=3)
    assert len(runs) == 1 + 5, "the first one asks everybody"
    lines = ended(caplog)
    assert len(lines) == 107
    runs_of(endless(1), last_step=64 * 5, log_steps=3)
    assert ended(caplog) == lines


def test_run_with_deferred_results_ends_at_the_next_due_hook():
    """Deferred results are delivered in a run of several steps, and no step of it is counted twice."""

    class Late(train.SessionRunHook):
        deferred = True

        def __init__(self, fetches):
            self.trigger, self.fetches, self.seen = train.at_steps(5), fetches, []

        def on_trigger(self, firing):
            self.seen.append(firing.global_step)

    loop = endless(16)
    with loop.graph.as_default():  # It takes a while, and so has not come when its run is over.
        long = hl.op(lambda loss: (jnp.full((1500, 1500), loss) @ jnp.ones((1500, 1500))).sum())(loop.metrics["loss"])
    late, alone = Late(long), train.LoggingOptions(rate_steps=None)
    with loop.session(last_step=100, hooks=[late], progress=False, log_steps=None, logging=alone) as session:
        while not session.should_stop():
            session.run(loop.train_op)
            jax.block_until_ready(session.raw_session().snapshot())
    assert late.seen == [5]
    assert loop.result["n"] == 100


@pytest.mark.parametrize("last_step", [1000, pytest.param(10_000, marks=pytest.mark.campaign)])
def test_two_programs_serve_all_hooks_and_one_more_a_smaller_batch(last_step, caplog):
    caplog.set_level(logging.INFO, "hookline")

    class Each(train.SessionRunHook):
        def __init__(self, loop, steps):
            self.trigger, self.fetches = train.every(steps), loop.metrics

        def on_trigger(self, firing):
            pass

    def programs(data, log_steps):
        caplog.clear()
        loop = train.Loop(counting, start(), data, steps_per_run=64)
        hooks = [Each(loop, steps) for steps in (7, 11, 13, 100)]
        loop.run(last_step=last_step, hooks=hooks, progress=False, log_steps=log_steps)
        told = [line for line in caplog.messages if line.startswith("Compiling a program")]
        return len([line for line in told if "outputs none" not in line or "up to" in line])

    even, ragged = hl.data.from_arrays(ROWS[:100], 10, epochs=None), hl.data.from_arrays(ROWS, 10, epochs=None)
    assert programs(even, None) == 2
    assert programs(even, 10) == 2
    assert programs(ragged, None) <= 4, "of each of the two"


# Batches -----------------------------------------------------------------------------------------------------------


class Seen(train.SessionRunHook):
    """Records the batch of each step."""

    stacked = True

    def __init__(self, loop):
        self._args, self.seen, self.rows = train.SessionRunArgs(loop.metrics), [], []

    def before_run(self, run_context):
        return self._args

    def after_run(self, run_context, run_values):
        seen = np.asarray(run_values.results["seen"]).tolist()
        self.seen += seen
        self.rows.append(len(seen))


def came_to(source, steps_per_run, hooks=(), **keywords):
    """Returns the end of a training on a source, the batch of each step, the error, and the lengths of runs."""
    loop = train.Loop(counting, start(), source(), steps_per_run=steps_per_run, **keywords)
    seen, error = Seen(loop), None
    try:
        loop.run(hooks=[seen, *hooks], progress=False, log_steps=None)
    except Exception as raised:
        error = repr(raised)
    return loop.result and bits(loop.result), seen.seen, error, seen.rows


def lists(size=5, rows=ROWS):
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def failing():
    def batches():
        yield from lists()[:9]
        raise OSError("the disk is away")

    return batches


def one_is(other):
    return lambda: lambda: (batch if at != 9 else other(batch) for at, batch in enumerate(lists()))


def buffered():
    def batches():
        buffer = np.empty((5, 2), "float32")
        for batch in lists():
            buffer[...] = batch
            yield buffer

    return batches


class Loader:
    def __init__(self):
        self._at = 0

    def __iter__(self):
        while self._at < 23:
            self._at += 1
            yield lists()[self._at - 1]

    def state_dict(self):
        return {"at": self._at}

    def load_state_dict(self, state):
        self._at = state["at"]


def two(one, other):
    """Two iterators, one of which may end first."""

    def make():
        with hl.Graph().as_default():
            x = hl.data.iterator(lists()[:one], name="x")
            y = hl.data.iterator(lists(2)[:other], name="y")
            return hl.op(lambda x, y: (x, y))(x, y)

    return make


def iterator(**keywords):
    def make():
        with hl.Graph().as_default():
            return hl.data.iterator(hl.data.from_arrays(ROWS, 10, epochs=2), **keywords)

    return make


SOURCES = {
    "shuffled arrays": lambda: hl.data.from_arrays(ROWS, 10, 1, epochs=3),
    "arrays": lambda: hl.data.from_arrays(ROWS, 10, epochs=2),
    "generator function": lambda: lambda: iter(lists()),
    "one-shot iterator": lambda: iter(lists()),
    "list": lists,
    "list with smaller ones inside": lambda: [batch[: 5 if at % 5 else 3] for at, batch in enumerate(lists())],
    "loader": Loader,
    "arrays on the device": lambda: lambda: map(jnp.asarray, lists()),
    "structures": lambda: lambda: ({"x": batch, "n": (np.int64(1), np.bool_(True), 0.5)} for batch in lists()),
    "keys": lambda: lambda: map(jax.random.key_data, map(jax.random.key, range(20))),
    "the same buffer": buffered,
    "an error": failing,
    "one of another length": one_is(lambda batch: batch[:, :1]),
    "one of another form": one_is(lambda batch: batch[..., None]),
    "two iterators": two(20, 9),
    "two iterators, the other way round": two(7, 19),
    "an iterator": iterator(),
    "read ahead": iterator(prefetch=2),
    "not read ahead": iterator(prefetch=0),
    "padded": iterator(prefetch=2, last_batch="pad"),
}


# Part of `make test`: each way to the next batches.
QUICK = {
    "shuffled arrays",
    "one-shot iterator",
    "list with smaller ones inside",
    "arrays on the device",
    "structures",
    "the same buffer",
    "an error",
    "one of another length",
    "one of another form",
    "two iterators",
    "read ahead",
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.campaign) for kind in SOURCES]
)
def test_steps_see_the_same_batches_from_any_source(kind):
    single = came_to(SOURCES[kind], 1)
    assert len(single[1]) >= 7
    assert (single[2] is not None) == (kind in ("an error", "one of another form"))
    for steps_per_run in (4, 64):
        *several, rows = came_to(SOURCES[kind], steps_per_run)
        assert several == [*single[:3]]
        assert max(rows) == 4 or steps_per_run > 4
        assert came_to(SOURCES[kind], steps_per_run, hooks=[Notes(train.every(5))])[:3] == single[:3]


@pytest.mark.parametrize(
    ("shuffle_seed", "last_batch"),
    [
        (None, "keep"),
        (1, "pad"),
        *[
            pytest.param(*case, marks=pytest.mark.campaign)
            for case in ((1, "keep"), (None, "drop"), (1, "drop"), (None, "pad"))
        ],
    ],
)
def test_smaller_last_batches_are_kept_dropped_and_padded_alike(shuffle_seed, last_batch):
    source = lambda: hl.data.from_arrays(ROWS, 10, shuffle_seed, epochs=3)  # noqa: E731
    single = came_to(source, 1, last_batch=last_batch)
    assert len(single[1]) == (33 if last_batch == "drop" else 36)
    for steps_per_run in (4, 64):
        assert came_to(source, steps_per_run, last_batch=last_batch)[:3] == single[:3]


@pytest.mark.parametrize("last_step", [22, 24, *[pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2, 23)]])
def test_data_may_end_within_a_run(last_step, caplog):
    found = [train.Loop(counting, start(), lists(), steps_per_run=n).run(last_step=last_step) for n in (1, 16)]
    assert found[0] == found[1]
    assert found[1]["n"] == min(last_step, 23)
    told = [line for line in caplog.messages if "the data ended at global step 23" in line]
    assert len(told) == 2 * (last_step > 23)


def test_text_and_objects_are_refused_with_the_reason():
    with pytest.raises(TypeError, match=r"text at \['name'\]: 'zero'"):
        train.Loop(counting, start(), [{"x": ROWS[:5], "name": "zero"}], steps_per_run=8)
    with hl.Graph().as_default():
        batch = hl.data.iterator([{"x": ROWS[:5], "name": "zero"}] * 9)
        step = train.get_or_create_global_step()
        total = hl.Variable(0.0, name="total")
        train_op = hl.group(total.assign_add(hl.op(lambda x: x.sum())(batch["x"])), step.assign_add(1))
        session = train.MonitoredTrainingSession(steps_per_run=8)
        refused = pytest.raises(ValueError, match="gives text or objects. Leave out steps_per_run")
        with refused, session:
            session.run(train_op)
            session.run(train_op)


# Interruptions -----------------------------------------------------------------------------------------------------


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("kills", "sources"),
    [(1, ["arrays"]), pytest.param(12, ["arrays", "generators"], marks=pytest.mark.campaign)],
)
def test_job_killed_and_restarted_with_other_steps_per_run_ends_the_same(kills, sources, tmp_path, environment):
    command = ["-m", "tests.loop.killed_steps", str(tmp_path), str(kills), *sources]
    done = python.run(*command, cwd=Path(__file__).parents[2], env=environment(), check=True)
    whole, *jobs = [json.loads(line) for line in done.stdout.splitlines()]
    expected = shown(str(tmp_path / WHOLE))
    assert [step for step, _ in expected["loss"]] == [*range(1, LAST_STEP + 1, 7)]
    assert [job["source"] for job in jobs] == sources
    for job in jobs:
        assert len(job["killed_at"]) == kills + 1
        assert job["outcome"] == whole["outcome"], job
        assert shown(str(tmp_path / job["source"])) == expected


class Signal(train.SessionRunHook):
    """Sends this process a signal from inside of a training, at the end of a run."""

    stacked = True

    def __init__(self, number, at):
        self.number, self.at, self.sent_at = number, at, None

    def after_run(self, run_context, run_values):
        step = run_context.session.global_step
        if step >= self.at and self.sent_at is None:
            self.sent_at = step
            os.kill(os.getpid(), self.number)


TIMES = [(16, 50), (64, 100), (7, 200), (1, 250)]


@pytest.mark.parametrize(
    ("number", "times"),
    [
        (signal.SIGTERM, TIMES[:2]),
        (signal.SIGINT, TIMES[2:3]),
        *[pytest.param(n, TIMES, marks=pytest.mark.campaign) for n in (signal.SIGTERM, signal.SIGINT)],
    ],
)
def test_signal_loses_nothing_and_saves_at_the_end_of_a_run(number, times, tmp_path):
    whole = endless(1).run(last_step=300, progress=False)
    for steps_per_run, at in times:
        loop, sender = endless(steps_per_run), Signal(number, at)
        with pytest.raises(train.Preempted):
            loop.run(str(tmp_path), 300, hooks=[sender], progress=False)
        step = int(loop.result["n"])
        assert at <= sender.sent_at <= step <= at + 2 * steps_per_run
        assert train.latest_checkpoint(str(tmp_path)).endswith(f"-{step}")
    assert endless(64).run(str(tmp_path), 300, progress=False) == whole


@pytest.mark.parametrize(
    ("steps_per_run", "last_step"), [(16, 120), *[pytest.param(n, 250, marks=pytest.mark.campaign) for n in (1, 64)]]
)
def test_lost_session_is_recovered_and_ends_the_same(steps_per_run, last_step, tmp_path):
    class Fail(train.SessionRunHook):
        trigger = train.every(10)

        def __init__(self):
            self.left = [30, 70, last_step - 20]

        def on_trigger(self, firing):
            if firing.global_step in self.left:
                self.left.remove(firing.global_step)
                raise hl.errors.UnavailableError(None, None, "away")

    def run(n, directory, hooks):
        recovery = train.RecoveryPolicy(initial_backoff_secs=0)
        saves = train.CheckpointOptions(save_steps=25, recovery=recovery)
        written = train.LoggingOptions(summary_steps=7)
        options = {"checkpoints": saves, "logging": written, "progress": False}
        return endless(n).run(str(directory), last_step, hooks=hooks, **options), shown(str(directory))["loss"]

    failing = Fail()
    assert run(steps_per_run, tmp_path / "lost", [failing]) == run(1, tmp_path / "whole", [])
    assert not failing.left


@pytest.mark.parametrize("steps_per_run", [16, pytest.param(64, marks=pytest.mark.campaign)])
def test_rollback_happens_at_the_same_step_for_any_run_lengths(steps_per_run, tmp_path):
    bad = [
        float(batch.sum())
        for _, batch in zip(range(130), hl.data.from_arrays(ROWS[:100], 10, 1, epochs=None), strict=False)
    ]

    def step(state, batch):
        state, metrics = counting(state, batch)
        is_bad = (state["n"] == 130) & (metrics["seen"] == bad[-1])
        return state, metrics | {"loss": jnp.where(is_bad, jnp.nan, metrics["loss"])}

    class Ticks(train.SessionRunHook):
        trigger = train.every(secs=1)

        def on_trigger(self, firing):
            pass

    def run(name, secs=0.0, last_steps=(200,), hooks=()):
        with FakeClock() as clock:

            class Passes(train.SessionRunHook):
                stacked = True

                def after_run(self, run_context, run_values):
                    clock.advance(secs)

            for last_step in last_steps:
                state = endless(steps_per_run, step).run(
                    str(tmp_path / name),
                    last_step,
                    hooks=[Passes(), Ticks(), *hooks],
                    progress=False,
                    checkpoints=train.CheckpointOptions(save_steps=100, save_secs=None),
                    on_nan="rollback",
                )
        return state

    whole = run("whole")
    assert 100 <= whole["n"] < 200, "some were undone"
    assert run("cut", hooks=[Notes(train.at_steps(123, 131))]) == whole
    assert run("parts", 0.3, (37, 200)) == whole
    if steps_per_run == 64:
        assert run("clocked", 0.3) == run("clocked more", 0.7) == whole


# On a mesh ---------------------------------------------------------------------------------------------------------

QUICK_LAYOUTS = ["fsdp, explicit, ragged"]
OTHER_LAYOUTS = ["parallel", "parallel, explicit", "fsdp", "fsdp, explicit", "fsdp, ragged"]


@pytest.mark.parametrize("layouts", [QUICK_LAYOUTS, pytest.param(OTHER_LAYOUTS, marks=pytest.mark.campaign)])
def test_steps_on_a_mesh_have_the_bits_of_single_steps(layouts, environment):
    command = ["-m", "tests.loop.several_steps", *layouts]
    for name, (single, several) in json.loads(run_on_devices(4, command, environment()).stdout).items():
        assert len(single["points"]) == 9
        for what in ("values", "specs", "points"):
            assert several[what] == single[what], (name, what)
        assert several["programs"] <= single["programs"], "none is compiled again for another layout"


# Misuse ------------------------------------------------------------------------------------------------------------


def test_convolutions_in_a_loop_give_one_warning(caplog):
    """XLA is slow there on a processor."""

    def step(state, batch):
        return state * 0.9, {"loss": jax.lax.conv(batch[:, None], state, (1, 1), "SAME").mean()}

    for steps_per_run in (1, 4):
        rows = hl.data.from_arrays(np.ones((64, 8, 8), "float32"), 8, epochs=None)
        loop = train.Loop(step, jnp.ones((1, 1, 3, 3)), rows, steps_per_run=steps_per_run)
        loop.run(last_step=25, progress=False, log_steps=10)
        assert caplog.text.count("convolutions, which XLA computes slowly") == (steps_per_run > 1)


@pytest.mark.parametrize(("given", "error"), [(0, ValueError), (-1, ValueError), ("8", TypeError), (True, TypeError)])
def test_invalid_steps_per_run_are_refused(given, error):
    with pytest.raises(error, match="Loop requires .*steps_per_run"):
        endless(given)


def test_steps_per_run_beyond_the_data_or_the_last_step_changes_nothing():
    single = train.Loop(counting, start(), hl.data.from_arrays(ROWS, 10)).run(progress=False)
    assert (
        train.Loop(counting, start(), hl.data.from_arrays(ROWS, 10), steps_per_run=5000).run(progress=False) == single
    )
    assert endless(5000).run(last_step=3, progress=False)["n"] == 3


def test_batches_too_large_for_memory_are_an_error_with_their_number():
    """No process has addresses for so many."""
    large = hl.data.from_arrays(np.zeros((64, 784), "float32"), 32, epochs=None)
    loop = train.Loop(lambda state, batch: (state, {"loss": batch.sum()}), start(), large, steps_per_run=2 * 10**9)
    with pytest.raises(MemoryError) as raised:
        loop.run(last_step=3, progress=False)
    assert any("steps_per_run=2000000000 reads so many batches at once" in note for note in raised.value.__notes__)


def test_metrics_fetched_by_a_run_have_one_row_per_step():
    loop = endless(8)
    hooks = [Notes(train.at_steps(5), loop.state)]
    found = runs_of(loop, [loop.train_op, loop.metrics], last_step=20, hooks=hooks, log_steps=None)
    rows = [np.asarray(metrics["loss"]) for _, metrics in found]
    assert [len(row) for row in rows] == [1, 4, 8, 7]
    single = endless(1)
    told = runs_of(single, [single.train_op, single.metrics], last_step=20, log_steps=None)
    assert np.concatenate(rows).tolist() == [float(metrics["loss"]) for _, metrics in told]


def test_fetch_that_trains_nothing_is_one_value():
    loop = endless(8)
    with loop.session(last_step=20, progress=False) as session:
        session.run(loop.train_op)
        assert session.run(loop.state)["n"].shape == ()
        assert session.run(loop.metrics)["loss"].shape == ()
        session.run(loop.train_op)
        assert session.run(loop.state)["n"] == 9


def test_run_metadata_is_refused_and_the_training_continues():
    loop = endless(8)
    with loop.session(last_step=20, progress=False) as session:
        session.run(loop.train_op)
        with pytest.raises(ValueError, match="takes no run_metadata. Leave out steps_per_run"):
            session.run(loop.train_op, run_metadata=hl.RunMetadata())
        while not session.should_stop():
            session.run(loop.train_op)
    assert loop.result["n"] == 20


def test_hook_with_run_callbacks_gets_each_step_and_is_logged_once(caplog):
    caplog.set_level(logging.INFO, "hookline")

    class Old(train.SessionRunHook):
        def __init__(self, loop):
            self.loss, self.seen = loop.metrics["loss"], []

        def before_run(self, run_context):
            return train.SessionRunArgs(self.loss)

        def after_run(self, run_context, run_values):
            self.seen.append(float(run_values.results))

    found = []
    for steps_per_run in (1, 8):
        loop = endless(steps_per_run)
        old = Old(loop)
        loop.run(last_step=40, hooks=[old], progress=False)
        found.append(old.seen)
    assert found[0] == found[1]
    assert len(found[1]) == 40
    (line,) = [line for line in caplog.messages if "each run has one step" in line]
    assert "the hook Old" in line


def test_hooks_that_fire_sometimes_are_not_logged_as_limiting(caplog):
    caplog.set_level(logging.INFO, "hookline")
    endless(8).run(last_step=600, progress=False, log_steps=20, logging=train.LoggingOptions(rate_steps=30))
    assert not [line for line in caplog.messages if "each run has one step" in line]


def test_hook_added_during_the_training_fires_from_there():
    loop, first, added = endless(8), Notes(train.every(7)), Notes(train.every(5))
    with loop.session(last_step=60, hooks=[first], progress=False) as session:
        session.run(loop.train_op)
        session.run(loop.train_op)
        at = session.raw_session().global_step
        session.add_hook(added)
        while not session.should_stop():
            session.run(loop.train_op)
    assert first.seen == [*range(7, 60, 7)]
    assert added.seen == [step for step in range(5, 61, 5) if step > at]
    assert loop.result["n"] == 60


def test_stop_takes_effect_after_the_run():
    loop = endless(8)
    with loop.session(last_step=60, progress=False) as session:
        session.run(loop.train_op)
        session.run(loop.train_op)
        session.request_stop()
        assert session.should_stop()
    assert loop.result["n"] == 9


def test_step_function_makes_a_whole_run():
    loop = endless(8)
    with loop.session(last_step=60, progress=False) as session:
        session.run(loop.train_op)
        session.run_step_fn(lambda step_context: step_context.run_with_hooks(loop.train_op))
        assert session.raw_session().global_step == 9


def test_raw_session_in_another_thread_sees_the_ends_of_runs():
    loop, seen, problems = endless(8), set(), []
    with loop.session(last_step=800, progress=False, log_steps=None) as session:

        def look():
            try:
                while not session.should_stop():
                    seen.add(int(session.raw_session().run(loop.state)["n"]))
            except BaseException as error:
                problems.append(error)

        looker = threading.Thread(target=look)
        looker.start()
        while not session.should_stop():
            session.run(loop.train_op)
        looker.join()
    assert not problems
    assert loop.result == endless(1).run(last_step=800, progress=False)
    assert seen
