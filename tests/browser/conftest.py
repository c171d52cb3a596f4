"""TensorBoard on a real run, opened in a real browser without a screen."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
CHROMIUM = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
--disable-component-update --disable-sync --window-size=1360,830 --force-device-scale-factor=1"
PATIENCE_SECS = 60

# TensorBoard's older pages live in shadow trees, into which neither XPath nor `innerText` look.
LOOK = """
const roots = [document], found = [];
while (roots.length) {
  const root = roots.shift();
  found.push(...root.querySelectorAll(arguments[0]));
  roots.push(...[...root.querySelectorAll('*')].filter(e => e.shadowRoot).map(e => e.shadowRoot));
}
return found.filter(e => e.checkVisibility());
"""


class Run(NamedTuple):
    """Gives the files of `examples/summaries.py`, and the address of a TensorBoard that shows them."""

    logdir: Path
    url: str


class Page:
    """A page of TensorBoard, as a person sees it."""

    def __init__(self, driver: Any, url: str) -> None:
        self._driver = driver
        self._url = url
        self.pictures: dict[str, Image.Image] = {}

    def open(self, name: str) -> None:
        self._name = name
        self._driver.get("about:blank")
        self._driver.get(f"{self._url}#{name}")

    def all(self, selector: str) -> list[Any]:
        """All visible elements that a CSS selector finds."""
        return self._driver.execute_script(LOOK, selector)

    def texts(self, selector: str) -> list[str]:
        """The texts of visible elements; a node of the graph shows its name shortened, and has all of it in a title."""
        code = "return arguments[0].map(e => (e.querySelector('title') ?? e).textContent.trim())"
        return self.script(code, self.all(selector))

    def script(self, code: str, *arguments: Any) -> Any:
        return self._driver.execute_script(code, *arguments)

    def wait(self, shown: Callable[[], Any]) -> Any:
        """Returns the result of `shown` as soon as it is true; a page may change meanwhile."""
        from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(self._driver, PATIENCE_SECS, ignored_exceptions=[StaleElementReferenceException])
        try:
            found = waiting.until(lambda _: shown())
        except TimeoutException:
            texts = filter(None, self.texts(":not(:has(*))"))
            pytest.fail(f"The page {self._name} does not show it. It shows: {' | '.join(texts)}")
        self.pictures[self._name] = Image.open(io.BytesIO(self._driver.get_screenshot_as_png()))
        return found


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder, logdir = tmp_path_factory.mktemp("runs"), "runs/summaries"
    script = [sys.executable, str(ROOT / "examples" / "summaries.py"), "--logdir", logdir]
    subprocess.run(script, cwd=folder, check=True, timeout=300)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "runs", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            printed = (re.search(r" at (http://\S+)", line) for line in process.stderr)
            url = next((found[1] for found in printed if found), None)
            assert url, "TensorBoard did not start"
            yield Run(folder / logdir, url)
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    selenium = pytest.importorskip("selenium.webdriver", reason="no Selenium: pip install selenium")
    chromium = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    its_driver = shutil.which("chromedriver")
    if chromium is None or its_driver is None:
        pytest.skip("no browser: install Chromium and its driver (Debian: chromium and chromium-driver)")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for argument in (*CHROMIUM.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(argument)
    started = selenium.Chrome(options=options, service=selenium.ChromeService(its_driver))
    try:
        yield started
    finally:
        started.quit()


@pytest.fixture(scope="session")
def page(driver: Any, run: Run) -> Iterator[Page]:
    page = Page(driver, run.url)
    yield page
    if picture := os.environ.get("HOOKLINE_PICTURE"):
        draw(page.pictures, Path(picture))


def draw(pictures: dict[str, Image.Image], path: Path) -> None:
    """Puts the pages side by side, two a row, in few colours."""
    first = next(iter(pictures.values()))
    width, height = 800, 800 * first.height // first.width
    whole = Image.new("RGB", (2 * width, height * -(-len(pictures) // 2)))
    for place, picture in enumerate(pictures.values()):
        small = picture.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        whole.paste(small, (place % 2 * width, place // 2 * height))
    whole.quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
