"""Decides where a Ctrl-C is raised at once, and delays it while modules are imported.

While a session is open, `preemption` handles Ctrl-C. This module has its rule: in the user's code it is raised at once;
inside of hookline it is pending, and raised as soon as the session is consistent.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE_DIR = os.path.dirname(os.path.dirname(__file__)) + os.sep
_CLOCK = _PACKAGE_DIR + "clock.py"
_CALL = "__call__"
_FUNCTION_TYPES = (FunctionType, staticmethod, classmethod, property)
# Functions of hookline that call the user's code, or wait for it, and functions of the user that hookline calls.
_user_codes: weakref.WeakSet[CodeType] = weakref.WeakSet()
_gc_callbacks: set[CodeType] = set()
uninterruptible_codes: weakref.WeakSet[CodeType] = weakref.WeakSet()
"""Functions in which not even a second Ctrl-C is raised."""


@contextlib.contextmanager
def defer_sigint() -> Iterator[None]:
    """Delays a Ctrl-C until the end of the block; a second one is not delayed.

    Without the delay, a Ctrl-C during imports may be lost: Python raises it in the next line of Python code, which is
    often in JAX's garbage collection callback. An exception there is printed and dropped: the script continues, and
    ends with 0. While jaxlib initialises, a Ctrl-C becomes an ImportError or a crash.

    Example:
        >>> with defer_sigint():
        ...     import json
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if not held:
            held.append(number)
            return
        held.clear()
        handler(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)


def calls_user_code(function: F) -> F:
    """Marks a function of hookline that calls the user's code or waits for it: a Ctrl-C in it is raised at once.

    So it may raise at any moment, like the user's code. Functions of hookline that it calls are not marked by that:

        HookedSession.run         hookline's: pending
          Metrics.after_run       the user's (`mark_user_class`): raised
            np.mean               called by it: raised
            Session.run           hookline's: pending
              HostCall.call_on    marked as user code: raised
    """
    _user_codes.add(function.__code__)
    return function


@calls_user_code
def call_user_function(function: Callable[..., Any], *given: Any) -> Any:
    """Calls a function of the user, and returns its result."""
    return function(*given)


def mark_user_function(function: Any) -> None:
    """Marks a function, such as the callback of a hook, as user code, unless it is hookline's."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None) or getattr(getattr(type(function), _CALL, None), "__code__", None)
    if code is not None and not code.co_filename.startswith(_PACKAGE_DIR):
        _user_codes.add(code)


def mark_user_class(kind: type) -> None:
    """Marks the functions of a class, such as a hook's, except those inherited from classes of hookline."""
    for base in kind.__mro__:
        if not base.__module__.startswith("hookline."):
            for attribute in vars(base).values():
                if isinstance(attribute, _FUNCTION_TYPES):
                    mark_user_function(getattr(attribute, "fget", attribute))


def uninterruptible(function: F) -> F:
    """Marks a function in which not even a second Ctrl-C is raised, because a session would stay locked."""
    uninterruptible_codes.add(function.__code__)
    return function


def in_user_code(frame: FrameType | None) -> bool:
    """Returns whether a frame is in user code: whether its nearest function of hookline, if any, is marked so."""
    if _in_gc_callback(frame):
        return False
    while frame is not None:
        code = frame.f_code
        if code in _user_codes:
            return True
        if code.co_filename.startswith(_PACKAGE_DIR) and code.co_filename != _CLOCK:
            return False
        frame = frame.f_back
    return True


def find_gc_callbacks() -> None:
    """Looks up the garbage collection's callbacks, such as JAX's: Python prints and drops an exception raised there."""
    _gc_callbacks.clear()
    _gc_callbacks.update(code for code in (getattr(callback, "__code__", None) for callback in gc.callbacks) if code)


def _in_gc_callback(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _gc_callbacks:
        frame = frame.f_back
    return frame is not None
