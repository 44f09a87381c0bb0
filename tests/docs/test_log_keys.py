"""The table of log keys: the keys that the lines have, no more and no fewer."""

from __future__ import annotations

import ast
import inspect
import re

from django_pgjobs.metrics import families
from django_pgjobs.telemetry import otel
from tests.docs.pages import generated

made = generated()
from_code, from_logs = made.from_code, made.from_logs

WITHOUT_LITERAL = {"logs.py"}
"""Where calls pass on the line of their caller."""


def test_every_key_of_a_line_is_in_the_table_and_no_other() -> None:
    """A70: one word per idea; who adds a key says what it means."""
    assert sorted(from_logs.lines_by_key()) == sorted(from_logs.KEYS)


def test_every_line_is_a_literal_or_the_table_would_not_see_its_keys() -> None:
    found = []
    for path in sorted(from_logs.PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            owner = node.func.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if node.func.attr not in from_code.LEVELS or not re.fullmatch(r"_?log(ger)?|\w+_log(ger)?", name):
                continue
            line = node.args[1 if node.func.attr == "log" else 0]
            if not (isinstance(line, ast.Constant) and isinstance(line.value, str)):
                found.append(path.name)
            elif name not in from_code.LOGGERS:
                found.append(f"{path.name}: {name}")
    assert set(found) == WITHOUT_LITERAL


def test_facts_come_before_free_text() -> None:
    """What follows the first colon is anybody's text: a key there could be anybody's as well."""
    late = [line for _, _, line, _ in from_code.log_calls() if from_logs.keys_of(line.partition(": ")[2])]
    assert late == []


def test_every_key_has_its_value_right_behind_it() -> None:
    """Or a reader of ``key=value`` would not find it."""
    texts = [line for _, _, line, _ in from_code.log_calls()] + [text for _, text in from_logs.built_facts()]
    assert [key for key in from_logs.KEYS if not any(re.search(rf"(?:^|[ ]){key}=[%\w]", text) for text in texts)] == []


def test_a_metric_s_label_and_a_span_s_attribute_have_the_key_s_name() -> None:
    """A70, W54: what a log line calls an idea finds it in metrics and in traces too."""
    metrics = (*families.WORKER, *families.FLEET, *families.TOTALS)
    labels = {label for metric in metrics for label in metric.labels}
    attributes = set(re.findall(r'"pgjobs\.([a-z_]+)"', inspect.getsource(otel)))
    for kind, names in (("label", labels), ("span", attributes)):
        marked = {key for key, about in from_logs.KEYS.items() if about.get(kind)}
        assert marked == names & set(from_logs.KEYS), kind
