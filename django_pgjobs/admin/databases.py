"""The database that a page is about, where ``PGJOBS["DATABASES"]`` names several.

The address alone says which one, so that no tab, stale form or copied link means a job of the same number elsewhere:

* The address of a row has the alias before the id: *job/eu1:17/change/*. The ids in the forms of lists have it, too,
  those in the history, and those that people see. Other addresses have the parameter *database*.
* An alias that is not served is not found. An id without an alias is a question: which of them? It never acts.
* A list shows one database, by default the one that routers send jobs to. A form whose ids are of another database than
  its address is refused as a whole.
* What is read and written for a request is in that database, and so is its trail. Django's history is where it was.
* A database that does not answer gives a page that says so within two seconds.

``ReadOnlyAdmin.door`` sees to it before a view begins: the view belongs to a copy of the page that knows its alias.
With one database nothing of this exists: ``database`` is empty, and routers decide as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.db import router
from django.db.models import Model
from django.http import Http404, HttpRequest
from django.utils.translation import gettext as _

from django_pgjobs.models import Job
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.store.asking import Answer, NoAnswer, Reply, ask_each
from django_pgjobs.store.database import is_read_only, on

VAR = "database"
"""The parameter of an address that names the database."""


def home_of(aliases: Sequence[str]) -> str:
    """Return the one that an address without an alias means: where routers send jobs, else the first."""
    using = str(router.db_for_write(Job))
    return using if using in aliases else aliases[0]


def asked_for(request: HttpRequest, aliases: Sequence[str]) -> str:
    """Return the database that the parameter names, empty without one. Raises ``Http404`` if it is not served."""
    alias = request.GET.get(VAR, "")
    return _served(alias, aliases) if alias else ""


def taken_apart(row: str, aliases: Sequence[str]) -> tuple[str, str]:
    """Return alias and id of *eu1:17*; no alias for an id alone. Raises ``Http404`` for an alias that is not served."""
    alias, colon, rest = unquote(row).partition(":")
    return (_served(alias, aliases), rest) if colon else ("", alias)


def _served(alias: str, aliases: Sequence[str]) -> str:
    if alias not in aliases:
        raise Http404(_("No database %(alias)s is served.") % {"alias": visible(alias[:100])})
    return alias


def ask(aliases: Sequence[str], question: Callable[[str], Answer]) -> list[Reply[Answer]]:
    """Ask each of these databases, within two seconds in all; see ``ask_each``."""
    return ask_each(aliases, question, bounded=True)


def trouble_of(alias: str, *, writes: bool) -> NoAnswer | None:
    """Return why this database does not answer, or cannot if this ``writes``; None if it can.

    Whatever steers a row of a replica does so where routers write; here that would be a row of the same id.
    """
    [reply] = ask([alias], lambda alias: writes and is_read_only(on(alias)))
    return NoAnswer("read_only", str(_("it takes no writes now"))) if reply.answer else reply.trouble


class DatabaseList(ChangeList):
    """A list of one database: its links lead to the rows there."""

    model_admin: Any

    def get_filters_params(self, params: Any = None) -> dict[str, object]:
        """Leave out the database, which filters no rows, and which no other filter clears."""
        found = super().get_filters_params(params)
        if self.model_admin.database:
            found.pop(VAR, None)
        return found

    def url_for_result(self, result: Model) -> str:
        """Return the address of a row."""
        if not self.model_admin.database:
            return str(super().url_for_result(result))
        return str(self.model_admin.pages.page(f"{self.opts.model_name}_change", quote(result.pk)))
