"""Settings of Sphinx, which builds this folder (`make docs`)."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from e2e.docs import pages  # noqa: E402 - found through the line above

pages.write(Path(__file__).parent / "reference")

project = "pdpool"
copyright = "the pdpool authors, Apache-2.0"  # noqa: A001 - Sphinx's name for it
release = tomllib.loads((ROOT / "operator" / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"pdpool {release}"
html_show_sphinx = False
exclude_patterns = ["_build"]
# Pages link to files of the repository besides the documentation.
suppress_warnings = ["myst.xref_missing"]
