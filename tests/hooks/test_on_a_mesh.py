"""On a mesh hooks see, write and do the same as on one device, and add little to a step."""

from __future__ import annotations

import collections
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.loop.devices import run

import hookline as hl

from .mesh import JOBS

SPLITS = ("batches", "rows", "columns")
LAYOUTS = [f"{split}, {axes}" for axes in ("automatic", "explicit") for split in SPLITS]
# Each test of the same processes may run in another worker, which trains again: `make test` has one of them.
QUICK = "rows, automatic"
QUICK_JOBS = ("loop", "NaN: rollback", "graph")  # tests/loop/test_devices.py resumes, too.

# Which part of an array of this shape is on each device.
PARTS = {
    "batches": {"(32,)": "(32,)", "(16, 32)": "(16, 32)"},
    "rows": {"(32,)": "(8,)", "(16, 32)": "(4, 32)"},
    "columns": {"(32,)": "(16,)", "(16, 32)": "(16, 16)"},
}
PLACE = re.compile(r"(\(.*\)) of (\(.*\))")
SHOWN_DIGITS = 4
BUCKETS = 1697


@pytest.fixture(scope="module")
def trained(tmp_path_factory, environment):
    """Returns the record of hooks for a layout, by the job; several layouts are trained in one process."""

    @functools.cache
    def process(jobs: tuple[str, ...], *layouts: str) -> dict[str, Any]:
        directory = str(tmp_path_factory.mktemp("mesh"))
        command = ["-m", "tests.hooks.mesh", directory, ",".join(jobs), *layouts]
        return json.loads(run(4, command, environment()).stdout)

    def of(layout: str, jobs: tuple[str, ...] = tuple(JOBS)) -> dict[str, Any]:
        return process(jobs, "one", *([QUICK] if jobs == QUICK_JOBS else LAYOUTS))[layout]

    return of


