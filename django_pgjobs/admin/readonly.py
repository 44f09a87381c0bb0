"""The base of all our admin pages: they read rows of one database, and never edit them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ERROR_FLAG
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import OperationalError, router, transaction
from django.db.models import IntegerField, Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.databases import VAR, DatabaseList, asked_for, home_of, taken_apart, trouble_of
from django_pgjobs.admin.display import Pages
from django_pgjobs.presentation.job_conditions import BIGGEST_ID
from django_pgjobs.registering.served import several_aliases
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.store.database import written_at

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
    aliases: tuple[str, ...] = ()
    database = ""
    """The databases that are served, and the page's own; only the copy that answers a request has them."""
    shows_all = False
    """True if the page shows all databases where its address names none."""

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

    # The database of a page

    def door(self, view: str) -> Callable[..., HttpResponse]:
        """Return the view of this name as an address has it: that of a copy of the page about the database there."""

        def answer(request: HttpRequest, *args: object, **kwargs: Any) -> HttpResponse:
            aliases = several_aliases()
            page = copy(self) if aliases else self
            if aliases:
                if not (self.has_view_or_change_permission(request) or self.has_add_permission(request)):
                    raise PermissionDenied
                page.aliases = aliases
                if "object_id" not in kwargs:
                    page.database = asked_for(request, aliases)
                    page.database = page.database or ("" if self.shows_all else home_of(aliases))
                else:
                    page.database, row = taken_apart(kwargs["object_id"], aliases)
                    if not page.database:
                        return page.which_view(request, view, row)
                    kwargs["object_id"] = quote(row)
            found: HttpResponse = page.answering(request, getattr(page, view), *args, **kwargs)
            return found

        return answer

    def answering(
        self, request: HttpRequest, view: Callable[..., HttpResponse], *args: object, **kwargs: object
    ) -> HttpResponse:
        """Return what the view answers; of a database that does not, a page that says so."""
        writes = request.method == "POST"
        trouble = trouble_of(self.database, writes=writes) if self.database else None
        if trouble is None:
            try:
                return view(request, *args, **kwargs)
            except OperationalError:
                trouble = trouble_of(self.database, writes=writes) if self.database else None
                if trouble is None:
                    raise
        why = visible(trouble.text[:500])
        return self.own_page(request, "away.html", status=503, title=gettext("No answer"), why=why)

    def which_view(self, request: HttpRequest, view: str, row: str) -> HttpResponse:
        """Ask which row is meant by an id without a database. Raises ``Http404`` where nothing asks."""
        if request.method not in ("GET", "HEAD") or view not in ("change_view", "history_view"):
            raise Http404
        page = f"{self.opts.model_name}_{view.removesuffix('_view')}"
        sites = [Pages(self.admin_site.name, alias) for alias in self.aliases]
        links = [(visible(each.shown(row[:200])), each.page(page, quote(row))) for each in sites]
        return self.own_page(request, "which.html", status=300, title=gettext("Of which database?"), links=links)

    def about(self, request: HttpRequest) -> dict[str, object]:
        """Return what templates show of the database, and of the others: nothing where one is served."""
        if not self.aliases:
            return {}
        at = f"{self.opts.model_name}_changelist"
        kept, matched = QueryDict(mutable=True), request.resolver_match
        if matched is not None and matched.url_name and "object_id" not in matched.kwargs:
            kept, at = request.GET.copy(), matched.url_name.removeprefix("pgjobs_")
        for name in ("p", ERROR_FLAG, "batch", VAR):
            kept.pop(name, None)
        links: list[tuple[object, str, bool]] = []
        if self.shows_all:
            links.append((_("all databases"), Pages(self.admin_site.name).page(at), not self.database))
        for alias in self.aliases:
            of_it = Pages(self.admin_site.name, alias)
            links.append((visible(alias), of_it.page(at, **kept.dict()), alias == self.database))
        own = self.pages.page(f"{self.opts.model_name}_changelist") if self.database else ""
        return {"pgjobs_database": visible(self.database), "pgjobs_databases": links, "pgjobs_list_url": own}

    @property
    def pages(self) -> Pages:
        """The addresses of our pages on this site, about this database."""
        return Pages(self.admin_site.name, self.database)

    @property
    def written(self) -> str:
        """The alias to write to."""
        return self.database or str(router.db_for_write(self.model))

    def written_at(self, row: Model) -> str:
        """Return the alias at which to steer a row."""
        return self.database or written_at(row)

    def named(self, row: Any) -> Any:
        """Return the row; where several databases are served a copy whose key says which one it is of.

        For addresses that Django makes, its history, and people.
        """
        if row is None or not self.database:
            return row
        twin = copy(row)
        twin.pk = self.pages.shown(row.pk)
        return twin

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Read from this database."""
        rows = super().get_queryset(request)
        return rows.using(self.database) if self.database else rows

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[DatabaseList]:
        """Use a list that knows its database."""
        return DatabaseList

    def get_preserved_filters(self, request: HttpRequest) -> str:
        """Keep the database among the filters of the list to which a page leads back."""
        kept: str = super().get_preserved_filters(request)
        if not self.database:
            return kept
        filters = QueryDict(QueryDict(kept).get("_changelist_filters", ""), mutable=True)
        filters[VAR] = self.database
        return urlencode({"_changelist_filters": filters.urlencode()})

    def action_checkbox(self, obj: object) -> Any:
        """Return the box that chooses a row; its value says the database."""
        return super().action_checkbox(self.named(obj))

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, object] | None = None,
    ) -> Any:
        """Open the transaction of a change in this database."""
        if not self.database:
            return super().changeform_view(request, object_id, form_url, extra_context)
        view = cast(Any, self)._changeform_view
        if request.method in ("GET", "HEAD"):
            return view(request, object_id, form_url, extra_context)
        with transaction.atomic(using=self.database):
            return view(request, object_id, form_url, extra_context)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Say of which database the row is."""
        if self.database:
            row = context.get("original")
            named = {} if row is None else {"original": self.named(row), "subtitle": str(self.named(row))}
            context.update({**self.about(request), **named})
            if row is None:
                kwargs["form_url"] = f"?{urlencode({VAR: self.database})}"
        page: HttpResponse = super().render_change_form(request, context, *args, **kwargs)
        return page

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        """Show what was logged of the row of this database."""
        row = self.get_object(request, unquote(object_id)) if self.database else None
        if row is None:
            page: HttpResponse = super().history_view(request, object_id, extra_context)
            return page
        of_row = copy(self)
        cast(Any, of_row).get_object = lambda *_args: self.named(row)
        logged = quote(self.pages.shown(row.pk))
        shown: HttpResponse = super(ReadOnlyAdmin, of_row).history_view(
            request, logged, {**self.about(request), **(extra_context or {})}
        )
        return shown

    def log_addition(self, request: HttpRequest, obj: object, message: object) -> Any:
        """Log it of the row of this database."""
        return super().log_addition(request, self.named(obj), message)

    def log_change(self, request: HttpRequest, obj: object, message: object) -> Any:
        """Log it of the row of this database."""
        return super().log_change(request, self.named(obj), message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Log it of the rows of this database."""
        return super().log_deletions(request, cast(Any, [self.named(row) for row in queryset]))

    # Pages

    def get_urls(self) -> list[URLPattern]:
        """Add ``posts``, before Django's own: those take any text as an id."""
        model = self.opts.model_name
        own = [path(at, self._answering_posts(name), name=f"pgjobs_{model}_{name}") for at, name in self.posts.items()]
        doors = copy(self)
        for view in ("changelist_view", "add_view", "history_view", "delete_view", "change_view"):
            setattr(doors, view, self.door(view))
        return [*own, *super(ReadOnlyAdmin, doors).get_urls()]

    def _answering_posts(self, name: str) -> Callable[..., HttpResponse]:
        door = self.door(f"{name}_view")

        def answer(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
            return door(request, *args, **kwargs) if request.method == "POST" else HttpResponseNotAllowed(["POST"])

        return self.admin_site.admin_view(answer)

    def to_list(self, request: HttpRequest, problem: Any) -> HttpResponse:
        """Go to the list of these rows, with a warning."""
        self.message_user(request, problem, messages.WARNING)
        return HttpResponseRedirect(self.pages.page(f"{self.opts.model_name}_changelist"))

    def own_page(
        self, request: HttpRequest, template: str, *, status: int = 200, **context: object
    ) -> TemplateResponse:
        """Return a page that is no list or form of Django's; ``template`` is below *admin/pgjobs*."""
        cast(Any, request).current_app = self.admin_site.name
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        shared = {**shared, **self.about(request), **context}
        return TemplateResponse(request, f"admin/pgjobs/{template}", shared, status=status)

    def is_id(self, text: str) -> bool:
        """Tell whether a row could have this id, so that PostgreSQL can be asked for it."""
        key = self.opts.pk
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

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        """Refuse malformed ids before Django fails on them, and those of another database."""
        if self.database and not self._take_ids(request):
            refused = _("Nothing was done: the selection is not of the database %(alias)s.")
            self.message_user(request, refused % {"alias": visible(self.database)}, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        if not all(map(self.is_id, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            text = _("The selection has invalid %(name)s ids.") % {"name": self.opts.verbose_name}
            self.message_user(request, text, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        about = self.about(request)
        if self.database and self.has_add_permission(request):
            about["pgjobs_add_url"] = self.pages.page(f"{self.opts.model_name}_add")
        page: HttpResponse = super().changelist_view(request, {**about, **(extra_context or {})})
        if self.database and page.get("Location") == f"{request.path}?{ERROR_FLAG}=1":
            page["Location"] += f"&{urlencode({VAR: self.database})}"
        return page

    def _take_ids(self, request: HttpRequest) -> bool:
        """Take the database from the selected ids; return whether it is that of the page everywhere."""
        chosen = [each.partition(":") for each in request.POST.getlist(ACTION_CHECKBOX_NAME)]
        posted = request.POST.copy()
        posted.setlist(ACTION_CHECKBOX_NAME, [row for _alias, _colon, row in chosen])
        cast(Any, request).POST = posted
        return all(colon and alias == self.database for alias, colon, _row in chosen)
