"""The table that jobs of the benchmarks read and write."""

from __future__ import annotations

from django.db import models


class Thing(models.Model):
    """A row of a project."""

    name = models.CharField(max_length=100)
    count = models.IntegerField(default=0)

    class Meta:
        app_label = "benchmarks"

    def __str__(self) -> str:
        return self.name
