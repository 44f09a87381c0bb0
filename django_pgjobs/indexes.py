"""Indexes that Django has only in ``django.contrib.postgres``, which 6.1 would demand in ``INSTALLED_APPS``.

And an order that keeps the planner from an index.
"""

from __future__ import annotations

from typing import Any

from django.db import models

LATEST_FIRST = (models.F("pk") + 0).desc()
"""The order of one job's attempts or memos. Not ``-pk``: where statistics say that their table is empty, the planner
would walk all rows in the order of the primary key.
"""


class GistIndex(models.Index):
    """A GiST index, which finds ranges that contain a value."""

    suffix = "gist"

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **options: Any) -> Any:
        """Return ``CREATE INDEX … USING gist``."""
        return super().create_sql(model, schema_editor, using=f" USING {self.suffix}", **options)


class GinIndex(GistIndex):
    """A GIN index, which finds lists that contain a value."""

    suffix = "gin"

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **options: Any) -> Any:
        """Return ``CREATE INDEX … USING gin``."""
        return super().create_sql(model, schema_editor, using, **options)
