"""A state on several devices is trained there, also after a resume."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from .devices import run, train

KINDS = ["anywhere", "parallel", "small", "fsdp", "fsdp-explicit", "last"]
LAYOUTS = [f"{layout}{axes}" for layout in ("parallel", "fsdp", "tensor") for axes in ("", "-explicit")]
# Part of `make test`: which kinds are resumed, and the events of a training on each layout.
QUICK_KINDS = {"anywhere", "fsdp-explicit", "last"}
QUICK = {("tensor-explicit", "fresh"), ("fsdp", "lost"), ("fsdp-explicit", "nan")}
RESUMED = [pytest.param(kind, marks=() if kind in QUICK_KINDS else pytest.mark.campaign) for kind in KINDS]
CELLS = [
    pytest.param(kind, what, marks=() if (kind, what) in QUICK else pytest.mark.campaign)
    for kind in LAYOUTS
    for what in ("fresh", "killed", "lost", "nan")
]
LEFT = [cell.values for cell in CELLS if cell.values not in QUICK]


def jobs_of(cells, *kinds):
    return [f"{kind}:{what}:6" for kind, what in cells if what in kinds]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("devices")


@pytest.fixture(scope="module")
def first(directory, environment):
    """The results of a process with 4 devices, and the log."""
    jobs = [f"{kind}:{job}" for kind in sorted(QUICK_KINDS) for job in ("whole:6", "parts:3")]
    jobs += [f"{kind}:whole:6" for kind in ("one", "fsdp", "tensor-explicit")]
    jobs += ["fsdp:fewer:3", *jobs_of(sorted(QUICK), "lost", "nan")]
    return train(4, directory, *jobs, env=environment())


@pytest.fixture(scope="module")
def resumed(directory, first, environment):
    """The results of a second process, which resumes."""
    return train(4, directory, *(f"{kind}:parts:6" for kind in sorted(QUICK_KINDS)), env=environment())


@pytest.fixture(scope="module")
def others(directory, first, environment):
    """The results of the cases that `make test` leaves out."""
    kinds = sorted(set(KINDS) - QUICK_KINDS)
    whole = [f"{kind}:whole:6" for kind in sorted({*KINDS, *LAYOUTS}) if f"{kind}:whole:6" not in first[0]]
    begun = train(4, directory, *whole, *(f"{kind}:parts:3" for kind in kinds), "parallel:fewer:3", env=environment())
    killed = jobs_of(LEFT, "killed")
    for job in killed:
        train(4, directory, job, env=environment())
    jobs = [*jobs_of(LEFT, "lost", "nan"), *killed, *(f"{kind}:parts:6" for kind in kinds)]
    results, log = train(4, directory, *jobs, env=environment())
    return begun[0] | results, log


@pytest.fixture
def came_of(request):
    """Returns the result of a job, and the log of its process."""

    def came_of(job):
        for name in ("first", "resumed", "others"):
            results, log = request.getfixturevalue(name)
            if job in results:
                return results[job], log
        raise AssertionError(f"no process has run {job}")

    return came_of


@pytest.mark.parametrize(("kind", "what"), CELLS)
def test_training_on_devices_ends_like_on_one_after_any_events(kind, what, came_of):
    (alone, _), (whole, _) = came_of("one:whole:6"), came_of(f"{kind}:whole:6")
    for one, other in zip(whole["values"], alone["values"], strict=True):
        assert np.allclose(one, other, rtol=2e-5, atol=2e-6)
    assert whole["devices"] == 4
    if what == "fresh":
        assert whole["programs"] == alone["programs"], "none was compiled again for another layout"
        assert whole["evaluated"]["loss"] == pytest.approx(alone["evaluated"]["loss"], rel=1e-5)
        return
    found, log = came_of(f"{kind}:{what}:6")
    assert found["ended"] == whole["ended"]
    assert found["begun"] == whole["begun"] * len(found["begun"])
    if what == "nan":  # Two steps less: it went back to those of the last checkpoint.
        assert "The weights were restored from" in log
    else:
        assert found["values"] == whole["values"]
        assert len(found["begun"]) == (2 if what == "lost" else 1)


@pytest.mark.campaign
def test_eight_devices_end_like_one(first, tmp_path, environment):
    (found,) = train(8, tmp_path, "tensor-explicit:whole:6", env=environment())[0].values()
    assert found["devices"] == 8
    for one, other in zip(found["values"], first[0]["one:whole:6"]["values"], strict=True):
        assert np.allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", RESUMED)
def test_training_resumed_in_a_new_process_ends_with_the_same_bits(kind, came_of):
    (whole, _), (parts, _) = came_of(f"{kind}:whole:6"), came_of(f"{kind}:parts:6")
    assert whole["devices"] == parts["devices"] == (1 if kind == "last" else 4)
    assert parts["values"] == whole["values"]
    assert parts["evaluated"] == whole["evaluated"]


@pytest.mark.parametrize("kind", RESUMED)
def test_restored_values_have_the_sharding_of_the_initial_values(kind, came_of):
    (whole, _), (parts, _) = came_of(f"{kind}:whole:6"), came_of(f"{kind}:parts:6")
    assert parts["begun"] == whole["begun"], "so no step is compiled once more"
    assert parts["ended"] == whole["ended"]
    placed = {path: place for path, place in whole["given"].items() if path != "['n']" and kind != "anywhere"}
    assert placed.items() <= parts["begun"][0].items()
    assert parts["loaded"] == parts["given"], "train.load takes it to where `like` lies"


def test_unchanged_devices_are_not_logged(resumed):
    assert "devices" not in resumed[1]


@pytest.mark.parametrize(
    ("kind", "devices", "now"),
    [
        ("fsdp", 2, "2 devices (cpu:0, cpu:1)"),
        pytest.param("parallel", 1, "1 device (cpu:0)", marks=pytest.mark.campaign),
    ],
)
def test_fewer_devices_give_a_warning_and_the_right_result(kind, devices, now, directory, came_of, environment):
    whole, _ = came_of(f"{kind}:whole:6")
    results, log = train(devices, directory, f"{kind}:fewer:6", env=environment())
    found = results[f"{kind}:fewer:6"]
    assert found["devices"] == devices
    for one, other in zip(found["values"], whole["values"], strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-5)
    assert f"model.ckpt-3' was saved from 4 devices (cpu:0 to cpu:3) and is restored onto {now}. To train" in log


def program(devices, code, *arguments):
    return run(devices, ["-c", textwrap.dedent(code), *map(str, arguments)])


def test_devices_of_a_sharded_state_are_logged():
    done = program(
        2,
        """
        import logging
        import jax, jax.numpy as jnp, numpy as np
        import hookline as hl

        logging.basicConfig(level=logging.INFO)
        mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        state = {"w": jax.device_put(jnp.ones(4), jax.NamedSharding(mesh, jax.P("x")))}
        loop = hl.train.Loop(lambda state, batch: (state, {}), state, [np.ones(2)])
        print(len(loop.run()["w"].devices()))
        """,
    )
    assert done.stdout == "2\n", done.stderr
    assert "Loop: the state is on 2 devices (cpu:0, cpu:1), and is trained there." in done.stderr


def test_unknown_sharding_of_saved_shards_gives_a_warning(tmp_path):
    done = program(
        2,
        """
        import sys
        import jax, jax.numpy as jnp
        import hookline as hl

        mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        rows = jax.NamedSharding(mesh, jax.P("x"))
        for made in (jax.device_put(jnp.arange(4.0), rows), lambda: jnp.arange(4.0)):
            with hl.Graph().as_default(), hl.Session() as session:
                w = hl.Variable(made, name="w")
                if not callable(made):
                    session.run(w.initializer)
                    path = hl.train.Saver().save(session, sys.argv[1] + "/model.ckpt")
                hl.train.Saver().restore(session, path)
                print(len(session.snapshot()["w"].devices()), session.run(w).tolist())
        """,
        tmp_path,
    )
    assert done.stdout == "2 [0.0, 1.0, 2.0, 3.0]\n1 [0.0, 1.0, 2.0, 3.0]\n"
    assert done.stderr.count("was saved from 2 devices (cpu:0, cpu:1) and is restored onto 1 device (cpu:0)") == 1


def test_warm_start_values_get_the_sharding_of_the_values_they_replace(tmp_path):
    done = program(
        2,
        """
        import sys
        import jax, jax.numpy as jnp, numpy as np
        import hookline as hl

        def loop(state):
            return hl.train.Loop(lambda state, batch: ({"w": state["w"] + 1}, {}), state, [np.ones(2)])

        mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        rows = jax.NamedSharding(mesh, jax.P("x"))
        loop({"w": jnp.arange(4.0)}).run(sys.argv[1])
        warm = loop({"w": jax.device_put(jnp.zeros(4), rows)})
        with warm.graph.as_default():
            hl.train.init_from_checkpoint(sys.argv[1], {"state": warm.state})
        w = warm.run()["w"]
        print(w.tolist(), len(w.devices()))
        """,
        tmp_path,
    )
    assert done.stdout == "[2.0, 3.0, 4.0, 5.0] 2\n"


def test_value_of_another_shape_gets_a_possible_sharding(tmp_path):
    done = program(
        2,
        """
        import sys
        import jax, jax.numpy as jnp
        import hookline as hl

        mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        rows = jax.NamedSharding(mesh, jax.P("x"))
        with hl.Graph().as_default(), hl.Session() as session:
            session.run(hl.Variable(jnp.ones((3, 2)), name="w").initializer)
            path = hl.train.Saver().save(session, sys.argv[1] + "/model.ckpt")
        with hl.Graph().as_default(), hl.Session() as session:
            w = hl.Variable(jax.device_put(jnp.zeros(6), rows), name="w")
            hl.train.Saver(reshape=True).restore(session, path)
            print(session.run(w).tolist())
        """,
        tmp_path,
    )
    assert done.stdout == "[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]\n"
