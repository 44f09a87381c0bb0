"""Since Python 3.13 an exception from outside at the jump back of a loop passes by the ``with`` around the loop."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import pytest

from django_pgjobs.worker.executor import job_threads, outbox, run_queue
from django_pgjobs.worker.shared import channel

LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp)
"""Comprehensions too: since Python 3.12 they run in the frame around them."""

LOCKS = {"lock", "taking", "_flushing", "_sending"}


def takes_a_lock(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any(
        isinstance(item.context_expr, ast.Attribute) and item.context_expr.attr in LOCKS for item in node.items
    )


@pytest.mark.parametrize("module", [job_threads, outbox, run_queue, channel], ids=lambda module: module.__name__)
def test_no_loop_stands_where_a_job_thread_holds_a_lock(module: ModuleType) -> None:
    """The lock would stay held, and with it the executor; a loop in a function of its own is within the call."""
    holding = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if takes_a_lock(node)]
    assert holding
    loops = [inner.lineno for node in holding for inner in ast.walk(node) if isinstance(inner, LOOPS)]
    assert loops == []
