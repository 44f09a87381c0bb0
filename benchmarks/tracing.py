"""Spans of all jobs, made by OpenTelemetry's SDK as a project makes them, and thrown away by the exporter."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio


class Discarding(SpanExporter):
    """Sends nothing to nobody."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Say that the spans have arrived."""
        return SpanExportResult.SUCCESS


def begin(share: float) -> None:
    """Make the SDK the tracer of this process; ``share`` of the traces that begin here are sampled, from 0 to 1."""
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(share))
    provider.add_span_processor(BatchSpanProcessor(Discarding()))
    trace.set_tracer_provider(provider)
