"""Tags: short texts that a project puts on its jobs, to find and steer them together; no worker looks at them."""

from __future__ import annotations

from collections.abc import Iterable

from django_pgjobs.values.setting_rules import InvalidOption, abridged

MOST_TAGS = 20
TAG_LIMIT = 50
"""Characters of a tag."""


def check_tags(value: object) -> tuple[str, ...]:
    """Return the tags without repetitions, in their order: at most 20 printable texts of 1 to 50 characters.

    Raises ``InvalidOption`` with the bare sentence.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidOption(f"tags must be a list of texts, not {abridged(value)}")
    tags = tuple(dict.fromkeys(_check_tag(tag) for tag in value))
    if len(tags) > MOST_TAGS:
        raise InvalidOption(f"tags must be at most {MOST_TAGS}, not {len(tags)}")
    return tags


def _check_tag(tag: object) -> str:
    if not isinstance(tag, str) or not 1 <= len(tag) <= TAG_LIMIT or not tag.isprintable() or tag != tag.strip():
        rule = f"1 to {TAG_LIMIT} printable characters, no space around them"
        raise InvalidOption(f"a tag must be {rule}, not {abridged(tag)}")
    return str.__str__(tag)
