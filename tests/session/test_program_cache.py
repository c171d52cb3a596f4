"""Which programs are compiled, and that hook fetches do not change the computed values."""

from __future__ import annotations

import gc
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline.session.program import compilation_log


def compilations(caplog) -> int:
    return sum("Compiling a program" in record.message for record in caplog.records)


@pytest.fixture
def sess(caplog):
    caplog.set_level(logging.INFO, logger="hookline")
    with hl.Session() as session:
        yield session


def same_bits(one, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def mlp(seed: int = 0):
    """A small network trained with Adam on fixed data: enough arithmetic for fusion to matter."""

    def init():
        keys = jax.random.split(jax.random.key(seed), 2)
        return {
            "w1": jax.random.normal(keys[0], (32, 64)) / 6,
            "b1": jnp.zeros(64),
            "w2": jax.random.normal(keys[1], (64, 1)) / 8,
            "b2": jnp.zeros(1),
        }

    def predict(p, x):
        return jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 32)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
    params = hl.Variable(init, name="params")
    hidden = hl.op(lambda p, x: jnp.tanh(x @ p["w1"] + p["b1"]), name="hidden")(params, x)
    loss = hl.op(lambda p: jnp.mean((predict(p, x) - y) ** 2), name="loss")(params)
    optimizer = hl.train.Optimizer(optax.adam(1e-2))
    pairs = optimizer.compute_gradients(loss)
    train = optimizer.apply_gradients(pairs, hl.train.get_or_create_global_step())
    watched = {
        "loss": loss,
        "norm": hl.op(optax.tree.norm)(pairs[0][0]),
        "histogram": hl.op(lambda g: jnp.histogram(g["w1"], 10)[0])(pairs[0][0]),
        "hidden": hl.op(jnp.std)(hidden),
        "weights": hl.op(jnp.linalg.norm)(params["w1"]),
    }
    return params, loss, train, watched


def test_fetches_of_hooks_do_not_change_the_bits_of_the_training(sess):
    params, _, train, watched = mlp()
    init = hl.global_variables_initializer()
    finals = []
    for watching in (False, True):
        sess.run(init)
        for step in range(40):
            if watching and step % 3:
                sess.backend.run_with_hook_fetches(train, (watched, None))
            else:
                sess.run(train)
        finals.append(jax.tree.map(np.asarray, sess.run(params)))
    assert same_bits(*finals)


@pytest.mark.parametrize(("size", "conditional"), [((), False), ((3,), True)])
def test_computed_scalar_is_returned_and_arrays_only_on_request(sess, size, conditional):
    total = hl.Variable(jnp.zeros(size), name="total")
    added = total.assign_add(jnp.ones(size))
    double = hl.op(lambda value: 2 * value)(total)
    sess.run(hl.global_variables_initializer())
    metadata = hl.RunMetadata()
    options = hl.RunOptions(output_partition_graphs=True)
    sess.backend.declare_hook_fetches([total, double])
    _, (value,) = sess.backend.run_with_hook_fetches(added.op, (total,), options=options, run_metadata=metadata)
    assert np.shape(value) == size
    # The double is not wanted here, and is never computed anyway.
    assert metadata.partition_graphs[0].count(" conditional(") == 1 + conditional


def test_latches_do_not_change_the_bits_of_the_training(sess):
    params, loss, train, _ = mlp()
    latch = hl.latch(hl.op(lambda value: ~jnp.isfinite(value))(loss))
    init = hl.global_variables_initializer()
    finals, losses = [], []
    for watching in (False, True):
        sess.run(init)
        for step in range(40):
            late = step % 3 == 0 and watching
            _, (value, _) = sess.backend.run_with_hook_fetches(train, (loss if late else None, latch))
            losses += [float(value)] if late else []
        finals.append(jax.tree.map(np.asarray, sess.run(params)))
    assert same_bits(*finals)
    assert len(losses) == 14
    assert losses == sorted(losses, reverse=True)


