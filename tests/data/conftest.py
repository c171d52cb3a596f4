from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import hookline as hl


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """After each test all prefetching threads have ended, or end as soon as their sources let them."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("hookline-data"):
            thread.join(10)
            assert not thread.is_alive(), thread.name


@pytest.fixture
def session() -> Iterator[hl.Session]:
    """A session over the default graph of the test, to which operations come later."""
    with hl.Session() as session:
        yield session
