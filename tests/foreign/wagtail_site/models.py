"""One kind of page, with something to search and an image to refer to."""

from __future__ import annotations

from django.db import models
from wagtail.fields import RichTextField
from wagtail.models import Page
from wagtail.search import index


class News(Page):
    """A piece of news."""

    body = RichTextField(blank=True)
    picture = models.ForeignKey(
        "wagtailimages.Image", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    search_fields = [*Page.search_fields, index.SearchField("body")]