def test_job_with_a_fetching_hook_compiles_two_step_programs(sess, caplog):
    _, _, train, watched = mlp()
    sess.run(hl.global_variables_initializer())
    caplog.clear()
    for step in range(10):
        if step % 5:
            sess.run(train)
        else:
            sess.backend.run_with_hook_fetches(train, (watched,))
    assert compilations(caplog) == 2
    causes = [record.message for record in caplog.records if "Compiling" in record.message]
    assert "and hook fetches" in causes[0]
    assert "no hook fetches anything" in causes[1]


def test_reading_counters_compiles_nothing_and_shares_the_step(sess, caplog):
    step = hl.train.get_or_create_global_step()
    v = hl.Variable(0.0, name="v")
    train = hl.group(v.assign_add(1.0), step.assign_add(1))
    sess.run(hl.global_variables_initializer())
    sess.run(train)
    caplog.clear()
    values = [sess.run(step), *sess.run([train, step]), sess.global_step]
    values += sess.backend.run_with_hook_fetches(train, (step, None))
    assert values == [1, None, 1, 2, None, (2, None)]
    assert isinstance(values[0], np.integer)
    assert compilations(caplog) == 0


def test_additional_program_logs_why_it_is_compiled(sess, caplog):
    x = hl.placeholder("float32", [None], name="x")
    weights = hl.Variable(np.float32(0), name="weights")
    loss = hl.op(lambda weights, x: (weights + x).sum(), name="loss")(weights, x)
    norm = hl.op(jnp.abs, name="norm")(weights)
    train = weights.assign_add(loss).op
    sess.run(hl.global_variables_initializer())
    feeds = {x: np.ones(2, np.float32)}
    sess.run(train, feeds)
    sess.run([train, loss], feeds)
    sess.backend.run_with_hook_fetches(train, (norm,), feeds)
    sess.run([train, norm], feeds)
    causes = re.findall(r"Compiling a program \((.*?)\): ", caplog.text)
    assert causes == ["first run", "first run", "a new fetch: loss:0", "hooks fetch norm:0", "a new fetch: norm:0"]


def test_new_shapes_compile_again_with_the_reason(sess, caplog):
    x = hl.placeholder("float32", [None], name="x")
    total = hl.op(jnp.sum)(x)
    for length in (2, 3, 2, 3):
        sess.run(total, {x: np.ones(length)})
    assert compilations(caplog) == 2
    assert "x:0 is float32[3], it was float32[2]" in caplog.text
    assert caplog.text.count("Compiled it in ") == 2


def test_many_shapes_give_a_warning(sess, caplog):
    x = hl.placeholder("float32", [None], name="x")
    total = hl.op(jnp.sum)(x)
    for length in range(1, 20):
        sess.run(total, {x: np.ones(length)})
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "compiled 16 times, the last time because x:0 is float32[16], it was float32[15]" in warnings[0]


def test_fetches_used_once_are_evicted_with_a_warning(caplog):
    w = hl.Variable(1.0, name="w")
    with hl.Session(config=hl.SessionConfig(max_plans=20)) as sess:
        sess.run(w.initializer)
        used, kept = [sess.run(w)], []
        for number in range(100):
            sess.run(w * float(number))
            used.append(sess.run(w))
            if number in (49, 99):
                kept.append(objects_of_sessions())
        assert used == [1.0] * 101
        assert kept[1] <= kept[0]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "differ in fetches (mul_" in warnings[0]


def objects_of_sessions():
    gc.collect()
    return sum(str(type(found)).startswith("<class 'hookline.session.") for found in gc.get_objects())


class Norms(hl.train.SessionRunHook):
    """Watches something large of its own, each 13 steps, and declares that."""

    trigger = hl.train.every(13)

    def __init__(self, fetches):
        self.fetches, self.seen = fetches, []

    def on_trigger(self, firing):
        self.seen.append(jax.tree.map(np.asarray, firing.values))


class SurprisingNorms(hl.train.SessionRunHook):
    """Watches it without a word beforehand."""

    def __init__(self, fetches):
        self._asks, self.seen = hl.train.SessionRunArgs(fetches), []

    def before_run(self, run_context):
        return self._asks if run_context.runs % 13 == 12 else None

    def after_run(self, run_context, run_values):
        if run_values.results is not None:
            self.seen.append(jax.tree.map(np.asarray, run_values.results))


