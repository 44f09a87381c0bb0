"""Saves and deletes what celery-haystack-ng indexes, and prints what the search finds."""

from __future__ import annotations

import json
import sys
from typing import Any

import django


def main() -> dict[str, Any]:
    """Write in transactions, wait for the index, and return what is found."""
    from celery_haystack.tasks import CeleryHaystackUpdateIndex
    from celery_haystack.tests.models import Note
    from django.db import transaction
    from haystack import connections
    from haystack.query import SearchQuerySet

    from tests.plugins.fix_db import wait_until

    seen: list[str] = []

    def finds(*texts: str) -> bool:
        connections.reload("default")
        try:
            seen[:] = sorted(each.text for each in SearchQuerySet())
        except OSError:  # the worker writes its files just now
            return False
        return seen == sorted(texts)

    notes = [Note.objects.create(content=f"note {number}") for number in range(3)]
    with transaction.atomic():
        notes[0].content = "note zero"
        notes[0].save()
        notes[1].delete()
    wait_until(lambda: finds("note 2", "note zero"), 120, "the index has what is in the tables")
    Note.objects.bulk_create([Note(content="unseen by signals")])
    CeleryHaystackUpdateIndex.delay()
    wait_until(lambda: finds("note 2", "note zero", "unseen by signals"), 120, "the index has been made anew")
    return {"found": seen}


if __name__ == "__main__":
    django.setup()
    sys.stdout.write(json.dumps(main()) + "\n")
