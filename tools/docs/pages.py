# SPDX-License-Identifier: Apache-2.0
"""Hooks of `make docs`: pages, pictures and a script from outside docs/, and changes of pages for the site."""

import re
from pathlib import Path

import api_pages
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PAGES = {"index.md": "README.md"} | {
    name: name
    for name in (
        "HACKING.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "python_tests/TIERS.md",
        "tools/gpu_model/README.md",
    )
}
PICTURES = ("demo/trees.png", "demo/cascades.png")
SCRIPT = "assets/iframe-worker.js"


def on_config(config):
    config.nav = api_pages.with_ops(config.nav)
    return config


def on_files(files, config):
    for name, path in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    for name, content in api_pages.generated().items():
        files.append(File.generated(config, name, content=content))
    for path in PICTURES:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, SCRIPT, abs_src_path=str(ROOT / "tools/docs/iframe-worker.js")))
    return files


def on_page_content(html, page, config, files):
    """Let a name in a cell of a table break after a dot, where the cell is too narrow for it."""

    def code(found):
        return re.sub(r"\.(?=\w)", ".<wbr>", found[0])

    return re.sub(r"<td[^>]*><code>[^<]*</code>", code, html)


def on_page_markdown(markdown, page, config, files):
    """Adapt links to the page's place in the site, and mark sessions so that only their input is copied (site.css)."""
    markdown = re.sub(r"^```python\n(?=>>> )", "```pycon\n", markdown, flags=re.M)
    if page.file.src_uri in PAGES:
        return markdown.replace("](docs/", "](")
    return re.sub(r"\]\(\.\./(demo/|tools/|HACKING|CONTRIBUTING|README)", r"](\1", markdown)
