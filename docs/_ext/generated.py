"""The parts of the documentation that are made at each build from code and data, so that they cannot differ from it.

Each is a public function of one of these modules that returns Markdown (or, where it starts with ``<``, HTML). Needs
configured Django, no database. ``tests/docs`` compares what is made here with the code once more, and that some page
shows it.
"""

from __future__ import annotations

from collections.abc import Callable

import drawings as drawings
import from_code
import from_data
import from_figures
import from_foreign
import from_logs
import from_metrics
import from_settings

PARTS: dict[str, Callable[..., str]] = {
    name: value
    for module in (from_settings, from_code, from_data, from_figures, from_foreign, from_logs, from_metrics)
    for name, value in vars(module).items()
    if not name.startswith("_")
    and getattr(value, "__module__", "") == module.__name__
    and getattr(value, "__annotations__", {}).get("return") == "str"
}
"""Name of a part, as pages name it → what makes it."""
