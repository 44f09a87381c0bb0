"""The drawings of the documentation as a browser sets them, in its own fonts."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.docs.pages import generated

pytestmark = pytest.mark.browser

drawings = generated().drawings

EXTENTS = """() => [...document.querySelectorAll('svg text')].map(text => {
    const box = text.getBBox();
    return [text.textContent, box.x, box.y, box.x + box.width, box.y + box.height];
})"""

Extent = tuple[str, float, float, float, float]


def overlap(one: Extent, other: Extent) -> bool:
    # A line of text is higher than its letters: lines that stand close touch by that much and no more.
    return one[1] < other[3] and other[1] < one[3] and min(one[4], other[4]) - max(one[2], other[2]) > 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", drawings.PICTURES)
def test_texts_of_a_drawing_stay_within_it_and_apart_in_a_browsers_fonts(
    chromium: Browser, name: str, scheme: str
) -> None:
    picture = drawings.PICTURES[name]()
    context = chromium.new_context(color_scheme=scheme, viewport={"width": 800, "height": 720})  # type: ignore[arg-type]
    page = context.new_page()
    page.set_content(drawings.standalone(picture))
    texts: list[Extent] = page.evaluate(EXTENTS)
    if folder := os.environ.get("PGJOBS_TEST_SCREENSHOTS"):
        page.locator("svg").screenshot(path=Path(folder) / f"drawing-{name}-{scheme}.png")
    context.close()
    assert len(texts) == len(picture.texts)
    over = [each for each in texts if min(each[1:3]) < 0 or each[3] > picture.width or each[4] > picture.height]
    assert over == []
    assert [(one[0], other[0]) for one, other in combinations(texts, 2) if overlap(one, other)] == []
    promised = {(text.text, text.extent[0], text.extent[2]) for text in picture.texts}
    wider = [
        each
        for each in texts
        if not any(each[0] == p[0] and p[1] <= each[1] + 1 and each[3] <= p[2] + 1 for p in promised)
    ]
    assert wider == []
