"""Spans of the real SDK, kept in memory."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """What has been exported, in the order of starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        # Instead of set_tracer_provider, which a process may call once.
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", self.provider)

    def all(self) -> list[Any]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def names(self) -> list[str]:
        return [span.name for span in self.all()]

    def one(self, name: str) -> Any:
        (found,) = (span for span in self.all() if span.name == name)
        return found


def follows(span: Any, other: Any) -> bool:
    """Whether ``span`` is a child of ``other`` in one trace."""
    return (
        span.parent is not None
        and (span.context.trace_id, span.parent.span_id) == (other.context.trace_id, other.context.span_id)
    )  # fmt: skip


def is_linked(span: Any, other: Any) -> bool:
    return [link.context.span_id for link in span.links] == [other.context.span_id]
