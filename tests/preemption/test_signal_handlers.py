"""Handlers of signals take no lock: one that waits for a lock of the thread that it interrupts waits for ever."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "hookline"
# Calls that neither take a lock nor allocate much, and earlier handlers.
ALLOWED = {
    *("append", "bytes", "callable", "clear", "fileno", "get", "getpid", "kill", "len", "monotonic", "send"),
    "suppress",
    *("default_int_handler", "exit", "set_wakeup_fd", "signal", "startswith"),
    *("before", "handler"),
    "is_inside",  # `SessionGuard.is_held_by_this_thread`.
}
PUT_BACK = {"SIG_DFL", "SIG_IGN", "handler", "on_sigterm"}


def name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


def called(function: ast.AST) -> Iterator[str]:
    return (name(node.func) for node in ast.walk(function) if isinstance(node, ast.Call))


def handlers(tree: ast.Module) -> set[str]:
    """The functions of a module that it makes handlers."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    given = {name(call.args[1]) for call in calls if ast.unparse(call.func) == "signal.signal"}
    return given - PUT_BACK


def imported(tree: ast.Module) -> Iterator[ast.Module]:
    """The modules from which a module of hookline imports, where they are files at the top."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hookline."):
            path = SOURCE / f"{(node.module or '').removeprefix('hookline.').replace('.', '/')}.py"
            if path.exists():
                yield ast.parse(path.read_text(encoding="utf-8"))


def forbidden(tree: ast.Module) -> set[str]:
    """Returns forbidden calls of a module's handlers, also through other functions."""
    trees = [*imported(tree), tree] if handlers(tree) else []
    functions = {node.name: node for each in trees for node in ast.walk(each) if isinstance(node, ast.FunctionDef)}
    seen, left = set(), handlers(tree)
    while left:
        seen |= left
        left = {each for one in left & functions.keys() for each in called(functions[one])} - seen
    return seen - functions.keys() - ALLOWED


def test_no_handler_calls_code_that_might_take_a_lock():
    trees = {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")
    }
    assert {file: found for file, tree in trees.items() if (found := forbidden(tree))} == {}
    found = {file: handlers(tree) for file, tree in trees.items() if handlers(tree)}
    assert found == {
        "signals/preemption.py": {"handle"},
        "distributed/cluster/ray_connection.py": {"_leave"},
        "cli/task.py": {"_catch"},
        "signals/interrupts.py": {"hold"},
    }


def test_handler_that_sets_an_event_is_found_through_calls():
    text = (
        "def note(number): event.set()\ndef catch(number, frame): note(number)\nsignal.signal(signal.SIGINT, catch)\n"
    )
    assert forbidden(ast.parse(text)) == {"set"}
