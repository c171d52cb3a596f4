"""Small variables travel together; nobody but the clock may notice."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookline as hl
from hookline import errors
from hookline.session import buckets, local_exchange, repeat


def program_text(session: hl.Session, fetches) -> str:
    metadata = hl.RunMetadata()
    session.run(fetches, options=hl.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    return metadata.partition_graphs[0]


def parameters(text: str) -> list[str]:
    """Returns the types of what a compiled program is given."""
    entry = text[text.index("\nENTRY") :]
    return [line.split("=")[1].split()[0] for line in entry.splitlines() if " parameter(" in line]


def test_small_variables_are_one_array_of_each_dtype_and_large_ones_stay_as_they_are():
    floats = [hl.Variable(jnp.full((2, 3), float(number)), name=f"float_{number}") for number in range(5)]
    bytes_ = [hl.Variable(jnp.zeros(7, "int8"), name=f"byte_{number}") for number in range(3)]
    large = hl.Variable(jnp.zeros(5000), name="large")
    key = hl.Variable(jax.random.key(0), name="key")
    everything = [*floats, *bytes_, large]
    more = [hl.update(variable, lambda value: jax.tree.map(lambda leaf: leaf + 1, value)).op for variable in everything]
    more.append(hl.update(key, lambda value: jax.random.fold_in(value, 1)).op)
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        kinds = {kind.split("{")[0] for kind in parameters(program_text(session, hl.group(*more)))}
        assert kinds == {"f32[30]", "s8[21]", "f32[5000]", "u32[2]"}
        values = session.run([*floats, *bytes_, large])
    for number, value in enumerate(values[:5]):
        np.testing.assert_array_equal(value, np.full((2, 3), number + 1))
    assert all((value == 1).all() for value in values[5:])


def adam_with_normalisation():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 12)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")

    def init():
        keys = jax.random.split(jax.random.key(0), 2)
        layers = {"w1": jax.random.normal(keys[0], (12, 32)) / 3, "w2": jax.random.normal(keys[1], (32, 1)) / 6}
        return layers | {"scale": jnp.ones(32), "shift": jnp.zeros(32), "b": jnp.zeros(1)}

    def loss_of(p):
        hidden = x @ p["w1"]
        hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-5) * p["scale"] + p["shift"]
        return jnp.mean((jnp.tanh(hidden) @ p["w2"] + p["b"] - y) ** 2)

    params = hl.Variable(init, name="params")
    return hl.op(loss_of, name="loss")(params), optax.adam(1e-2)


def scan_with_momentum():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(9, 16, 4)).astype("float32")
    inner = hl.Variable(lambda: jax.random.normal(jax.random.key(1), (20, 20)) / 5, name="inner")
    outer = hl.Variable(lambda: jax.random.normal(jax.random.key(2), (4, 20)) / 2, name="outer")
    bias = hl.Variable(jnp.zeros(20), name="bias")

    def loss_of(inner, outer, bias):
        final, _ = jax.lax.scan(
            lambda hidden, row: (jnp.tanh(hidden @ inner + row @ outer + bias), None), jnp.zeros((16, 20)), rows
        )
        return jnp.mean((final - 0.3) ** 2)

    return hl.op(loss_of, name="loss")(inner, outer, bias), optax.sgd(0.1, momentum=0.9)


def convolutions():
    rng = np.random.default_rng(2)
    images = rng.normal(size=(8, 10, 10, 3)).astype("float32")
    kernels = [hl.Variable(rng.normal(size=(3, 3, i, o)).astype("float32") / 5, name=f"kernel_{i}_{o}")
               for i, o in ((3, 8), (8, 8), (8, 4))]  # fmt: skip
    scales = [hl.Variable(jnp.ones(o), name=f"scale_{i}") for i, o in enumerate((8, 8, 4))]

    def loss_of(kernels, scales):
        value, form = images, ("NHWC", "HWIO", "NHWC")
        for kernel, scale in zip(kernels, scales, strict=True):
            value = jax.lax.conv_general_dilated(value, kernel, (1, 1), "SAME", dimension_numbers=form)
            value = jax.nn.relu((value - value.mean((0, 1, 2))) * jax.lax.rsqrt(value.var((0, 1, 2)) + 1e-3) * scale)
        return jnp.mean((value - 0.5) ** 2)

    return hl.op(loss_of, name="loss")(kernels, scales), optax.adamw(1e-2)


def sums_of_weights():
    rng = np.random.default_rng(3)
    shapes = ((37, 53), (12, 32), (5,))
    weights = [hl.Variable(rng.normal(size=shape).astype("float32"), name=f"w{i}") for i, shape in enumerate(shapes)]

    def loss_of(weights):
        return sum((w.sum() - 1) ** 2 + w.std() + ((w - w.mean()) / jnp.sqrt(w.var() + 1e-5)).max() for w in weights)

    return hl.op(loss_of, name="loss")(weights), optax.adam(1e-2)


@pytest.mark.parametrize(
    "model",
    [
        adam_with_normalisation,
        scan_with_momentum,
        *(pytest.param(model, marks=pytest.mark.campaign) for model in (convolutions, sums_of_weights)),
    ],
)
def test_the_trained_bits_are_those_of_arrays_that_travel_alone_watched_or_not(model, monkeypatch):
    finals = []
    for limit, watches in ((None, False), (None, True), (0, False)):
        if limit is not None:
            monkeypatch.setattr(buckets, "_MOST_BYTES", limit)
        with hl.Graph().as_default(), hl.Session() as session:
            loss, transformation = model()
            train = hl.train.Optimizer(transformation).minimize(loss, hl.train.get_or_create_global_step())
            trained = hl.get_default_graph().get_collection(hl.GraphKeys.TRAINABLE_VARIABLES)
            norm = hl.op(lambda *values: optax.tree.norm(values))(*trained)
            session.run(hl.global_variables_initializer())
            text = program_text(session, train)
            assert (len(parameters(text)) < 6) == (" conditional(" in text) == (limit is None)
            for step in range(30):
                if watches and step % 3 == 0:
                    session.run_watched(train, ((loss, norm), None))
                else:
                    session.run(train)
            finals.append(session.snapshot())
    for name, value in finals[0].items():
        for other in finals[1:]:
            jax.tree.map(np.testing.assert_array_equal, value, other[name])


SIZES = {"a": (3,), "b": (2, 2), "c": (), "d": (5000,), "e": (4,)}


def arithmetic():
    """Programs of any choice of variables: whole numbers, so that all results are exact."""
    made = {name: hl.Variable(jnp.full(size, 1.0), name=name, trainable=False) for name, size in SIZES.items()}
    fed = {name: hl.placeholder("float32", size, name=f"fed_{name}") for name, size in SIZES.items()}
    half = hl.op(lambda value: jnp.floor(value / 2))
    total = hl.op(lambda *values: sum(value.sum() for value in values), name="total")
    programs = {
        "all": hl.group(*(v.assign_add(jnp.ones(SIZES[n])) for n, v in made.items())),
        "abc": hl.group(*(made[n].assign_add(3 * jnp.ones(SIZES[n])) for n in "abc")),
        "ce": hl.group(*(made[n].assign(half(made[n])) for n in "ce")),
        "d": hl.group(made["d"].assign_add(jnp.ones(5000)), made["a"].assign(half(made["a"]))),
        "init": hl.global_variables_initializer(),
        "init_b": made["b"].initializer,
    }
    for name, variable in made.items():
        programs[f"set_{name}"] = variable.assign(fed[name]).op
    return made, fed, programs, total(*made.values())


def expected(state, what, value):
    """What a program does, in NumPy."""
    new = dict(state)
    if what == "all":
        new = {name: value + 1 for name, value in state.items()}
    elif what == "abc":
        new |= {name: state[name] + 3 for name in "abc"}
    elif what == "ce":
        new |= {name: np.floor(state[name] / 2) for name in "ce"}
    elif what == "d":
        new |= {"d": state["d"] + 1, "a": np.floor(state["a"] / 2)}
    elif what == "init":
        new = {name: np.ones(size, "float32") for name, size in SIZES.items()}
    elif what == "init_b":
        new["b"] = np.ones((2, 2), "float32")
    elif what.startswith(("set_", "load_")):
        new[what[-1]] = np.full(SIZES[what[-1]], value, "float32")
    return new


MOVES = ["all", "abc", "ce", "d", "init", "init_b", "read", "total", "snapshot", "watch",
         *(f"set_{name}" for name in "abcde"), *(f"load_{name}" for name in "abd")]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(MOVES), st.integers(1, 3)), min_size=5, max_size=40))
def test_any_order_of_programs_reads_and_writes_gives_the_same_values(moves):
    with hl.Graph().as_default(), hl.Session() as session:
        made, fed, programs, total = arithmetic()
        session.run(programs["init"])
        state = expected({}, "init", 0)
        for number, (what, times) in enumerate(moves, 1):
            for _ in range(times):
                if what == "read":
                    for name, value in session.run(made).items():
                        np.testing.assert_array_equal(value, state[name])
                elif what == "total":
                    assert session.run(total) == sum(value.sum() for value in state.values())
                elif what == "snapshot":
                    for name, value in session.snapshot(made.values()).items():
                        np.testing.assert_array_equal(value, state[name])
                elif what == "watch":
                    _, (seen,) = session.run_watched(programs["abc"], (made["c"],))
                    assert seen == state["c"]
                    state = expected(state, "abc", 0)
                elif what.startswith("load_"):
                    session.load({what[-1]: np.full(SIZES[what[-1]], number, "float32")})
                    state = expected(state, what, number)
                elif what.startswith("set_"):
                    session.run(programs[what], {fed[what[-1]]: np.full(SIZES[what[-1]], number, "float32")})
                    state = expected(state, what, number)
                else:
                    session.run(programs[what])
                    state = expected(state, what, number)
        for name, value in session.run(made).items():
            np.testing.assert_array_equal(value, state[name])


def test_which_program_came_first_changes_no_bits():
    rng = np.random.default_rng(4)
    starts = {name: rng.normal(size=(37, 53)).astype("float32") for name in "ab"}
    finals = []
    for first in (0, 1):
        with hl.Graph().as_default(), hl.Session() as session:
            made = {name: hl.Variable(start, name=name) for name, start in starts.items()}
            shrink = hl.op(lambda *values: sum((v.sum() - 1) ** 2 + v.std() for v in values))
            step = [
                hl.train.Optimizer(optax.sgd(1e-4)).minimize(shrink(*made.values()), var_list=[*made.values()]),
                hl.train.Optimizer(optax.sgd(1e-4)).minimize(shrink(made["a"]), var_list=[made["a"]]),
            ]
            session.run(hl.global_variables_initializer())
            session.run(step[first])
            session.load(starts)
            for number in range(10):
                session.run(step[number % 2])
            finals.append(session.snapshot())
    for name in starts:
        np.testing.assert_array_equal(finals[0][name], finals[1][name])


def test_a_variable_without_a_value_is_named_and_no_other_waits_for_it():
    a, b = (hl.Variable(jnp.ones(3), name=name) for name in "ab")
    more = hl.group(*(variable.assign_add(jnp.ones(3)) for variable in (b, a)))
    with hl.Session() as session:
        session.run(a.initializer)
        for _ in range(2):
            with pytest.raises(errors.FailedPreconditionError, match="Variable 'b' has no value yet"):
                session.run(more)
            session.run(a.assign_add(jnp.ones(3)))
        assert session.run(a).tolist() == [3, 3, 3]
        session.run(b.initializer)
        session.run(more)
        assert [value.tolist() for value in session.run([a, b])] == [[4] * 3, [2] * 3]


def test_a_callable_made_before_there_are_values_gives_the_same():
    made = [hl.Variable(jnp.ones(3), name=f"v{i}") for i in range(4)]
    add = hl.group(*(variable.assign_add(jnp.ones(3)) for variable in made))
    with hl.Session() as session:
        step = session.make_callable(add)
        with pytest.raises(errors.FailedPreconditionError, match="Variable 'v0' has no value yet"):
            step()
        assert session.uninitialized(made) == ["v0", "v1", "v2", "v3"]
        session.run(hl.group(*(variable.initializer for variable in made[1:])))
        with pytest.raises(errors.FailedPreconditionError, match="Variable 'v0' has no value yet"):
            step()
        session.run(made[0].initializer)
        step()
        assert [value.tolist() for value in session.run(made)] == [[2.0] * 3] * 4


def test_a_program_that_overwrites_one_and_fails_takes_nothing_with_it():
    def explode(value):
        raise RuntimeError("boom")

    @jax.jit
    def slowly(z):
        return jax.lax.fori_loop(0, 20, lambda i, z: (z @ z) * 1e-3, z)[0, :3]

    made = [hl.Variable(jnp.ones(3), name=f"v{i}") for i in range(4)]
    add = hl.group(*(variable.assign_add(jnp.ones(3)) for variable in made))
    like = jax.ShapeDtypeStruct((3,), jnp.float32)
    x = hl.placeholder("float32", [3], name="x")
    bad = made[0].assign(hl.op(lambda value: jax.pure_callback(explode, like, value))(x))
    good = made[1].assign(x)
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        session.run(add)
        session.run(good.op, {x: np.full(3, 7, "float32")})
        # It fails at once where what is fed is there, and later where that is still computed.
        for number, given in enumerate((np.ones(3, "float32"), slowly(jnp.ones((1000, 1000)))), 1):
            with pytest.raises((errors.InternalError, jax.errors.JaxRuntimeError), match="boom"):
                session.run(bad, {x: given}).block_until_ready()
            session.load({"v0": np.zeros(3, "float32")})
            session.run(add)
            assert [value[0].item() for value in session.run(made)] == [1, 7 + number, 2 + number, 2 + number]


def test_a_step_that_did_not_come_back_leaves_no_older_values(monkeypatch):
    made, _, programs, _ = arithmetic()
    with hl.Session() as session:
        session.run(programs["init"])
        for _ in range(3):
            session.run(programs["abc"])
        assert session.snapshot(made.values())["a"].tolist() == [10, 10, 10]

        def interrupted(self, new, structures):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(local_exchange.LocalExchange, "put", interrupted)
            patched.setattr(repeat.Repeat, "make", lambda self, *args: repeat.CHANGED)
            with pytest.raises(KeyboardInterrupt):
                session.run(programs["abc"])
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            session.snapshot(made.values())
        with pytest.raises(errors.AbortedError, match="session is lost"):
            session.run(programs["abc"])


def test_variables_of_several_dtypes_are_changed_one_by_one():
    kinds = ("bool", "int4", "uint8", "int32", "bfloat16", "float16", "complex64", "float32")
    made = [hl.Variable({"p": jnp.ones(5, kind), "q": jnp.ones(())}, name=kind, trainable=False) for kind in kinds]
    blanks = [hl.update(v, lambda value: {"p": jnp.zeros_like(value["p"]), "q": value["q"] + 1}).op for v in made]
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        session.run(hl.group(*blanks))
        starts = {kind: {"p": np.ones(5, jnp.dtype(kind)), "q": np.float32(10 * i)} for i, kind in enumerate(kinds)}
        session.load(starts)
        for number, blank in enumerate(blanks):
            session.run(blank)
            found = session.snapshot(made)
            for other, kind in enumerate(kinds):
                assert found[kind]["q"] == 10 * other + (other <= number)
                assert (np.asarray(found[kind]["p"]).astype("complex64") == (other > number)).all()


def test_a_loop_that_changes_one_bucket_and_overwrites_a_part_of_another():
    a, b, c, d = (hl.Variable(jnp.ones(3), name=name) for name in "abcd")
    step = hl.group(c.assign_add(a), d.assign_add(jnp.ones(3)), b.assign(hl.op(lambda value: value * 2)(c)))
    want = np.ones(4)
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        session.run([a, b])  # These are read together before they are written.
        for number in range(8):
            session.run(step)
            want = np.array([want[0], 2 * want[2], want[2] + want[0], want[3] + 1])
            if number in (2, 5):
                session.load({"a": np.full(3, float(number), "float32")})
                want[0] = number
            if number != 1:
                np.testing.assert_array_equal([value[0] for value in session.run([a, b, c, d])], want)


def test_what_was_fetched_or_loaded_is_not_touched_by_later_runs():
    made, _, programs, _ = arithmetic()
    with hl.Session() as session:
        session.run(programs["init"])
        session.run(programs["abc"])
        given_away = jnp.full(3, 7.0)
        session.load({"a": given_away})
        fetched, snapshot = session.run(made), session.snapshot()
        for _ in range(5):
            session.run(programs["all"])
        assert given_away.tolist() == fetched["a"].tolist() == snapshot["a"].tolist() == [7, 7, 7]
        assert session.run(made["a"]).tolist() == [12, 12, 12]


def test_a_run_that_is_held_back_or_skipped_changes_none_of_them():
    x = hl.placeholder("float32", [], name="x")
    loss = hl.op(lambda x: x)(x)
    made = [hl.Variable(jnp.full(3, float(i)), name=f"v{i}") for i in range(3)]
    step = hl.train.get_or_create_global_step()
    with hl.control_dependencies([hl.group(*(v.assign_add(hl.op(lambda x: x * jnp.ones(3))(x)) for v in made))]):
        train_op = step.assign_add(1)
    with hl.train.MonitoredSession(hooks=[hl.train.NanTensorHook(loss, on_nan="skip")]) as session:
        for value in (1.0, np.nan, 2.0):
            session.run(train_op, {x: value})
        session.run(train_op, {x: 1.0}, options=hl.RunOptions(last_step=1))
        values = session.raw_session().run(made)
    assert [value.tolist() for value in values] == [[i + 3.0] * 3 for i in range(3)]


def test_a_program_that_takes_them_away_and_fails_loses_the_session():
    made, _, programs, _ = arithmetic()
    others = {id(array): array for array in jax.live_arrays()}
    with hl.Session() as session:
        session.run(programs["init"])
        for _ in range(3):
            session.run(programs["abc"])
        for array in jax.live_arrays():
            if id(array) not in others:
                array.delete()
        for _ in range(2):
            with pytest.raises(errors.AbortedError, match="session is lost"):
                session.run(programs["abc"])
        with pytest.raises(errors.AbortedError, match="session is lost"):
            session.run(made)


def test_arrays_that_lie_on_several_devices_stay_there():
    script = """
        import jax, jax.numpy as jnp, numpy as np, hookline as hl
        mesh = jax.sharding.Mesh(np.array(jax.devices()), "d")
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
        v, w = hl.Variable(jnp.zeros(4), name="v"), hl.Variable(jnp.zeros(4), name="w")
        more = hl.group(v.assign_add(jnp.ones(4)), w.assign_add(jnp.ones(4)))
        with hl.Session() as session:
            session.run(hl.global_variables_initializer())
            session.load({name: jax.device_put(jnp.zeros(4), place) for name in "vw"})
            for _ in range(3):
                session.run(more)
            value = session.run(v)
            print(value.sharding.is_equivalent_to(place, 1), value.tolist())
    """
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "True [3.0, 3.0, 3.0, 3.0]"
