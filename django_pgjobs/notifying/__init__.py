"""Notices of abandoned jobs and other problems: what they hold, and how they are delivered.

A job delivers them, so this room knows no worker and asks no database. Arguments, results and messages of errors are
never in a notice: they may hold what only some people may read.
"""

from __future__ import annotations

from django_pgjobs.notifying.delivery import mail_admins, post, webhook
from django_pgjobs.notifying.notice import FailureGroup, FailureNotice, Problem

__all__ = ["FailureGroup", "FailureNotice", "Problem", "mail_admins", "post", "webhook"]
