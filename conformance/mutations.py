"""Breaks hookline in fifty places, one at a time, and counts how often conformance notices.

python -m conformance.mutations [--count 50] [--seed 12] [--jobs 2]

A mutation changes one place that the scenarios reach: a comparison is negated, a number is one more, a `not` is
dropped, `and` becomes `or`, a statement is left out. Each is made in a copy of the sources, on which the scenarios are
played until the first that does not agree with TensorFlow's records; that one is played once more, alone, before it
counts. The survivors are printed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from conformance.__main__ import RECORDS, ROOT, reference_records
from conformance.compare import disagreements
from conformance.differences import differences_of
from conformance.runner import read_records

PACKAGE = ROOT / "src" / "hookline"
FOLDERS = ("graph", "session", "hooks", "monitored", "checkpoint", "summary")
TIMEOUT_SECS = 600
_NEGATED = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Delete, ast.Break, ast.Continue)


class Mutation(NamedTuple):
    """One place, and what becomes of it.

    Attributes:
        file: Path below the package.
        index: Which node of the file, in the order of `ast.walk`.
        line: Its line.
        kind: What is done.
        was: The source before.
    """

    file: str
    index: int
    line: int
    kind: str
    was: str


# Places -----------------------------------------------------------------------------------------------------------


def kind_of(node: ast.AST) -> str | None:
    """Returns what a mutation can do to a node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return "comparison negated"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return "number one more"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "not dropped"
    if isinstance(node, ast.BoolOp):
        return "and/or exchanged"
    if isinstance(node, _SIMPLE) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return "statement left out"
    return None


def mutated(node: Any, kind: str) -> ast.AST:
    """Returns what stands in a node's place after the mutation."""
    if kind == "comparison negated":
        return ast.Compare(node.left, [_NEGATED[type(node.ops[0])]()], node.comparators)
    if kind == "number one more":
        return ast.Constant(node.value + 1)
    if kind == "not dropped":
        return node.operand
    if kind == "and/or exchanged":
        return ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    return ast.Pass()


def places(reached: dict[str, set[int]]) -> Iterator[Mutation]:
    """Gives every place inside a function that the scenarios have reached."""
    for folder in FOLDERS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            file = str(path.relative_to(PACKAGE))
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
            inside = {
                id(node)
                for function in ast.walk(tree)
                if isinstance(function, ast.FunctionDef)
                for statement in function.body
                for node in ast.walk(statement)
            }
            for index, node in enumerate(ast.walk(tree)):
                kind = kind_of(node)
                if kind and id(node) in inside and node.lineno in reached.get(file, ()):  # type: ignore[attr-defined]
                    yield Mutation(file, index, node.lineno, kind, ast.unparse(node))  # type: ignore[attr-defined]


def chosen(found: list[Mutation], count: int, seed: int) -> list[Mutation]:
    """Returns so many of the places; each has the same chance."""
    return random.Random(seed).sample(found, count)


def write(mutation: Mutation, source: Path) -> None:
    """Copies the sources to a folder, with the mutation made."""
    shutil.copytree(PACKAGE, source / "hookline", ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "hookline" / mutation.file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    old = list(ast.walk(tree))[mutation.index]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return mutated(node, mutation.kind) if node is old else self.generic_visit(node)

    path.write_text(ast.unparse(ast.fix_missing_locations(Replace().visit(tree))), encoding="utf-8")


# Playing ----------------------------------------------------------------------------------------------------------


def play(source: Path, out: Path, suites: list[str], *arguments: str) -> int | None:
    """Plays scenarios on hookline from a folder of sources; returns the exit status, None if it took too long."""
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONWARNINGS": "ignore",
        "JAX_PLATFORMS": "cpu",
        # The same small programs again and again.
        "JAX_COMPILATION_CACHE_DIR": str(RECORDS / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-m", "conformance.runner", "hookline", str(out), "--suites", *suites, *arguments]
    with open(f"{out}.log", "w", encoding="utf-8") as log:
        try:
            return subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=TIMEOUT_SECS, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def reached_lines(suites: list[str]) -> dict[str, set[int]]:
    """Returns the lines of the package that the scenarios reach, by file."""
    out = RECORDS / "reached.jsonl"
    if play(PACKAGE.parent, out, suites, "--lines", str(RECORDS / "lines.json")):
        raise RuntimeError(f"Playing all scenarios has failed; see {out}.log.")
    lines = json.loads((RECORDS / "lines.json").read_text(encoding="utf-8"))
    return {file: set(numbers) for file, numbers in lines.items()}


def notice(source: Path, out: Path, suites: list[str], reference: Path) -> str | None:
    """Returns which scenario notices, twice, that the sources are not what they were."""
    listed, expected = differences_of(suites), read_records(str(reference))

    def wrong(record: dict[str, Any]) -> bool:
        return bool(disagreements(record["id"], expected[record["id"]], record, listed))

    status = play(source, out, suites, "--expect", str(reference))
    records = list(read_records(str(out)).values())
    noticed = [record["id"] for record in records if wrong(record)]
    if not noticed:
        return "hookline cannot be imported, or its process ends early" if status != 0 else None
    play(source, out, suites, "--expect", str(reference), "--only", noticed[0])
    return noticed[0] if any(map(wrong, read_records(str(out)).values())) else None


def main() -> int:
    """Makes the mutations and reports; the exit status is 1 if less than 70% are noticed."""
    parser = argparse.ArgumentParser(description="Counts how many mutations of hookline conformance notices.")
    parser.add_argument("--suites", nargs="+", default=["conformance"], help="packages of scenarios")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    reference_records(asked.suites, [""])
    (reference,) = RECORDS.glob("reference-*")
    reached = reached_lines(asked.suites)
    mutations = chosen(list(places(reached)), asked.count, asked.seed)
    folder = RECORDS / "mutants"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if notice(PACKAGE.parent, folder / "unchanged.jsonl", asked.suites, reference):
        raise RuntimeError("hookline as it is does not agree with TensorFlow's records: run make conformance first.")

    def tried(numbered: tuple[int, Mutation]) -> str | None:
        number, mutation = numbered
        source = folder / str(number)
        write(mutation, source)
        by = notice(source, folder / f"{number}.jsonl", asked.suites, reference)
        shutil.rmtree(source)
        print(f"{number:3} {mutation.file}:{mutation.line} {mutation.kind}: {by or 'SURVIVES'}", flush=True)
        return by

    with ThreadPoolExecutor(asked.jobs) as pool:
        noticed = list(pool.map(tried, enumerate(mutations, start=1)))
    share = sum(by is not None for by in noticed) / len(noticed)
    print(f"{sum(by is not None for by in noticed)} of {len(noticed)} mutations are noticed ({share:.0%}). Survivors:")
    for mutation, by in zip(mutations, noticed, strict=True):
        if by is None:
            print(f"  {mutation.file}:{mutation.line} {mutation.kind}: {mutation.was.splitlines()[0]}")
    for kind, total in sorted(Counter(mutation.kind for mutation in mutations).items()):
        seen = sum(by is not None for m, by in zip(mutations, noticed, strict=True) if m.kind == kind)
        print(f"  {kind}: {seen} of {total}")
    return int(share < 0.7)


if __name__ == "__main__":
    sys.exit(main())
