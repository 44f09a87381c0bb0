"""The drawings say what the code says, and nothing on them hangs over an edge or lies on something else."""

from __future__ import annotations

import re

import pytest
from django.apps import apps

from django_pgjobs import states
from django_pgjobs.maintenance.leader import ASK_SECONDS, TERM_SECONDS
from django_pgjobs.worker.shared import ladders
from tests.docs.pages import DOCS, generated

drawings = generated().drawings
Picture = drawings.Picture


@pytest.mark.parametrize("name", drawings.PICTURES)
def test_nothing_on_a_drawing_is_misplaced(name):
    picture = drawings.PICTURES[name]()
    assert picture.texts
    assert list(picture.misplaced()) == []


@pytest.mark.parametrize(
    ("fault", "draw"),
    [
        ("over the edge", lambda picture: picture.text(190, 50, "too far right")),
        ("over the edge", lambda picture: picture.box(10, 80, 40, 40)),
        (
            "two texts overlap",
            lambda picture: picture.text(100, 30, "one", "two", size=10) or picture.text(100, 36, "3"),
        ),
        ("over the side of a box", lambda picture: picture.box(80, 20, 40, 40, "much too long")),
        ("two boxes overlap", lambda picture: picture.box(10, 10, 40, 40) or picture.box(30, 30, 60, 40)),
        ("through a box", lambda picture: picture.box(50, 20, 40, 40) or picture.line((10, 40), (150, 40))),
        ("through a text", lambda picture: picture.text(100, 50, "crossed") or picture.line((100, 10), (100, 90))),
    ],
)
def test_what_is_misplaced_is_found(fault, draw):
    """Else the test of every drawing above would pass for want of eyes."""
    picture = Picture(200, 100, "a fault")
    draw(picture)
    assert any(fault in found for found in picture.misplaced())


def test_a_line_may_end_at_a_box_and_cross_a_lane_and_a_frame():
    picture = Picture(200, 100, "as it should be")
    picture.box(0, 0, 60, 100, kind="lane")
    picture.box(10, 10, 60, 80, kind="frame")
    picture.box(120, 30, 70, 40, "end")
    picture.line((30, 50), (120, 50))
    assert list(picture.misplaced()) == []


def test_every_state_has_a_box_and_every_transition_is_drawn_once():
    picture = drawings.states()
    drawn = sorted(pair for line in picture.lines for pair in line.stands_for)
    assert drawn == sorted((str(a), str(b)) for a, many in states.TRANSITIONS.items() for b in many)
    boxed = {text.text for text in picture.texts for box in picture.boxes if box.solid and within(text, box)}
    assert boxed == {state.value for state in states.JobState}


def within(text, box):
    left, top, right, bottom = box.extent
    return left < text.x < right and top < text.y < bottom


def test_a_line_of_the_states_begins_and_ends_where_its_states_are():
    """Its ends touch the box of its state, or the frame around all of its states and nothing else."""
    picture = drawings.states()
    solid = [box for box in picture.boxes if box.solid]
    name_of = {box: text.text for box in solid for text in picture.texts if within(text, box)}
    frames = [box for box in picture.boxes if box.kind == "frame"]
    known = {box: {name_of[box]} for box in solid}
    known |= {frame: {name_of[box] for box in solid if inside(box, frame)} for frame in frames}
    for line in picture.lines:
        starts, ends = ({pair[side] for pair in line.stands_for} for side in (0, 1))
        assert starts in [names for box, names in known.items() if at_side(line.points[0], box)], line
        if line.tip:
            assert ends in [names for box, names in known.items() if at_side(line.points[-1], box)], line


def inside(small, large):
    (a, b, c, d), (left, top, right, bottom) = small.extent, large.extent
    return left <= a and top <= b and c <= right and d <= bottom


def at_side(point, box):
    (x, y), (left, top, right, bottom) = point, box.extent
    return (x in (left, right) and top <= y <= bottom) or (y in (top, bottom) and left <= x <= right)


def test_the_architecture_has_every_table_once_and_no_other():
    shown = [text.text for text in drawings.architecture().texts if text.mono]
    models = apps.get_app_config("pgjobs").get_models()
    tables = [model._meta.db_table for model in models if not model._meta.proxy]
    assert sorted(shown) == sorted(tables)


def test_the_architecture_has_the_supervisors_threads_as_the_protocol_lists_them():
    page = (DOCS / "contributing" / "worker.md").read_text(encoding="utf-8")
    table = page.partition("| thread of the supervisor |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\w+) \| .* \| ([^|]+) \|$", table, re.MULTILINE)
    assert len(rows) >= 8
    assert {name for name, connection in rows if connection != "none"} == set(drawings.THREADS)
    assert {name for name, connection in rows if connection == "none"} == set(drawings.WITHOUT_CONNECTION)


def test_the_ladder_is_drawn_for_every_reason_with_its_rungs_at_their_seconds():
    assert set(drawings.REASONS) == set(ladders.LADDERS)
    picture = drawings.stopping()
    scale = {text.text: text.x for text in picture.texts if text.text.isdigit()}
    for reason, said in drawings.REASONS.items():
        [line] = [text.y for text in picture.texts if text.text == said]
        shown = {text.text: text.x for text in picture.texts if abs(text.y - line) < 4 and text.text != said}
        rungs = {drawings.RUNGS[rung]: scale[f"{seconds:g}"] for seconds, rung in drawings.rungs_of(reason)}
        assert shown == rungs


def test_the_rungs_that_are_drawn_are_those_of_the_table_beside_them():
    page = (DOCS / "contributing" / "worker.md").read_text(encoding="utf-8")
    table = page.partition("| why | flag | interrupt | SIGTERM | SIGKILL |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\|[^|]+\|[^|]*\| *(\d*) *\| *(\d*) *\| *(\d*) *\|", table, re.MULTILINE)
    drawn = []
    for reason in drawings.REASONS:
        seconds = {rung: f"{second:g}" for second, rung in drawings.rungs_of(reason)}
        drawn.append(tuple(seconds.get(rung, "") for rung in (ladders.INTERRUPT, ladders.TERM, ladders.KILL)))
    assert rows == drawn


def test_the_terms_are_drawn_with_the_leaders_own_times():
    said = " ".join(text.text for text in drawings.leader_terms().texts)
    assert f"until {TERM_SECONDS:g} s after its last renewal" in said
    assert f"renews every {ASK_SECONDS:g} s" in said
    assert f"{TERM_SECONDS:g} + {ASK_SECONDS:g} s" in said


def test_the_picture_of_the_readme_is_the_one_that_is_drawn_today():
    """If this fails: ``python docs/_ext/drawings.py``."""
    assert drawings.README_PICTURE.read_text(encoding="utf-8") == drawings.standalone(drawings.architecture())


def test_a_picture_that_stands_alone_brings_its_colours_for_both_schemes():
    text = drawings.README_PICTURE.read_text(encoding="utf-8")
    used = set(re.findall(r'class="(pj-\w+)', text)) | {"pj-mono"}
    assert [name for name in sorted(used) if f".{name} {{" not in text] == []
    light, _, dark = text.partition("prefers-color-scheme: dark")
    variables = set(re.findall(r"var\((--pj-\w+)\)", text))
    assert variables
    assert [name for name in variables if f"{name}:" not in light or f"{name}:" not in dark] == []
