"""The directive ``{pgjobs} NAME WORDS``: puts a part of ``generated.PARTS``, Markdown or raw HTML, into the page.

Words after the name say which part of the part.
"""

from __future__ import annotations

from typing import Any

import generated
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList


class Generated(Directive):
    """One generated part of a page."""

    required_arguments = 1
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the nodes of that part."""
        name, *words = self.arguments
        text = generated.PARTS[name](*words)
        if text.startswith("<"):
            return [nodes.raw("", text, format="html")]
        part = nodes.Element()
        lines = StringList(text.splitlines(), source=f"generated {self.arguments[0]}")
        self.state.nested_parse(lines, self.content_offset, part, match_titles=True)
        return part.children


def setup(app: Any) -> dict[str, bool]:
    """Add the directive; pages are read again at each build, as the code may have changed."""
    app.add_directive("pgjobs", Generated)
    app.connect("env-get-outdated", lambda app, env, added, changed, removed: list(env.found_docs))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
