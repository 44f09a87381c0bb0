"""The base of all our admin pages: they read rows and never edit them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ValidationError
from django.db.models import IntegerField
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.display import Pages
from django_pgjobs.presentation.job_conditions import BIGGEST_ID

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


def column(label: Any, cell: Callable[[Any], object]) -> object:
    """Return the method of a page that shows a row in a column of this label, or beside it."""
    return admin.display(description=label)(lambda page, row: cell(row))


def may(permission: str) -> Any:
    """Return the method of a page that tells whether the user has this permission of the app."""
    return lambda page, request: request.user.has_perm(f"pgjobs.{permission}")


class ReadOnlyAdmin(ModelAdmin):
    """Refuses add, change and delete to all users, even superusers; the view permission grants the pages."""

    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()
    actions_on_bottom = False
    lookups: tuple[str, ...] = ()
    """The filters of a list."""
    posts: ClassVar[Mapping[str, str]] = {}
    """Addresses that forms post to → the name of each, *NAME*, which the method ``NAME_view`` answers."""

    class Media:
        css = {"all": ("pgjobs/admin.css",)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never: code registers jobs, and workers register themselves."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Never: operators steer jobs instead."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Never: pruning deletes rows when their retention ends."""
        return False

    def lookup_allowed(self, lookup: str, value: object, request: HttpRequest | None = None) -> bool:
        """Allow only our filters: Django would let any user probe the arguments with ``?payload__contains=``."""
        return lookup in self.lookups

    @property
    def pages(self) -> Pages:
        """The addresses of our pages on this site."""
        return Pages(self.admin_site.name)

    def get_urls(self) -> list[Any]:
        """Add ``posts``, before Django's own: those take any text as an id."""
        model = self.opts.model_name
        own = [path(at, self._answering_posts(name), name=f"pgjobs_{model}_{name}") for at, name in self.posts.items()]
        return [*own, *super().get_urls()]

    def _answering_posts(self, name: str) -> Any:
        def answer(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            found: HttpResponse = getattr(self, f"{name}_view")(request, *args, **kwargs)
            return found

        return self.admin_site.admin_view(answer)

    def to_list(self, request: HttpRequest, problem: Any) -> HttpResponse:
        """Go to the list of these rows, with a warning."""
        self.message_user(request, problem, messages.WARNING)
        return HttpResponseRedirect(self.pages.page(f"{self.opts.model_name}_changelist"))

    def own_page(self, request: HttpRequest, template: str, **context: object) -> TemplateResponse:
        """Return a page that is no list or form of Django's; ``template`` is below *admin/pgjobs*."""
        cast(Any, request).current_app = self.admin_site.name
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/pgjobs/{template}", {**shared, **context})

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
