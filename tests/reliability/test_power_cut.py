"""Reported saves survive a power cut at any moment; and leftovers do no harm."""

from __future__ import annotations

import dataclasses

import pytest

from .job import MANNERS
from .power_cut import Settings

_DISKS = {
    "journal": {"kind": "journal"},
    "journal-and-neighbour": {"kind": "journal", "neighbour": True},
    "no-journal": {"kind": "no journal"},
}
_SHORT = [
    ("numbered", "journal-and-neighbour"),
    pytest.param("replaced", "no-journal", marks=pytest.mark.campaign),
    pytest.param("background", "journal", marks=pytest.mark.campaign),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.config.getoption("--every-power-cut", default=False)
    if "manner" in metafunc.fixturenames:
        everything = [(manner, disk) for manner in MANNERS for disk in _DISKS]
        metafunc.parametrize(("manner", "disk"), everything if every else _SHORT)
    elif "disk" in metafunc.fixturenames:
        metafunc.parametrize("disk", _DISKS if every else ["journal"])


def test_reported_saves_survive_a_power_cut(manner, disk, cut_everywhere, every_power_cut):
    last_step, at_most = (5, 0) if every_power_cut else (3, 6)
    findings = cut_everywhere(Settings(manner, last_step=last_step, at_most=at_most, **_DISKS[disk]))
    print(f"{manner}, {disk}: {dataclasses.replace(findings, wrong=[])}")
    assert findings.wrong == []
    assert findings.pictures >= 10 * last_step  # A save syncs so often, at least.
    assert findings.looked_at == (at_most or findings.pictures)


@pytest.mark.campaign  # That each sync is needed is seen in test_order_of_syncs.py, too.
def test_power_cut_without_syncs_is_detected(disk, cut_everywhere):
    findings = cut_everywhere(Settings("numbered", last_step=2, at_most=5, syncs=False, **_DISKS[disk]))
    assert findings.bad >= 2
