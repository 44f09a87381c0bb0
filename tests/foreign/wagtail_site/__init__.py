"""A site on Wagtail, which indexes pages, deletes files and purges URLs in the background."""
