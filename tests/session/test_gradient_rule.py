"""Gradients under the reading rule and nested control dependencies, checked against an interpreter of the rule.

The rule: the result equals running the nodes in creation order; a gradient waits for its control inputs with its own
work only, and what lies between xs and ys keeps its place. The interpreter differentiates with nested dual numbers.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import hookline as hl
from hookline import errors

VARIABLES = ("a", "b", "c")
START = {"a": 0.5, "b": -0.25, "c": 0.75}


@dataclasses.dataclass(frozen=True)
class Dual:
    """`real + part * eps`, where `eps` is distinguished by `tag`; both may be dual numbers of earlier tags."""

    real: object
    part: object
    tag: int


def split(value, tag):
    return (value.real, value.part) if isinstance(value, Dual) and value.tag == tag else (value, 0.0)


def top(*values):
    return max((v.tag for v in values if isinstance(v, Dual)), default=None)


def plus(x, y):
    tag = top(x, y)
    if tag is None:
        return x + y
    (xr, xp), (yr, yp) = split(x, tag), split(y, tag)
    return Dual(plus(xr, yr), plus(xp, yp), tag)


def times(x, y):
    tag = top(x, y)
    if tag is None:
        return x * y
    (xr, xp), (yr, yp) = split(x, tag), split(y, tag)
    return Dual(times(xr, yr), plus(times(xr, yp), times(xp, yr)), tag)


def sine(x, shift=0.0):
    if not isinstance(x, Dual):
        return math.sin(x + shift)
    return Dual(sine(x.real, shift), times(sine(x.real, shift + math.pi / 2), x.part), x.tag)


def plain(x):
    return plain(x.real) if isinstance(x, Dual) else x


def without(x, tags):
    """A dual number without its parts of certain tags."""
    if not isinstance(x, Dual):
        return x
    real, part = without(x.real, tags), without(x.part, tags)
    return real if x.tag in tags else Dual(real, part, x.tag)


def mixed(values, plus, times, sine):
    """The one function of the random graphs, for arrays and for dual numbers."""
    total = 0.1
    for place, value in enumerate(values):
        total = plus(total, times(0.9 - 0.2 * place, value))
    product = times(0.3, times(values[0], values[-1])) if values else 0.2
    return plus(sine(total), product)


def on_arrays(*values):
    return mixed(values, lambda x, y: x + y, lambda x, y: x * y, jnp.sin)


def on_duals(values):
    return mixed(values, plus, times, sine)


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of a random graph. Arguments are numbers of earlier nodes or names of variables."""

    kind: str  # "compute", "assign", "add" or "gradient"
    args: tuple[int | str, ...]  # of a gradient: ys
    control: tuple[int, ...]
    writes: str | None = None
    xs: tuple[int | str, ...] = ()


