"""A thousand workers that start at once against workers that start one after the other: an event-driven simulation.

    python benchmarks/gradual_start.py [plot.svg]

Asynchronous workers train one model over parameter servers. Either all of them start at once, or worker i waits for
global step int(K * log(i + 1)), as with a `GlobalStepWaiterHook`. Prints two tables, and draws the plot of
docs/distributed.md. One process, no clock, no network: it gives the same numbers each time.

What is a model: the cluster. A worker pulls the parameters, computes for `compute_secs` (with a variation), and pushes
its gradient to all servers at once, which brings back the new parameters. Each server serves one worker after the
other; how long is rounded from measurements of Ray actors on one machine. The update counts when the last server has
it.

What is computed for real: the training. The gradients are those of a Poisson regression on minibatches, each at the
parameters that its worker pulled, applied in the order in which the simulated servers served them. The regression is
small; `model_bytes` says how many bytes the calls carry in its place.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

PULL, PUSH, PULLED, PUSHED = range(4)
SECS, LOOKS = 80.0, 240
AT_ONCE = 0
KS = (AT_ONCE, 10, 30, 100)
GOAL = 0.1

# The model ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Workers and servers.

    Attributes:
        workers: How many.
        servers: How many; each holds an equal share of the parameters.
        model_bytes: Of all parameters; a push carries as many, and so does what comes back.
        compute_secs: What a gradient takes, on average.
        variation: Standard deviation of its logarithm.
        latency_secs: From a worker to a server, or back.
        call_secs: What a server needs for a call, whatever it carries.
        bytes_per_sec: What it can take in or give out.
        up_secs: All workers are up, and could start, within this time.
    """

    workers: int = 1000
    servers: int = 4
    model_bytes: int = 4_000_000
    compute_secs: float = 0.2
    variation: float = 0.2
    latency_secs: float = 0.0005
    call_secs: float = 0.00025
    bytes_per_sec: float = 1.3e9
    up_secs: float = 1.0

    def busy_secs(self, kind: int) -> np.ndarray:
        """Returns how long a pull or a push keeps each server busy.

        A push to several servers is three calls of each. The first, which holds the global step, has one, and calls
        each of the others.
        """
        calls = np.ones(self.servers)
        if kind == PUSH and self.servers > 1:
            calls[:] = 3
            calls[0] = self.servers
        carried = (2 if kind == PUSH else 1) * self.model_bytes / self.servers
        return calls * self.call_secs + carried / self.bytes_per_sec


