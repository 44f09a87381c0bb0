#!/usr/bin/env python
"""Django's command line for the example project; may be started from any directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line


def main() -> None:
    """Run a management command."""
    # The directory above replaces this one, so that every module has one name only.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