class Interpreter:
    """The rule, for one graph."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.behind: list[set[int]] = []  # from which a way of computations leads to this node
        self.after: list[set[int]] = []  # inputs of this node
        self.connected: list[tuple[int | str, ...]] = []
        for i, node in enumerate(nodes):
            ys = {a for a in node.args if isinstance(a, int)}
            between = ys.union(*[self.behind[y] for y in ys])
            self.connected.append(tuple(x for x in node.xs if x in node.args or self.is_read(x, between)))
            ways = ys | {x for x in self.connected[i] if isinstance(x, int)}
            if node.kind == "gradient" and not self.connected[i]:
                self.behind.append(set())
                self.after.append(set())
                continue
            direct = ways | set(node.control)
            self.after.append(direct.union(*[self.after[d] for d in direct]))
            differentiable = node.kind in ("compute", "gradient")
            self.behind.append({i}.union(*[self.behind[d] for d in ways]) if differentiable else set())

    def is_read(self, x, steps) -> bool:
        # A gradient of a value that does not depend on its xs is a constant, and reads nothing.
        readers = [self.nodes[s] for s in steps if self.nodes[s].kind == "compute" or self.is_gradient(s)]
        if any(x in r.args for r in readers) or x in steps:
            return True
        return any(x in self.connected[s] for s in steps if s < len(self.connected))

    def is_gradient(self, i) -> bool:
        return self.nodes[i].kind == "gradient" and bool(self.connected[i])

    def run(self, fetches, state):
        needed = sorted(set(fetches).union(*[self.after[f] for f in fetches]))
        self.history = {name: [(-1, value)] for name, value in state.items()}
        self.values: dict[int, float] = {}
        for i in needed:
            node = self.nodes[i]
            if node.writes:
                args = [self.read(a, i, {}) for a in node.args]
                new = on_duals(args)
                old = self.history[node.writes][-1][1]
                self.values[i] = plain(plus(old, new) if node.kind == "add" else new)
                self.history[node.writes].append((i, self.values[i]))
            else:
                self.values[i] = self.evaluate(i, {})
        return [self.values[f] for f in fetches], {name: kept[-1][1] for name, kept in self.history.items()}

    def version(self, name: str, i: int) -> int:
        """Returns the index of the update of `name` whose result node `i` reads."""
        if self.nodes[i].kind == "gradient":
            ys = {a for a in self.nodes[i].args if isinstance(a, int)}
            steps = {s for s in ys.union(*[self.behind[y] for y in ys]) if self.behind[s]}
            reads = [s for s in steps if name in self.nodes[s].args or name in self.connected[s]]
            found = {self.version(name, s) for s in reads}
            if len(found) > 1:
                raise errors.InvalidArgumentError(None, None, "ambiguous")
            if found:
                return found.pop()
        return max((d for d in self.after[i] if self.nodes[d].writes == name), default=-1)

    def read(self, a, i, moved):
        if isinstance(a, int):
            return self.evaluate(a, moved)
        place = max(p for p, _ in self.history[a] if p <= self.version(a, i))
        if (a, place) in moved:
            return moved[a, place]
        return dict(self.history[a])[place]

    def evaluate(self, i, moved):
        """Returns the value of a node with some sources replaced by dual numbers."""
        if i in moved:
            # A gradient further inside goes on through a node that one further outside has moved: its own grad there
            # is as it was.
            tags = {value.tag for key, value in list(moved.items())[list(moved).index(i) + 1 :]}
            if not tags:
                return moved[i]
            there = self.evaluate(i, {key: value for key, value in moved.items() if key != i})
            return plus(moved[i], plus(there, times(-1.0, without(there, tags))))
        node = self.nodes[i]
        if node.writes or (not moved and i in self.values):
            return self.values[i]
        if node.kind == "compute":
            return on_duals([self.read(a, i, moved) for a in node.args])
        total = 0.0
        for x in self.connected[i]:
            tag = 1 + max((top(value) or 0 for value in moved.values()), default=0)
            key = x if isinstance(x, int) else (x, max(p for p, _ in self.history[x] if p <= self.version(x, i)))
            there = self.read(x, i, moved)
            inside = {k: v for k, v in moved.items() if k != key} | {key: Dual(there, 1.0, tag)}
            for y in node.args:
                total = plus(total, split(self.read(y, i, inside), tag)[1])
        return total


@st.composite
def graphs(draw):
    nodes: list[Node] = []
    for i in range(draw(st.integers(2, 10))):
        sources = st.sampled_from([*VARIABLES, *range(i)])
        args = tuple(draw(st.lists(sources, min_size=1, max_size=3)))
        control = tuple(draw(st.lists(st.sampled_from(range(i)), max_size=2))) if i else ()
        kind = draw(st.sampled_from(["compute", "compute", "assign", "add", "gradient", "gradient"]))
        if kind == "gradient" and i:
            ys = tuple(draw(st.lists(st.sampled_from(range(i)), min_size=1, max_size=2, unique=True)))
            xs = tuple(draw(st.lists(sources, min_size=1, max_size=2, unique=True)))
            nodes.append(Node("gradient", ys, control, None, xs))
        elif kind in ("assign", "add"):
            nodes.append(Node(kind, args, control, draw(st.sampled_from(VARIABLES))))
        else:
            nodes.append(Node("compute", args, control))
    runs = st.lists(st.sampled_from(range(len(nodes))), min_size=1, max_size=3)
    return nodes, draw(st.lists(runs, min_size=1, max_size=2))


def build(nodes: list[Node]):
    variables = {name: hl.Variable(value, name=name) for name, value in START.items()}
    tensors: list[hl.Tensor] = []

    def tensor(a):
        return variables[a] if isinstance(a, str) else tensors[a]

    def make(node: Node):
        args = [tensor(a) for a in node.args]
        if node.kind == "compute":
            return hl.op(on_arrays)(*args)
        if node.kind == "assign":
            return variables[node.writes].assign(hl.op(on_arrays)(*args))
        if node.kind == "add":
            return variables[node.writes].assign_add(hl.op(on_arrays)(*args))
        grads = [grad for grad in hl.gradients(args, [tensor(x) for x in node.xs]) if grad is not None]
        if grads:
            return hl.op(lambda *grads: sum(grads))(*grads)
        with hl.control_dependencies(None):
            return hl.constant(0.0)

    def nested(control, node):
        if not control:
            return make(node)
        with hl.control_dependencies([tensors[control[0]]]):
            return nested(control[1:], node)

    for node in nodes:
        tensors.append(nested(node.control, node))
    return variables, tensors


# A graph has ten nodes at most: one that fails is shown as it is. To make it smaller takes minutes of compiling.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(graphs())
def test_run_with_gradients_equals_the_interpreter(case):
    nodes, runs = case
    with hl.Graph().as_default():
        _, tensors = build(nodes)
        init = hl.global_variables_initializer()
        rule, state = Interpreter(nodes), dict(START)
        with hl.Session() as sess:
            sess.run(init)
            for fetches in runs:
                # Half of the fetches are made as a hook would.
                half = len(fetches) // 2
                asked = [tensors[i] for i in fetches[:half]], ([tensors[i] for i in fetches[half:]],)
                try:
                    expected, state = rule.run(fetches, state)
                except errors.InvalidArgumentError:
                    with pytest.raises(errors.InvalidArgumentError, match="both before and after"):
                        sess.backend.run_with_hook_fetches(*asked)
                    continue
                result, (watched,) = sess.backend.run_with_hook_fetches(*asked)
                np.testing.assert_allclose([*result, *watched], expected, rtol=2e-3, atol=1e-4)
                after = sess.snapshot()
                np.testing.assert_allclose(
                    [after[v] for v in VARIABLES], [state[v] for v in VARIABLES], rtol=2e-3, atol=1e-4
                )