class Regression:
    """Poisson regression with a log link: counts whose mean is exp(weights @ features).

    Curvature and gradient are in proportion to the predicted means: large where these are too large, and nearly
    nothing where they are too small. So far from the solution a step that is too long costs many steps to make good.

    Args:
        intercept: Where the training starts: predictions are about exp(intercept) times too large.
        learning_rate: Of plain SGD.
        features: How many, beside the intercept.
        samples: How many.
        batch_size: Samples in a gradient.
        seed: Of the data.
    """

    def __init__(
        self,
        intercept: float = 5.0,
        learning_rate: float = 0.001,
        features: int = 10,
        samples: int = 2000,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self._inputs = np.hstack([np.ones((samples, 1)), 0.5 * rng.normal(size=(samples, features))])
        truth = np.concatenate([[0.0], 0.3 * rng.normal(size=features)])
        self._counts = rng.poisson(np.exp(self._inputs @ truth)).astype(float)
        self._batch_size = batch_size
        self.learning_rate = learning_rate
        self.start = np.concatenate([[intercept], np.zeros(features)])
        self._least = 0.0
        self._least = self.excess_loss(self._solution())

    def _solution(self) -> np.ndarray:
        weights = np.zeros_like(self.start)
        for _ in range(30):  # Newton's method
            means = self._means(self._inputs, weights)
            hessian = (self._inputs.T * means) @ self._inputs
            weights = weights - np.linalg.solve(hessian, self._inputs.T @ (means - self._counts))
        return weights

    @staticmethod
    def _means(inputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return np.exp(np.minimum(inputs @ weights, 30.0))

    def excess_loss(self, weights: np.ndarray) -> float:
        """Returns the mean loss over all samples, less that of the solution."""
        means = self._means(self._inputs, weights)
        return float((means - self._counts * (self._inputs @ weights)).mean()) - self._least

    def gradient(self, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns the gradient of the mean loss over a random minibatch."""
        batch = rng.integers(len(self._counts), size=self._batch_size)
        inputs = self._inputs[batch]
        return inputs.T @ (self._means(inputs, weights) - self._counts[batch]) / self._batch_size


@dataclasses.dataclass(frozen=True)
class Result:
    """What happened; rows are moments at equal distances.

    Attributes:
        secs: When the state was looked at.
        losses: Excess loss then.
        queues: Calls at the servers then, waiting or being served; a call to all servers counts once.
        started: Workers that had pulled their first parameters by then.
        mean_staleness: Of the updates since the row before; NaN if there were none.
        max_staleness: Likewise.
        steps: The global step then.
        starts: For each worker the global step and the second at which its wait ended; None if it did not end.
        pushed: For each worker how many of its updates reached the servers.
        applied: For each worker how many of its updates were applied.
        in_flight: Updates that were at the servers, and not yet applied, at the end.
    """

    secs: np.ndarray
    losses: np.ndarray
    queues: np.ndarray
    started: np.ndarray
    mean_staleness: np.ndarray
    max_staleness: np.ndarray
    steps: np.ndarray
    starts: list[tuple[int, float] | None]
    pushed: np.ndarray
    applied: np.ndarray
    in_flight: int

    def secs_to(self, loss: float) -> float:
        """Returns when the loss was below `loss` for good; infinity if it was not at the end."""
        above = np.nonzero(self.losses > loss)[0]
        if len(above) == 0:
            return 0.0
        return float(self.secs[above[-1] + 1]) if above[-1] + 1 < len(self.secs) else math.inf


def gradual(workers: int, k: float) -> list[int]:
    """Returns the global step that each worker waits for; 0 for all of them if `k` is 0."""
    return [int(k * math.log(task_id + 1)) for task_id in range(workers)]


def simulate(
    cluster: Cluster, problem: Regression, wait_until: Sequence[int], secs: float = SECS, looks: int = LOOKS, seed=0
) -> Result:
    """Trains for `secs` simulated seconds.

    Args:
        cluster: The workers and servers.
        problem: What to train.
        wait_until: For each worker the global step that it waits for.
        secs: How long.
        looks: How often to look at the state.
        seed: Of starts, times and minibatches.
    """
    rng = np.random.default_rng(seed)
    workers = cluster.workers
    weights, step, queue, started = problem.start, 0, 0, 0
    held, held_step = [weights] * workers, [0] * workers
    pushed, applied = np.zeros(workers, int), np.zeros(workers, int)
    starts: list[tuple[int, float] | None] = [None] * workers
    free_at = np.zeros(cluster.servers)
    busy_secs = {kind: cluster.busy_secs(kind) for kind in (PULL, PUSH)}
    events: list[tuple[float, int, int, int]] = []  # (when, number, kind, worker)
    numbers = iter(range(sys.maxsize))
    rows: list[tuple[float, ...]] = []
    staleness: list[int] = []

    def schedule(when: float, kind: int, worker: int) -> None:
        heapq.heappush(events, (when, next(numbers), kind, worker))

    def start(worker: int, now: float) -> None:
        starts[worker] = (step, now)
        schedule(now + cluster.latency_secs, PULL, worker)

    def look_up_to(now: float) -> None:
        while len(rows) <= looks and len(rows) * secs / looks <= now:
            mean, most = (np.mean(staleness), max(staleness)) if staleness else (math.nan, math.nan)
            rows.append((len(rows) * secs / looks, problem.excess_loss(weights), queue, started, mean, most, step))
            staleness.clear()

    up_at = np.sort(rng.uniform(0, cluster.up_secs, workers))
    waiting = [(threshold, worker) for worker, threshold in enumerate(wait_until) if threshold > 0]
    heapq.heapify(waiting)
    for worker, threshold in enumerate(wait_until):
        if threshold <= 0:
            start(worker, float(up_at[worker]))

    while events and events[0][0] < secs:
        now, _, kind, worker = heapq.heappop(events)
        look_up_to(now)
        if kind in (PULL, PUSH):
            queue += 1
            pushed[worker] += kind == PUSH
            # Each server takes calls in the order of their arrival, one at a time.
            free_at = np.maximum(free_at, now) + busy_secs[kind] * rng.uniform(0.9, 1.1, cluster.servers)
            schedule(float(free_at.max()), PULLED if kind == PULL else PUSHED, worker)
            continue
        queue -= 1
        if kind == PULLED:
            started += 1
        else:
            staleness.append(step - held_step[worker])
            weights = weights - problem.learning_rate * problem.gradient(held[worker], rng)
            step += 1
            applied[worker] += 1
            while waiting and waiting[0][0] <= step:
                _, late = heapq.heappop(waiting)
                start(late, max(now + cluster.latency_secs, float(up_at[late])))
        held[worker], held_step[worker] = weights, step
        compute_secs = cluster.compute_secs * rng.lognormal(-(cluster.variation**2) / 2, cluster.variation)
        schedule(now + 2 * cluster.latency_secs + compute_secs, PUSH, worker)
    look_up_to(secs)

    in_flight = sum(kind == PUSHED for _, _, kind, _ in events)
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Result(*columns, starts=starts, pushed=pushed, applied=applied, in_flight=in_flight)


# The plot -------------------------------------------------------------------------------------------------------

COLOURS = ("#c8102e", "#7db4de", "#2b7bba", "#08306b")
WIDTH, LEFT, PANEL, GAP, TOP = 760, 70, 170, 46, 66


def plot(results: Sequence[Result], labels: Sequence[str], title: str) -> str:
    """Returns an SVG of loss, staleness and queue against time."""
    panels: list[tuple[str, Callable[[Result], np.ndarray], bool, Sequence[float]]] = [
        ("excess loss", lambda r: r.losses, True, (1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100)),
        ("staleness of updates: mean (line) and maximum (dots)", lambda r: r.mean_staleness, False, (0, 500, 1000)),
        ("workers waiting at the servers", lambda r: r.queues, False, (0, 500, 1000)),
    ]
    height = TOP + len(panels) * (PANEL + GAP) + 10
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{title}</text>',
    ]
    for place, (label, colour) in enumerate(zip(labels, COLOURS, strict=True)):
        x = LEFT + 150 * place
        out.append(f'<line x1="{x}" x2="{x + 24}" y1="42" y2="42" stroke="{colour}" stroke-width="2.5"/>')
        out.append(f'<text x="{x + 30}" y="46">{label}</text>')
    right, last = WIDTH - 20, results[0].secs[-1]
    for number, (name, values, is_log, ticks) in enumerate(panels):
        top = TOP + number * (PANEL + GAP) + 14
        low, high = (math.log10(ticks[0]), math.log10(250)) if is_log else (0.0, 1300.0)

        def y(value: float, top=top, low=low, high=high, is_log=is_log) -> float:
            scaled = math.log10(max(value, 1e-9)) if is_log else value
            return top + PANEL * (1 - min(max((scaled - low) / (high - low), 0.0), 1.0))

        def x(secs: float) -> float:
            return LEFT + (right - LEFT) * secs / last

        out.append(f'<text x="{LEFT}" y="{top - 6}" font-weight="bold">{name}</text>')
        for tick in ticks:
            out.append(f'<path d="M{LEFT} {y(tick):.1f}H{right}" stroke="#ddd"/>')
            out.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for secs in range(0, int(last) + 1, 10):
            unit = " s" if secs == int(last) else ""
            out.append(f'<text x="{x(secs):.1f}" y="{top + PANEL + 16}" text-anchor="middle">{secs}{unit}</text>')
        for result, colour in zip(results, COLOURS, strict=True):
            drawn = zip(result.secs, values(result), strict=True)
            points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in drawn if not math.isnan(v))
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
            if number == 1:
                for s, v in zip(result.secs[::4], result.max_staleness[::4], strict=True):
                    if not math.isnan(v):
                        out.append(f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="1.3" fill="{colour}"/>')
    return "\n".join([*out, "</svg>", ""])


def table(cluster: Cluster, results: Sequence[Result]) -> str:
    """Returns what happened as a table in Markdown, with the formulae of docs/distributed.md beside it."""
    total = cluster.workers
    rows = [
        "| K | last start: step (K ln W) | last start: s (1.26 K C) | worst excess loss after the last start "
        f"| s to excess loss {GOAL} | mean staleness, last 10 s | updates/s, last 10 s |",
        "|---|---|---|---|---|---|---|",
    ]
    for k, result in zip(KS, results, strict=True):
        ends = [end for end in result.starts if end is not None]
        step, secs = max(ends)
        after = result.losses[result.secs >= secs]
        late = result.secs > result.secs[-1] - 10
        rate = (result.steps[late][-1] - result.steps[late][0]) / (result.secs[late][-1] - result.secs[late][0])
        rows.append(
            f"| {k or 'at once'} | {step} ({k * math.log(total):.0f}) "
            f"| {secs:.1f} ({1.26 * k * cluster.compute_secs:.1f}) | {after.max():.2g} | {result.secs_to(GOAL):.1f} "
            f"| {np.nanmean(result.mean_staleness[late]):.0f} | {rate:.0f} |"
        )
    return "\n".join(rows)


def main(svg: str | None) -> None:
    begun = time.perf_counter()
    cluster = Cluster()
    for intercept in (5.0, 3.0):
        problem = Regression(intercept)
        results = [simulate(cluster, problem, gradual(cluster.workers, k)) for k in KS]
        print(f"{cluster.workers} workers; predictions {math.exp(intercept):.0f} times too large at the start\n")
        print(table(cluster, results), end="\n\n")
        if svg and intercept == 5.0:
            labels = [f"K = {k}" if k else "all at once" for k in KS]
            title = "1,000 simulated workers: all at once, or worker i at step K ln(i + 1)"
            Path(svg).write_text(plot(results, labels, title), encoding="utf-8")
    print(f"simulated in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
