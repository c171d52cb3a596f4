"""The simulation behind docs/distributed.md keeps its books, and its waiters wait."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gradual_start.py"
WORKERS = 16


@pytest.fixture(scope="module")
def sim():
    spec = importlib.util.spec_from_file_location("gradual_start", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def cluster(sim):
    return sim.Cluster(workers=WORKERS, servers=3, compute_secs=0.05)


@pytest.fixture(scope="module")
def gradual_run(sim, cluster):
    return sim.simulate(cluster, sim.Regression(), sim.gradual(WORKERS, 40), secs=12, looks=24)


@pytest.fixture(scope="module")
def thundering_run(sim, cluster):
    return sim.simulate(cluster, sim.Regression(), [0] * WORKERS, secs=6, looks=24)


def test_same_seed_gives_same_numbers_and_another_seed_others(sim, cluster, thundering_run):
    again, other = (sim.simulate(cluster, sim.Regression(), [0] * WORKERS, 6, 24, seed=seed) for seed in (0, 1))

    np.testing.assert_array_equal(again.losses, thundering_run.losses)
    np.testing.assert_array_equal(again.mean_staleness, thundering_run.mean_staleness)
    assert again.starts == thundering_run.starts
    assert not np.array_equal(other.losses, thundering_run.losses)


@pytest.mark.parametrize("run", ["gradual_run", "thundering_run"])
def test_each_update_is_applied_once_or_in_flight(run, request):
    result = request.getfixturevalue(run)

    assert result.applied.sum() == result.steps[-1]
    assert result.pushed.sum() == result.applied.sum() + result.in_flight
    assert np.all((result.pushed - result.applied >= 0) & (result.pushed - result.applied <= 1))
    assert np.all(np.diff(result.steps) >= 0)


@pytest.mark.parametrize("workers", [1, 2, 8, 16])
def test_mean_staleness_is_the_number_of_other_workers(sim, workers):
    cluster = sim.Cluster(workers=workers, servers=1, compute_secs=0.05)
    result = sim.simulate(cluster, sim.Regression(), [0] * workers, secs=6, looks=6)

    assert np.mean(result.mean_staleness[3:]) == pytest.approx(workers - 1, abs=0.02 * workers)
    if workers == 1:
        assert np.nanmax(result.max_staleness) == 0


def test_waiters_start_at_their_thresholds_and_the_chief_at_once(sim, gradual_run):
    thresholds = sim.gradual(WORKERS, 40)

    assert thresholds[0] == 0
    assert gradual_run.starts[0][0] == 0
    assert [step for step, _ in gradual_run.starts] == thresholds
    assert np.all(np.diff([secs for _, secs in gradual_run.starts[1:]]) >= 0)


def test_simulation_waits_to_the_end_for_an_unreached_threshold(sim, cluster):
    result = sim.simulate(cluster, sim.Regression(), [0, *[10**9] * (WORKERS - 1)], secs=2, looks=4)

    assert result.starts[1:] == [None] * (WORKERS - 1)
    assert result.applied[0] == result.steps[-1] > 0
    assert result.started[-1] == 1


def test_last_start_agrees_with_the_formula(sim):
    cluster = sim.Cluster(workers=200, servers=1, model_bytes=4000, compute_secs=0.1, variation=0.05, up_secs=0.01)
    result = sim.simulate(cluster, sim.Regression(), sim.gradual(200, 30), secs=6, looks=3)
    ends = [secs for _, secs in result.starts]

    predicted = 30 * 0.1 * sum(math.log(1 + 1 / i) / i for i in range(1, 200))
    assert max(ends) == pytest.approx(predicted, rel=0.15)


@pytest.mark.parametrize("workers", [8, 64])
def test_servers_apply_no_more_updates_than_their_service_time_allows(sim, workers):
    cluster = sim.Cluster(workers=workers, servers=1, compute_secs=0.1)
    result = sim.simulate(cluster, sim.Regression(), [0] * workers, secs=4, looks=4)

    service = cluster.busy_secs(sim.PUSH).max()
    capacity, demand = 1 / service, workers / (cluster.compute_secs + service)
    rate = (result.steps[-1] - result.steps[1]) / 3
    assert rate == pytest.approx(min(capacity, demand), rel=0.1)
    assert (result.queues[-1] > workers / 4) == (demand > capacity)


def test_gradient_is_the_derivative_of_the_loss(sim):
    problem = sim.Regression(batch_size=200_000)
    weights, small = problem.start * 0.1 + 0.05, 1e-5
    grads = [
        (problem.excess_loss(weights + move) - problem.excess_loss(weights - move)) / (2 * small)
        for move in small * np.eye(len(weights))
    ]

    np.testing.assert_allclose(problem.gradient(weights, np.random.default_rng(0)), grads, atol=0.02)
    assert problem.excess_loss(problem.start) > 100


def test_the_plot_is_well_formed(sim, gradual_run, thundering_run):
    svg = sim.plot([thundering_run, *[gradual_run] * 3], ["all at once", "a", "b", "c"], "a plot")

    root = ElementTree.fromstring(svg)
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 12
    assert all(len(line.get("points").split()) > 10 for line in lines)
    assert "nan" not in svg
