"""A process that registers jobs at a pace, ``stamps.paced``, and prints when each call returned, as JSON."""

from __future__ import annotations

import json
import os
import sys

import django

from benchmarks import stamps


def main(pace: str) -> None:
    """Register, and print the numbers of the jobs with their instants."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    from benchmarks import jobs

    returned: dict[int, float] = {}
    for number in stamps.paced(pace):
        jobs.note.register(number)
        returned[number] = stamps.now()
    print(json.dumps(returned))


if __name__ == "__main__":
    main(sys.argv[1])
