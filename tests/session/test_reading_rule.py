"""The reading rule of DESIGN.md section 2, checked against an interpreter that is the rule itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import hookline as hl

VARIABLES = ("count", "weight", "bias")


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of a random graph: arguments are numbers of earlier nodes or names of variables."""

    kind: str  # "compute", "assign", "add", "bump" or "both"
    args: tuple[int | str, ...]
    control: tuple[int, ...]
    writes: tuple[str, ...] = ()


def mix(*values):
    total = 1
    for factor, value in enumerate(values, start=2):
        total = total + factor * value
    return total % 1009


APPLY: dict[str, Callable] = {
    "assign": lambda old, *args: (mix(*args),),
    "add": lambda old, *args: (old[0] + mix(*args),),
    "bump": lambda old, *args: (old[0] + 3,),
    "both": lambda old, *args: (old[1] + mix(*args), old[0]),
}


def interpret(nodes: list[Node], fetches: list[int], state: dict[str, int]) -> tuple[list[int], dict[str, int]]:
    """Runs the nodes in creation order: a read sees the updates created up to the latest one it depends on."""
    after: dict[int, set[int]] = {}
    for i, node in enumerate(nodes):
        direct = {a for a in (*node.args, *node.control) if isinstance(a, int)}
        after[i] = direct.union(*[after[d] for d in direct])
    needed = sorted(set(fetches).union(*[after[f] for f in fetches]))
    values: dict[int, int | tuple[int, ...]] = {}
    history = {name: [(-1, value)] for name, value in state.items()}
    for i in needed:
        node = nodes[i]

        def read(name, i=i):
            latest = max((d for d in after[i] if name in nodes[d].writes), default=-1)
            return next(value for place, value in reversed(history[name]) if place <= latest)

        args = [read(a) if isinstance(a, str) else np.sum(values[a]) for a in node.args]
        if node.writes:
            values[i] = APPLY[node.kind](tuple(history[name][-1][1] for name in node.writes), *args)
            for name, value in zip(node.writes, values[i], strict=True):
                history[name].append((i, value))
        else:
            values[i] = mix(*args)
    return [int(np.sum(values[f])) for f in fetches], {name: kept[-1][1] for name, kept in history.items()}


@st.composite
def graphs(draw):
    nodes: list[Node] = []
    for i in range(draw(st.integers(1, 9))):
        arguments = st.sampled_from([*VARIABLES, *range(i)])
        args = tuple(draw(st.lists(arguments, max_size=3)))
        control = tuple(draw(st.lists(st.sampled_from(range(i)), max_size=2))) if i else ()
        kind = draw(st.sampled_from(["compute", "compute", "assign", "add", "bump", "both"]))
        if kind == "compute":
            nodes.append(Node(kind, args or ("weight",), control))
        elif kind == "bump":
            nodes.append(Node(kind, (), control, (draw(st.sampled_from(VARIABLES)),)))
        elif kind == "both":
            nodes.append(Node(kind, args, control, tuple(draw(st.permutations(["weight", "bias"])))))
        else:
            nodes.append(Node(kind, args, control, (draw(st.sampled_from(VARIABLES)),)))
    fetches = draw(
        st.lists(st.lists(st.sampled_from(range(len(nodes))), min_size=1, max_size=3), min_size=1, max_size=3)
    )
    return nodes, fetches


def build(nodes: list[Node]):
    variables = {name: hl.Variable(lambda: np.int32(5), name=name, trainable=False) for name in VARIABLES}
    tensors: list[hl.Tensor] = []
    total = hl.op(lambda value: sum(value) if isinstance(value, tuple) else value)
    for node in nodes:
        args = [variables[a] if isinstance(a, str) else total(tensors[a]) for a in node.args]
        with hl.control_dependencies([tensors[i] for i in node.control]):
            if node.kind == "compute":
                tensors.append(hl.op(mix)(*args))
            elif node.kind == "bump":
                tensors.append(variables[node.writes[0]].assign_add(3))
            else:
                written = tuple(variables[name] for name in node.writes)
                tensors.append(hl.update(written, APPLY[node.kind], *args, name=node.kind))
    return variables, [total(tensor) for tensor in tensors]


# A graph has ten nodes at most: one that fails is shown as it is. To make it smaller takes minutes of compiling.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(graphs())
def test_run_equals_the_interpreter(case):
    nodes, runs = case
    with hl.Graph().as_default():
        variables, sums = build(nodes)
        init = hl.global_variables_initializer()
        state = dict.fromkeys(VARIABLES, 5)
        with hl.Session() as sess:
            sess.run(init)
            for fetches in runs:
                # Half of the fetches are made as a hook would.
                half = len(fetches) // 2
                result, (watched,) = sess.backend.run_with_hook_fetches(
                    [sums[i] for i in fetches[:half]], ([sums[i] for i in fetches[half:]],)
                )
                expected, state = interpret(nodes, fetches, state)
                assert [int(value) for value in (*result, *watched)] == expected
                assert {name: int(value) for name, value in sess.snapshot().items()} == state
                # The host's copies of counters agree with the device.
                assert {name: int(sess.run(variables[name])) for name in VARIABLES} == state


def test_read_gives_the_value_before_the_run_unless_it_depends_on_the_update():
    v = hl.Variable(1.0, name="v")
    update = v.assign_add(10.0)
    with hl.control_dependencies([update]):
        after = v.read_value()
        doubled_after = v * 2
    doubled = v * 2
    with hl.Session() as sess:
        sess.run(v.initializer)
        results = sess.run({"v": v, "update": update, "after": after, "before2": doubled, "after2": doubled_after})
        assert results == {"v": 1.0, "update": 11.0, "after": 11.0, "before2": 2.0, "after2": 22.0}
        assert sess.run(v) == 11.0


def test_several_updates_apply_in_the_order_of_their_creation():
    v = hl.Variable(1.0, name="v")
    doubled = hl.update(v, lambda old: old * 2, name="double")
    added = v.assign_add(3.0)
    with hl.Session() as sess:
        sess.run(v.initializer)
        assert sess.run([added, doubled]) == [5.0, 2.0]
        assert sess.run(v) == 5.0
        assert sess.run(added) == 8.0
