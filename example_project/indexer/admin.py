"""The library in the admin, for looking at; the jobs have their own pages there."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from example_project.indexer.models import Edition, Module, Package, Symbol


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Jobs write these rows, people do not."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Nobody."""
        return False


@admin.register(Edition)
class EditionAdmin(ReadOnly):
    """Readings of the whole library."""

    list_display = ("__str__", "started_at", "files", "packages", "published_at", "approved_at", "problem")


@admin.register(Module)
class ModuleAdmin(ReadOnly):
    """Files."""

    list_display = ("path", "lines", "classes", "functions", "problem")
    list_filter = (("problem", admin.EmptyFieldListFilter),)
    search_fields = ("path",)
    exclude = ("words", "search")


@admin.register(Symbol)
class SymbolAdmin(ReadOnly):
    """Classes and functions."""

    list_display = ("name", "kind", "module", "line", "summary")
    list_filter = ("kind",)
    list_select_related = ("module",)
    search_fields = ("name",)
    exclude = ("words", "search")


@admin.register(Package)
class PackageAdmin(ReadOnly):
    """Packages."""

    list_display = ("name", "files", "unreadable", "lines")
