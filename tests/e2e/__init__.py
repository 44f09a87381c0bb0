"""End to end: real workers on committed rows. Also the app whose jobs they run."""

from __future__ import annotations
