"""The rule by which output that a page shows is compared with output that a command or a shell prints.

All of it is compared, line by line. ``…`` stands for anything within a line, a line of only ``…`` for any lines, or
none. A date, a time of day and a port of 127.0.0.1 stand for any other. Blanks stand for any number of blanks, since
columns are as wide as their values. All else, numbers included, must be as printed.
"""

from __future__ import annotations

import re

_VARYING = re.compile(
    r"(?P<rest>…)|(?P<date>\d{4}-\d\d-\d\d)|(?P<time>\d\d:\d\d(?::\d\d)?)|(?P<port>127\.0\.0\.1:\d+)|(?P<blanks>[ ]+)"
)
_PATTERNS = {
    "rest": r".*?",
    "date": r"\d{4}-\d\d-\d\d",
    "time": r"\d\d:\d\d(?::\d\d)?",
    "port": r"127\.0\.0\.1:\d+",
    "blanks": r"[ ]+",
}


def matches(printed: str, wanted: str) -> bool:
    """Tell whether all that was printed is what the page shows."""
    pattern = "".join(map(_line, wanted.rstrip().splitlines()))
    text = "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())
    return re.fullmatch(pattern, text) is not None


def _line(line: str) -> str:
    if line.strip() == "…":
        return r"(?:.*\n)*?"
    parts, end = [], 0
    for found in _VARYING.finditer(line.rstrip()):
        parts += [re.escape(line[end : found.start()]), _PATTERNS[found.lastgroup or ""]]
        end = found.end()
    return "".join([*parts, re.escape(line.rstrip()[end:]), r"\n"])
