"""The base of all our admin pages: they read rows and never edit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(ModelAdmin):
    """Refuses add, change and delete to everybody, even superusers; the view permission grants the pages."""

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
        """Allow only our filters: Django would let anybody probe the arguments with ``?payload__contains=``."""
        return lookup in self.lookups
