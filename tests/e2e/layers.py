"""Middleware that notes when it is entered and left, with the header its ``capture`` took at registering."""

from __future__ import annotations

from typing import Any

from asgiref.sync import iscoroutinefunction
from django.utils.decorators import sync_and_async_middleware

from tests.e2e import stage


@sync_and_async_middleware
def noting(run: Any) -> Any:
    def note(context: Any, word: str) -> None:
        stage.here().note("layer", context.id, word, context.headers.get("tenant"))

    if iscoroutinefunction(run):

        async def around_async(context: Any) -> Any:
            note(context, "in-async")
            try:
                return await run(context)
            finally:
                note(context, "out")

        return around_async

    def around(context: Any) -> Any:
        note(context, "in")
        try:
            return run(context)
        finally:
            note(context, "out")

    return around


def breaks_duties(run: Any) -> Any:
    return run


def _break(name: str) -> Any:
    raise RuntimeError(f"a layer around {name}")


breaks_duties.duty = _break  # type: ignore[attr-defined]
noting.capture = lambda: {"tenant": "blue"}  # type: ignore[attr-defined]