def adam():
    params = hl.Variable({"w": np.ones((3, 2), "float32"), "b": np.zeros(2, "float32")}, name="params")
    x = hl.op(lambda key: jax.random.normal(key, (8, 3)))(hl.random_key(1))
    loss = hl.op(lambda p, x: jnp.mean(jnp.tanh(x @ p["w"] + p["b"]) ** 2), name="loss")(params, x)
    step = hl.train.get_or_create_global_step()
    train = hl.train.Optimizer(optax.adam(1e-2)).minimize(loss, step)
    return params, loss, train


def watched_training(tmp_path, runs, kind=Norms):
    with hl.Graph(seed=1).as_default():
        params, loss, train = adam()
        hl.summary.scalar("loss", loss)
        hl.summary.histogram("params", params)
        norms = kind({"norm": hl.op(optax.tree.norm)(hl.gradients(loss, params)), "w": params["w"]})
        hooks = [
            hl.train.NanTensorHook(loss),
            hl.train.LoggingTensorHook({"double": loss * 2}, every_n_iter=7),
            hl.train.SummarySaverHook(
                save_steps=11, output_dir=str(tmp_path), scaffold=hl.train.Scaffold(summary_op=hl.summary.merge_all())
            ),
            norms,
        ]
        with hl.train.MonitoredSession(hooks=hooks) as session:
            for _ in range(runs):
                session.run(train)
            return session.run_step_fn(lambda step_context: step_context.session.snapshot()), norms.seen


@pytest.mark.parametrize(
    ("kind", "count", "runs"),
    [(Norms, 2, 300), pytest.param(Norms, 2, 10_000, marks=pytest.mark.campaign), (SurprisingNorms, 3, 300)],
)
def test_hooks_with_different_fetches_and_times_share_one_program(tmp_path, caplog, kind, count, runs):
    caplog.set_level(logging.INFO, "hookline")
    values, seen = watched_training(tmp_path, runs, kind)
    steps = [m for m in caplog.messages if "Compiling" in m and "params" in m.split("writes")[1]]
    assert len(steps) == count + 1, "one of them initialises"
    assert len(seen) == runs // 13
    with hl.Graph(seed=1).as_default():
        _, _, train = adam()
        with hl.train.MonitoredSession() as session:
            for _ in range(runs):
                session.run(train)
            alone = session.run_step_fn(lambda step_context: step_context.session.snapshot())
    assert alone.keys() == values.keys()
    for name in alone:
        jax.tree.map(np.testing.assert_array_equal, values[name], alone[name])
    norms = [float(watched["norm"]) for watched in seen[:23]]  # Later ones may be alike.
    assert all(norm > 0 for norm in norms), "zero is what a run gives that did not ask"
    assert len(set(norms)) == len(norms)


def test_fetches_of_one_hook_are_not_computed_for_another(tmp_path):
    computed = []

    def count(value):
        computed.append(float(value))
        return value

    step = hl.train.get_or_create_global_step()
    w = hl.Variable(1.0, name="w")
    like = jax.ShapeDtypeStruct((), jnp.float32)
    rare = hl.op(lambda w: jax.pure_callback(count, like, w), name="rare")(w * 1.0)
    often = hl.op(lambda w: w * 2, name="often")(w)
    train = hl.group(w.assign_add(1.0), step.assign_add(1))
    hooks = [
        hl.train.LoggingTensorHook([rare], every_n_iter=10),
        hl.train.LoggingTensorHook([often, often * 3], every_n_iter=2),
    ]
    with hl.train.MonitoredSession(hooks=hooks) as session:
        for _ in range(30):
            session.run(train)
    assert computed == [1.0, 11.0, 21.0]


