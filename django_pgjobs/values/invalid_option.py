"""What is raised when an option is wrong; apart, so that the rooms of single options need not know all of them."""

from __future__ import annotations


class InvalidOption(ValueError):
    """An option is wrong; the message is a sentence without the job's name."""
