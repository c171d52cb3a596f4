"""Every kind of summary is found on TensorBoard's pages, by what they show.

`make test-browser` runs them; `make test-browser PICTURE=docs/tensorboard.png` draws the picture of the docs as well.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from hookline.testing import read_events

pytestmark = pytest.mark.browser

# The pixels of an image or a drawing on a page, in one list: red, green, blue and opacity of each.
PIXELS = """
const shown = arguments[0], canvas = document.createElement('canvas');
[canvas.width, canvas.height] = [shown.naturalWidth ?? shown.width, shown.naturalHeight ?? shown.height];
if (!canvas.width) return [];
const context = canvas.getContext('2d');
context.drawImage(shown, 0, 0);
return [...context.getImageData(0, 0, canvas.width, canvas.height).data];
"""


@pytest.fixture
def last(run):
    """The last event with summaries."""
    return [event for event in read_events(run.logdir) if event.HasField("summary")][-1]


@pytest.fixture
def values(last):
    """Its values, by tag."""
    return {value.tag: value for value in last.summary.value}


def test_scalars(page, last, values):
    page.open("timeseries")
    wanted = {f"{values['accuracy'].simple_value:.4g}", str(last.step)}
    page.wait(lambda: wanted <= set(page.texts("scalar-card tb-data-table-content-cell")))
    assert page.wait(
        lambda: any(page.script(PIXELS, curve)[3::4].count(255) for curve in page.all("line-chart canvas"))
    )
    assert {"accuracy", "loss"} <= set(page.texts(".group-title"))


def test_images(page, values):
    page.open("images")
    written = [value.image.encoded_image_string for value in values.values() if value.HasField("image")]
    pixels = [np.asarray(Image.open(io.BytesIO(png))).ravel().tolist() for png in written]
    assert len(pixels) == 10
    assert page.wait(lambda: [page.script(PIXELS, image)[::4] for image in page.all("img")] == pixels)


def test_histograms(page):
    page.open("histograms")
    assert page.wait(lambda: len(page.all(".histogram")) == 10)


def test_audio(page, values):
    page.open("audio")
    (player,) = page.wait(lambda: page.all("audio"))
    page.script("arguments[0].preload = 'auto'; arguments[0].load()", player)
    secs = page.wait(lambda: page.script("return arguments[0].duration", player))
    written = values["tone/audio"].audio
    assert secs == pytest.approx(written.length_frames / written.sample_rate)


def test_text(page, values):
    page.open("text")
    cells = page.wait(lambda: page.texts("table td"))
    assert f"| {cells[0]} | **{cells[1]}** |" in values["report"].tensor.string_val[0].decode()


def test_graph(page):
    page.open("graphs")
    assert page.wait(
        lambda: {"weights", "logits", "loss", "gradients", "optimizer"} <= set(page.texts("text.nodelabel"))
    )


def test_hyperparameters_beside_the_last_values(page, values):
    page.open("hparams")
    wanted = {"optimizer", "adam", "rate", "0.020000", f"{values['accuracy'].simple_value:.5g}"}
    assert page.wait(lambda: wanted <= set(page.texts(":not(:has(*))")))
    del page.pictures["hparams"]  # The docs show summaries.
