"""The base of all our admin pages: they read rows and never edit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ValidationError
from django.db.models import IntegerField
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext_lazy as _

from django_pgjobs.presentation.job_conditions import BIGGEST_ID

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(ModelAdmin):
    """Refuses add, change and delete to all users, even superusers; the view permission grants the pages."""

    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()
    actions_on_bottom = False
    lookups: tuple[str, ...] = ()
    """The filters of a list."""

    class Media:
        css = {"all": ("pgjobs/admin.css",)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never: code registers jobs, and workers register themselves."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: operators steer jobs instead."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: pruning deletes rows when their retention ends."""
        return False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Allow only our filters: Django would let any user probe the arguments with ``?payload__contains=``."""
        return lookup in self.lookups

    def is_id(self, text: str) -> bool:
        """Tell whether a row could have this id, so that PostgreSQL can be asked for it."""
        key: Any = self.opts.pk
        if isinstance(key, IntegerField):
            return text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= BIGGEST_ID
        try:
            key.to_python(text)
        except ValidationError:
            return False
        return "\0" not in text

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return None for what cannot be an id, too."""
        return super().get_object(request, object_id, from_field) if self.is_id(object_id) else None

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Refuse malformed ids before Django fails on them."""
        if not all(map(self.is_id, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            text = _("The selection has invalid %(name)s ids.") % {"name": self.opts.verbose_name}
            self.message_user(request, text, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        page: HttpResponse = super().changelist_view(request, extra_context)
        return page
