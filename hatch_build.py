"""The README as PyPI shows it: there a link into the repository leads nowhere, so each gets its whole address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)")
PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?://)([^)\s]+)\)")
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def absolute(text: str, source: str, version: str) -> str:
    """Return Markdown without comments, with whole addresses at ``source``, of the tag of a released ``version``.

    ``source``: the repository's address at GitHub. A version that is not released takes the branch ``main``.
    """
    ref = "main" if "dev" in version else f"v{version}"
    pictures = source.replace("https://github.com/", "https://raw.githubusercontent.com/")
    text = PICTURE.sub(lambda found: found[0].replace(f"({found[1]})", f"({pictures}/{ref}/{found[1]})"), text)
    return LINK.sub(lambda found: f"]({source}/blob/{ref}/{found[1]})", COMMENT.sub("", text))


class ReadmeHook(MetadataHookInterface):
    """Hatchling's hook: it fills in ``project.readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata, with addresses under ``project.urls.Source``."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        whole = absolute(text, metadata["urls"]["Source"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": whole}