def leaves(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Returns the leaves of a JSON tree by path; lists of numbers as arrays."""
    if isinstance(found, list) and found and all(isinstance(item, int | float) for item in found):
        yield path, np.array(found)
    elif isinstance(found, dict | list):
        for key, part in found.items() if isinstance(found, dict) else enumerate(found):
            yield from leaves(part, f"{path}/{key}")
    else:
        yield path, found


def is_alike(one: Any, other: Any, path: str) -> bool:
    if isinstance(one, str):
        return one == other or bool(PLACE.fullmatch(one))
    tolerance = 10.0 ** (1 - SHOWN_DIGITS) if "/progress/" in path else 2e-6
    scale = np.nanmax(np.abs(one), initial=0.0)
    return np.shape(one) == np.shape(other) and np.allclose(
        one, other, rtol=tolerance, atol=tolerance * scale / 4, equal_nan=True
    )


@pytest.mark.parametrize(
    ("layout", "jobs"),
    [
        pytest.param(QUICK, QUICK_JOBS, id="quick"),
        *[pytest.param(layout, tuple(JOBS), id=layout, marks=pytest.mark.campaign) for layout in LAYOUTS],
    ],
)
def test_hooks_work_on_a_mesh_as_on_one_device(layout, jobs, trained):
    compared = [{job: r for job, r in trained(name, jobs).items() if job != "readings"} for name in ("one", layout)]
    one, other = (dict(leaves(found)) for found in compared)
    assert compared[0].keys() == set(jobs) - {"readings"}
    assert [text for path, text in [*one.items(), *other.items()] if path.endswith("/error")] == []
    assert other.keys() == one.keys()
    assert {path: (one[path], other[path]) for path in one if not is_alike(one[path], other[path], path)} == {}


@pytest.mark.campaign
def test_compared_values_are_recorded(trained):
    found = trained("one")
    assert {"norm 1", "w 3", "all 7", "loss 5"} <= found["loop"]["summaries"].keys()
    assert found["loop"]["written"].keys() == {f"{name} {step}" for name in ("loss", "norm") for step in (2, 4, 6, 8)}
    assert [len(found["loop"][seen]) for seen in ("progress", "metrics", "logged")] == [3, 3, 4]
    assert found["loop"]["rates"] == 2
    assert "at step 6" in found["NaN: raise"]["raised"]
    assert [len(found[f"NaN: {on_nan}"]["told"]) for on_nan in ("raise", "stop", "skip", "rollback")] == [0, 1, 3, 3]
    assert {"rows/image/0 1", "grads 3", "loss 5"} <= found["graph"]["summaries"].keys()
    assert {"w/ExponentialMovingAverage", "optimizer/joint"} <= found["graph"]["values"].keys()
    for on_nan in ("skip", "rollback"):
        assert np.isfinite(found[f"NaN: {on_nan}"]["state"]).all()


@pytest.mark.campaign
@pytest.mark.parametrize("layout", LAYOUTS)
def test_slots_averages_and_restored_values_have_their_variables_sharding(layout, trained):
    parts = PARTS[layout.partition(",")[0]]
    found = {path: match for path, text in leaves(trained(layout)) if (match := PLACE.fullmatch(str(text)))}
    # A factored optimizer's replacement of the second moment differs from its variable.
    alike = {path: match for path, match in found.items() if not re.search(r"factored/places/8$", path)}
    assert len(alike) > 60
    assert [(p, m[0]) for p, m in alike.items() if m[1] != parts.get(m[2], m[2])] == []
    assert any("ExponentialMovingAverage" in path for path in found)


@pytest.mark.campaign
@pytest.mark.parametrize("layout", ["one", *LAYOUTS])
def test_each_program_is_compiled_once_also_after_a_restore(layout, trained):
    found = {job: result["compiled"] for job, result in trained(layout).items() if "compiled" in result}
    assert {job: told for job, (count, *told) in found.items() if len(told) != count} == {}
    # The initialisers, and the step, which gives hooks its metrics. Equal programs are there already.
    assert {job: count for job, (count, *_) in found.items()} == {
        "loop": 5,  # Other fetches of hooks, an evaluation, and the fetches of the final operations.
        "NaN: raise": 2,
        "NaN: stop": 2,
        "NaN: skip": 3,
        "NaN: rollback": 2,
        "resumed": 0,
        "lost": 2,
        "loaded": 2,
        "warm": 1,
        "graph": 5,
    }


@pytest.mark.campaign
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reading_a_scalar_neither_gathers_nor_transfers_the_model(layout, trained):
    found = trained(layout)["readings"]
    assert found["steps"] == [*range(1, 9)]
    assert set(found["sizes"]) <= {1, BUCKETS}
    for plain, watched in zip(found["collectives"][::2], found["collectives"][1::2], strict=True):
        assert plain, "the step itself has them"
        more = collections.Counter(watched) - collections.Counter(plain)
        assert more or layout.startswith("batches"), "what is whole on each device needs nothing of the others"
        assert set(more) <= {f"all-reduce {array}" for array in ("f32[]", "u32[]", f"u32[{BUCKETS}]")}


def test_value_sharded_over_explicit_axes_is_checked_in_some_runs():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    rows = jax.NamedSharding(mesh, jax.P("data"))
    seen = []

    class Keep(hl.train.LoggingTensorHook):
        def log(self, values, elapsed_secs):
            seen.append(values["w"].tolist())

    def step(state, batch):
        return {"w": state["w"] + batch.sum()}, {}

    loop = hl.train.Loop(step, {"w": jax.device_put(jnp.zeros(2), rows)}, [np.ones(2, "float32")] * 5)
    loop.run(hooks=[Keep({"w": loop.state["w"]}, every_n_iter=2)], progress=False)
    assert seen == [[0.0, 0.0], [4.0, 4.0], [8.0, 8.0]]


def test_skipped_run_keeps_shardings_that_the_step_would_change():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    rows, whole = jax.NamedSharding(mesh, jax.P("data")), jax.NamedSharding(mesh, jax.P())
    state = {"w": jax.device_put(jnp.ones(2), rows), "m": jax.device_put(jnp.zeros(2), whole)}

    def step(state, batch):  # Along explicit axes the sum is sharded as the weights are, and not as the moment before.
        moment = state["m"] + state["w"] * batch.sum()
        return {"w": state["w"] - moment, "m": moment}, {"loss": batch.sum()}

    loop = hl.train.Loop(step, state, [np.full(2, x, "float32") for x in (0.25, np.nan, 0.0)])
    ended = loop.run(on_nan="skip", progress=False)
    assert [np.asarray(ended[name]).tolist() for name in ("w", "m")] == [[0.0, 0.0], [0.5, 0.5]]
