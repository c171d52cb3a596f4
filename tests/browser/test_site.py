"""The site of `make docs`, searched and clicked through in a real browser."""

from __future__ import annotations

import functools
import http.server
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import PATIENCE_SECS

SITE = Path(os.environ.get("HOOKLINE_SITE", ""))

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(Path() == SITE, reason="the site is not built: make test-browser"),
]


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Serves the site, because a browser's search cannot read files; gives its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *parts: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def wait_for(look: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_SECS
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def test_a_name_is_found_by_the_search_and_its_links_lead_on(driver: Any, site: str):
    driver.get(f"{site}/search.html?q=CheckpointOptions")
    first = wait_for(lambda: driver.find_elements("css selector", "#search-results li a"))[0]
    assert "CheckpointOptions" in first.text
    first.click()
    entry = wait_for(lambda: driver.find_elements("id", "hookline.train.CheckpointOptions"))[0]
    assert "class hookline.train.CheckpointOptions" in entry.text
    types = entry.find_elements("css selector", "a.reference.internal")
    (saver,) = [link for link in types if link.text == "Saver"][:1]
    saver.click()
    assert driver.current_url.endswith("hookline.train.html#hookline.train.Saver")
    assert [entry for entry in driver.get_log("browser") if "favicon.ico" not in entry["message"]] == []


def test_each_part_of_the_map_is_in_the_navigation_and_opens(driver: Any, site: str):
    driver.get(f"{site}/README.html")
    captions = [found.get_attribute("textContent") for found in driver.find_elements("css selector", ".caption-text")]
    assert captions == ["Start", "Guide", "Scale", "Reference", "Internals"]
    links = driver.find_elements("css selector", ".sidebar-tree a.reference.internal")
    for link in [link.get_attribute("href") for link in links][::7]:
        driver.get(link)
        assert driver.find_element("tag name", "h1").text
    assert [entry for entry in driver.get_log("browser") if "favicon.ico" not in entry["message"]] == []


def test_page_fits_a_phone(driver: Any, site: str):
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        for page in ("README", "docs/loop", "reference/hookline.train"):
            driver.get(f"{site}/{page}.html")
            wide = driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, page
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
