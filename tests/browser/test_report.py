"""The page of `hookline report`, opened in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cli.conftest import JOB
from tests.python import run

from hookline.cli import main

pytestmark = pytest.mark.browser

LOOK = """
const charts = [...document.querySelectorAll("figure")].map(figure => figure.getBoundingClientRect());
return {
  fits: document.documentElement.scrollWidth <= window.innerWidth,
  columns: new Set(charts.map(chart => chart.left)).size,
  sizes: charts.map(chart => [chart.width, chart.height]),
  background: getComputedStyle(document.body).backgroundColor,
  line: getComputedStyle(document.querySelector("path.line")).stroke,
  texts: [...document.querySelectorAll("svg text")].map(text => text.textContent),
  loaded: performance.getEntriesByType("resource").length,
};
"""


@pytest.fixture
def looks(driver: Any, tmp_path: Any) -> Iterator[Callable[[int, str], dict[str, Any]]]:
    """Opens the page at a width, in light or dark."""
    run(JOB, tmp_path / "run", "looped", check=True)
    assert main(["report", str(tmp_path / "run")]) == 0

    def looks(width: int, scheme: str) -> dict[str, Any]:
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.get((tmp_path / "run" / "report.html").as_uri())
        return driver.execute_script(LOOK)

    yield looks
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_report_is_readable_on_screen_and_phone_in_light_and_dark(looks, driver):
    light, dark, phone = looks(1200, "light"), looks(1200, "dark"), looks(390, "light")
    assert (light["columns"], light["fits"], light["loaded"]) == (2, True, 0)
    assert {"0", "40", "step"} <= set(light["texts"])
    assert light["background"] == "rgb(255, 255, 255)"
    assert dark["background"] != light["background"]
    assert dark["line"] != light["line"]
    assert (phone["columns"], phone["fits"]) == (1, True)
    assert all(width > 300 and height > 150 for width, height in phone["sizes"])
    assert driver.get_log("browser") == []
