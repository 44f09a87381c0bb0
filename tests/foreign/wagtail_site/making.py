"""Pages and images for the scenarios, and what Wagtail finds of them."""

from __future__ import annotations

from io import BytesIO

from django.core.files.base import ContentFile
from PIL import Image as Pixels
from wagtail.images.models import Image
from wagtail.models import ReferenceIndex, Site

from tests.foreign.wagtail_site.models import News


def picture(title: str = "Lighthouse") -> Image:
    """Store an image of one colour."""
    content = BytesIO()
    Pixels.new("RGB", (64, 48), "teal").save(content, "PNG")
    return Image.objects.create(title=title, file=ContentFile(content.getvalue(), f"{title.lower()}.png"))


def page(title: str, body: str = "", picture: Image | None = None) -> News:
    """Create a page below the site's first; it is live, but nothing was published."""
    home = Site.objects.get().root_page
    made: News = home.add_child(instance=News(title=title, body=body, picture=picture))
    return made


def found(words: str) -> list[str]:
    """Return the titles of the pages that the search finds, in order."""
    return sorted(each.title for each in News.objects.search(words))


def references(image: Image) -> int:
    """Return how many objects the reference index says refer to ``image``."""
    count: int = ReferenceIndex.get_references_to(image).count()
    return count
