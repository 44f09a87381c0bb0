"""A site with pictures: django-pictures derives files of other sizes in the background."""
