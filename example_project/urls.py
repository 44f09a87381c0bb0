"""URLs of the example project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from example_project.library import views

urlpatterns = [
    path("", views.search, name="search"),
    path("again/", views.index_again, name="index-again"),
    path("admin/", admin.site.urls),
]
