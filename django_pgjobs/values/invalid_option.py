"""The error for an invalid option; a module of its own, so that modules of single options need not import the rest."""

from __future__ import annotations


class InvalidOption(ValueError):
    """An option is invalid; the message is a sentence without the job's name."""
