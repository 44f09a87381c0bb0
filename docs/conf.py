"""How the documentation is built. Needs no network and no database.

``make docs`` runs it nitpicky and with warnings as errors. What is generated from the code is made by
``_ext/generated.py`` at each build, so it cannot differ from the code it describes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django  # noqa: E402

django.setup()

import django_pgjobs  # noqa: E402

project = "django-pgjobs"
author = "django-pgjobs contributors"
copyright = author
release = version = django_pgjobs.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "directives"]
exclude_patterns = ["_build", "_data"]
myst_enable_extensions = ["deflist", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"django-pgjobs {release}"
html_static_path = ["_static"]
html_css_files = ["pgjobs.css"]
html_show_sourcelink = False
html_copy_source = False
templates_path = []
pygments_style = "tango"
pygments_dark_style = "monokai"

nitpicky = True
# Without network no other project's inventory is read, so only names of this package can be resolved.
nitpick_ignore = [
    ("py:class", "django_pgjobs.jobs.R"),  # a type variable
    ("py:class", "django_pgjobs.jobs.definition.R"),  # the same
    ("py:class", "django_pgjobs.jobs.definition.Returned"),  # another
    ("py:class", "django_pgjobs.testing.running.RunOptions"),  # the arguments of run_jobs
    ("py:class", "django_pgjobs.testing.idempotent.CrashOptions"),  # the arguments of assert_idempotent
    ("py:class", "django_pgjobs.testing.idempotent.T"),
    ("py:class", "django_pgjobs.models.operators.QueueState"),  # a table: the page of models has it
    ("py:class", "django_pgjobs.models.operators.LimitOverride"),  # another
    ("py:class", "django_pgjobs.models.workers.LeaderTerm"),  # another
]
nitpick_ignore_regex = [(r"py:.*", r"(?!django_pgjobs\.(jobs|context|models|exceptions|testing)\.).*")]

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True


def _model_by_its_room(app, env, node, contnode):
    """Find a model by ``django_pgjobs.models``, whichever module of that room defines it."""
    room, _, name = node.get("reftarget", "").rpartition(".")
    if not room.startswith("django_pgjobs.models."):
        return None
    target = f"django_pgjobs.models.{name}"
    return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "class", target, node, contnode)


def setup(app):
    """Let Sphinx find the models."""
    app.connect("missing-reference", _model_by_its_room)
