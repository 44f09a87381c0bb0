"""One model with a picture."""

from __future__ import annotations

from django.db import models
from pictures.models import PictureField


class Photo(models.Model):
    """A photo and the files derived from it: two widths, one format."""

    width = models.PositiveIntegerField(editable=False)
    height = models.PositiveIntegerField(editable=False)
    picture = PictureField(
        upload_to="photos",
        width_field="width",
        height_field="height",
        file_types=["WEBP"],
        aspect_ratios=[None],
        container_width=400,
        grid_columns=2,
        pixel_densities=[1],
    )

    objects: models.Manager[Photo] = models.Manager()
