"""Indexes that Django has only in ``django.contrib.postgres``, which 6.1 would demand in ``INSTALLED_APPS``."""

from __future__ import annotations

from typing import Any

from django.db import models


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
