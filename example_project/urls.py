"""URLs of the example project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from example_project.indexer.views import index_again, search

urlpatterns = [
    path("", search, name="search"),
    path("again/", index_again, name="index-again"),
    path("admin/", admin.site.urls),
]
