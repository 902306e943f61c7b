# SPDX-License-Identifier: Apache-2.0
"""Pages and pictures from outside docs/ that `make docs` adds to the site."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PAGES = {"index.md": "README.md"} | {
    name: name for name in ("HACKING.md", "CHANGELOG.md", "python_tests/TIERS.md", "tools/gpu_model/README.md")
}
PICTURES = ("demo/trees.png", "demo/cascades.png")


def on_files(files, config):
    for name, path in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    for path in PICTURES:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Adapt the repository's relative links to the page's place in the site."""
    if page.file.src_uri in PAGES:
        return markdown.replace("](docs/", "](")
    return re.sub(r"\]\(\.\./(demo/|tools/)", r"](\1", markdown)
