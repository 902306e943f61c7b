# SPDX-License-Identifier: Apache-2.0
"""The site that make docs builds: no page asks another machine for anything, and the API pages show every public name.

SPECDEC_SITE names a site that is built already."""

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.paths import ROOT

import specdec_kernels as sk

pytestmark = pytest.mark.slow
pytest.importorskip("mkdocs", reason="the extra docs is not installed")
pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
FETCHED = {("script", "src"), ("link", "href"), ("form", "action")} | {
    (tag, name)
    for tag in ("img", "source", "iframe", "embed", "video", "audio", "track", "input", "object", "use", "image")
    for name in ("src", "srcset", "data", "href", "xlink:href", "poster")
}
# What the theme's script could ask for: diagrams, and a repository's stars. No page has either (see below), and the
# third is for browsers without ResizeObserver. The rest stands in comments and names.
THEME = {"unpkg.com", "api.github.com"}
NAMED = {"www.w3.org", "fontawesome.com", "clipboardjs.com", "bit.ly", "tartarus.org", "lunrjs.com"}


def hosts(text):
    return set(re.findall(r"""(?:https?:)//([\w.-]+\.[a-z]{2,})""", text))


def styled(css):
    """What a style sheet fetches."""
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    return re.findall(r"""@import\s+['"]([^'"]+)""", css) + re.findall(r"""url\(\s*['"]?([^'")]+)""", css)


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.fetched, self.classes, self.inside, self.scripts = set(), [], set(), None, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.inside = tag
        self.ids.add(given.get("id"))
        self.classes |= set((given.get("class") or "").split()) | {f"component:{given.get('data-md-component')}"}
        self.fetched += styled(given.get("style") or "")
        rel = set((given.get("rel") or "").split())
        if tag != "link" or rel - {"canonical", "next", "prev", "alternate", "license", "author"}:
            self.fetched += [value for name, value in attributes if (tag, name) in FETCHED and value]

    def handle_data(self, data):
        if self.inside == "style":
            self.fetched += styled(data)
        elif self.inside == "script":
            self.scripts.append(data)

    def handle_endtag(self, tag):
        self.inside = None


def external(address):
    return bool(re.match(r"\s*(?:[a-z][a-z+.-]*:)?//", address, re.I))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if built := os.environ.get("SPECDEC_SITE"):
        return ROOT / built
    path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return path


@pytest.fixture(scope="module")
def pages(site):
    return {str(path.relative_to(site)): Page(path.read_text()) for path in site.rglob("*.html")}


def test_pages_fetch_from_the_site_alone(site, pages):
    assert len(pages) > 15
    assert not {name: found for name, page in pages.items() if (found := [*filter(external, page.fetched)])}
    assert all(page.fetched for page in pages.values())  # style sheets and scripts, at least
    for name, page in pages.items():
        for address in page.fetched:
            if name != "404.html" and not address.startswith(("data:", "#")):
                assert (site / name).parent.joinpath(re.split("[?#]", address)[0]).exists(), (name, address)
    sheets = [*site.rglob("*.css")]
    assert sheets and not {s.name: found for s in sheets if (found := [*filter(external, styled(s.read_text()))])}


def test_scripts_have_no_reason_to_ask(site, pages):
    scripts = [*site.glob("assets/javascripts/*.js"), *site.glob("assets/javascripts/workers/*.js")]
    assert len(scripts) == 2  # those of lunr/ are for other languages than the site's
    assert not {host for path in scripts for host in hosts(path.read_text())} - THEME - NAMED
    assert not set().union(*(hosts("".join(page.scripts)) for page in pages.values()))
    assert not any({"mermaid", "component:source"} & page.classes for page in pages.values())


def test_what_is_fetched_is_found():
    page = Page(
        '<link rel="stylesheet" href="https://a/x.css"><script src="//b/x.js"></script><link rel="canonical" href="https://c">'
        '<a href="https://d">d</a><style>@import "https://e/x.css"; p { background: url(https://f/x.png) }</style>'
        '<img src="here.png"><p style="background: url(//g/x.png)">'
    )
    assert page.fetched == [
        "https://a/x.css",
        "//b/x.js",
        "https://e/x.css",
        "https://f/x.png",
        "here.png",
        "//g/x.png",
    ]
    assert [address for address in page.fetched if not external(address)] == ["here.png"]


API = ("theory", "reference", "testing")


@pytest.mark.parametrize("module", ["specdec_kernels", *(f"specdec_kernels.{x}" for x in API)])
def test_api_pages_show_every_name(pages, module):
    shown = set().union(*(page.ids for name, page in pages.items() if name.startswith("api/")))
    names = importlib.import_module(module).__all__
    known = lambda name: {f"{module}.{name}", f"{module}.{name}.{name}"} & shown  # a function of its own file
    assert len(names) > 10 and not [name for name in names if not known(name)]


def test_signatures_and_sections(site):
    """Of the page that most readers open: the signature, and every section of the docstring as one."""
    text = (site / "api/verify.html").read_text()
    for section in ("Parameters", "Returns", "Raises", "Examples"):
        assert text.count(f'<span class="doc-section-title">{section}:</span>') >= 2, section
    shown = re.sub(r"<[^>]+>", "", text)
    assert sk.verify_chain.__doc__.split("\n")[0] in shown
    assert "temperature) raise RuntimeError." in re.sub(r"\s+", " ", shown)  # the end of an entry of two lines
    assert "<td><code>recursive_without_replacement</code></td>" in text  # a table of a docstring


def test_pictures_and_search(site):
    assert all((site / "demo" / name).stat().st_size > 10_000 for name in ("trees.png", "cascades.png"))
    assert "draft_stats" in (site / "search" / "search_index.json").read_text()


def test_docstrings_are_rewritten():
    pytest.importorskip("griffe")
    found = importlib.util.spec_from_file_location("docstrings", Path(ROOT / "tools/docs/docstrings.py"))
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    text = "A::\n\n    code\n\n===  ==\nx    y\n===  ==\na    b\n     c\n===  ==\n\n"
    text += "Raises:\n    A, B: one\n    two\n    C: three\n"
    assert module.rewritten(text) == (
        "A:\n\n    code\n\n| x | y |\n| --- | --- |\n| a | b c |\n\nRaises:\n    A, B: one\n        two\n    C: three\n"
    )
    assert (
        module.rewritten("Example:\n    >>> 1\n    1\n\nSource: S.\n")
        == "Examples:\n    >>> 1\n    1\n\n**Source:** S.\n"
    )
    assert module.rewritten("Says.\n\n>>> 1\n1") == "Says.\n\nExamples:\n    >>> 1\n    1"