def test_hook_that_draws_random_numbers_has_its_own_program(tmp_path, caplog):
    """Random draws are counted: a run without the fetch must not count."""
    caplog.set_level(logging.INFO, "hookline")
    step = hl.train.get_or_create_global_step()
    noise = hl.op(jax.random.normal)(hl.random_key(3))
    train = hl.group(step.assign_add(1))
    draws = next(v for v in hl.global_variables() if v.op.name.endswith("draws"))
    hooks = [
        hl.train.LoggingTensorHook([noise], every_n_iter=10),
        hl.train.LoggingTensorHook({"twice": step * 2}, every_n_iter=2),
    ]
    with hl.train.MonitoredSession(hooks=hooks) as session:
        for _ in range(30):
            session.run(train)
        assert session.run(draws) == 3


def test_forward_pass_of_a_gradient_is_computed_once(sess):
    v = hl.Variable(np.ones(4, "float32"), name="v")

    def scanned(v):
        return jax.lax.scan(lambda c, _: (jnp.sin(c), None), v, None, length=7)[0].sum()

    loss = hl.op(scanned)(v)
    (gradient,) = hl.gradients(loss, v)
    metadata = hl.RunMetadata()
    sess.run(v.initializer)
    sess.run([loss, gradient], options=hl.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    forward_loops = metadata.partition_graphs[0].count(" while(")
    assert forward_loops <= 2, "one loop forward, one back"


def test_counter_changed_by_the_device_is_read_back(sess):
    step = hl.train.get_or_create_global_step()
    jump = step.assign(hl.op(lambda s: s * 10)(step))
    bump = step.assign_add(1)
    sess.run(step.initializer)
    for run, expected in ((bump, 1), (jump, 10), (bump, 11), (jump, 110), (step.initializer, 0)):
        sess.run(run)
        assert sess.global_step == expected
        assert sess.run(step) == expected


@pytest.mark.parametrize("by_steps", [True, False])
def test_step_known_only_to_the_device_is_logged_once_and_read_if_hooks_need_it(sess, caplog, by_steps):
    step = hl.train.get_or_create_global_step()
    bump = step.assign(hl.op(lambda s: s + 1)(step))
    caplog.clear()
    seen = []

    class Watcher(hl.train.SessionRunHook):
        trigger = hl.train.every(10) if by_steps else hl.train.every(runs=10)

        def on_trigger(self, firing):
            seen.append(firing.global_step)

    with hl.train.MonitoredSession(hooks=[Watcher()]) as monitored:
        reads = []
        for _ in range(40):
            reads.append(monitored.raw_session().backend.known_step)
            monitored.run(bump)
    assert seen == ([10, 20, 30, 40] if by_steps else [1, 11, 21, 31])
    assert not by_steps or None not in reads
    warnings = [record for record in caplog.records if "only the device knows" in record.message]
    assert len(warnings) == 1
    assert "'global_step'" in warnings[0].message


def test_only_programs_on_large_variables_are_compiled_to_save_memory(monkeypatch):
    small = hl.Variable(lambda: jnp.zeros(1000), name="small")
    large = [hl.Variable(lambda: jnp.zeros((1024, 4096)), name="large") for _ in range(2)]
    halves = [hl.Variable(lambda: jnp.zeros((1024, 8192), jnp.bfloat16), name="half") for _ in range(2)]
    unknown = hl.Variable(hl.host_op(lambda: np.ones(2)).node(), name="unknown")

    assert compilation_log.compiler_options([small, large[0], unknown]) is None
    assert compilation_log.compiler_options([*large, halves[0], unknown]) == compilation_log._MEMORY_FIRST
    assert compilation_log.compiler_options([*large, *halves]) == compilation_log._HALVES_APART

    monkeypatch.setattr(compilation_log, "_MEMORY_FIRST", {"xla_cpu_that_is_gone": "X"})
    assert compilation_log.compiler_options(large) is None, "another version of XLA compiles without it"


def test_saving_memory_changes_no_bits(monkeypatch):
    results = []
    for limit in (0, compilation_log._LARGE_BYTES):
        monkeypatch.setattr(compilation_log, "_LARGE_BYTES", limit)
        with hl.Graph().as_default(), hl.Session() as sess:
            params, _, train, _ = mlp()
            sess.run(hl.global_variables_initializer())
            for _ in range(20):
                sess.run(train)
            results.append(sess.run(params))
    assert same_bits(*results)
