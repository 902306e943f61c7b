# SPDX-License-Identifier: Apache-2.0
"""The site that make docs builds. No page fetches anything from another machine, and the API pages show the public
names.

SPECDEC_SITE names a site that is already built.
"""

import ast
import dataclasses
import html
import importlib
import inspect
import os
import re
import subprocess
import sys
import textwrap
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.paths import ROOT

import specdec_kernels as sk
from specdec_kernels import decode, distributed
from specdec_kernels.registry import FUNCTIONS

pytestmark = pytest.mark.slow
pytest.importorskip("mkdocs", reason="the extra docs is not installed")
pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
FETCHED = {("script", "src"), ("link", "href"), ("form", "action")} | {
    (tag, name)
    for tag in ("img", "source", "iframe", "embed", "video", "audio", "track", "input", "object", "use", "image")
    for name in ("src", "srcset", "data", "href", "xlink:href", "poster")
}
# THEME: the hosts from which the theme's script could fetch diagrams, a repository's stars, and a substitute for
# ResizeObserver in browsers without it. No page has diagrams or stars (see below). NAMED: hosts that occur in comments
# and names only.
THEME = {"unpkg.com", "api.github.com"}
NAMED = {"www.w3.org", "fontawesome.com", "clipboardjs.com", "bit.ly", "tartarus.org", "lunrjs.com"}


def hosts(text):
    return set(re.findall(r"""(?:https?:)//([\w.-]+\.[a-z]{2,})""", text))


def styled(css):
    """Return the files that a style sheet fetches."""
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


@pytest.mark.parametrize("package", ["", ".theory", ".reference", ".decode", ".testing"])
def test_api_pages_show_every_name(pages, package):
    shown = set().union(*(page.ids for name, page in pages.items() if name.startswith("api/")))
    module = f"specdec_kernels{package}"
    names = importlib.import_module(module).__all__
    known = lambda name: {f"{module}.{name}", f"{module}.{name}.{name}"} & shown  # a function in its own file
    assert len(names) > 5 and not [name for name in names if not known(name)]


def test_page_of_split_vocabularies_names_every_function(site):
    text = (site / "api/distributed.html").read_text()
    for name in distributed.__all__:
        assert f"<td><code>{name}</code></td>" in text or f'id="specdec_kernels.distributed.{name}"' in text, name


def classes():
    """Return {public class with fields: [(name, type, default or "") as in its source]}."""
    found = {}
    for module in (sk, decode, distributed):
        for name in module.__all__:
            cls = getattr(module, name)
            if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"):
                body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
                fields = [x for x in body if isinstance(x, ast.AnnAssign)]
                found[f"{module.__name__}.{name}"] = [
                    (x.target.id, ast.unparse(x.annotation), ast.unparse(x.value) if x.value else "") for x in fields
                ]
    return found


def shown(page):
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", page)))


CLASSES = classes()


def test_every_field_is_looked_for():
    for name, fields in CLASSES.items():
        cls = getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2])
        wanted = [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else list(cls._fields)
        assert [field for field, _, _ in fields] == wanted
    assert {f"specdec_kernels.{x}" for x in ("Rows", "decode.Request", "decode.Result", "decode.Pair")} <= set(CLASSES)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_classes_show_every_field(site, name):
    """Each field has its type and default in the table of fields, or is among the Args."""
    page = next(text for path in site.glob("api/**/*.html") if f'id="{name}"' in (text := path.read_text()))
    section = page.split(f'id="{name}"')[1].split('class="doc doc-object doc-class"')[0]
    for field, kind, default in CLASSES[name]:
        rows = re.findall(rf"<tr>\s*<td><code>{field}</code></td>(.*?)</tr>", section, re.S)
        rows += re.findall(rf"<b><code>{field}</code></b>(.*?)</li>", section, re.S)
        row = shown("".join(rows))
        default = re.sub(r"field\(default_factory=(\w+)\b.*\)", r"\1()", default)
        for wanted in (kind, default):
            assert bare(wanted) in bare(row), (field, wanted, row)


def bare(text):
    """Return the text without white space, quotes and the modules of types."""
    return re.sub(r"[\s'\"]|\b\w+\.(?=[A-Z])", "", text)


def test_loop_page_begins_with_what_one_calls(site):
    names = re.findall(r'<h2 id="specdec_kernels\.decode\.(\w+)"', (site / "api/decode.html").read_text())
    assert names[:2] == ["generate", "load_pair"]


def test_a_page_for_each_op(site, pages):
    assert {f"api/ops/{op}.html" for op in FUNCTIONS} <= set(pages)
    index = (site / "api/index.html").read_text()
    assert all(f'href="ops/{op}.html"' in index for op in FUNCTIONS)


def test_navigation_is_grouped(site):
    tabs = re.findall(r'<a href="[^"]*" class="md-tabs__link">\s*(.*?)\s*</a>', (site / "guide.html").read_text(), re.S)
    assert tabs == ["Start", "Use", "Integrate", "Understand", "API", "Contribute"]


def test_sessions_are_copied_without_prompts(site):
    """Every prompt is marked as one, and the style sheet excludes marked text from copying."""
    for path in site.rglob("*.html"):
        text = re.sub(r'<span class="gp">.*?</span>', "", path.read_text())
        assert not re.search(r"(?m)^(?:<[^>]+>)*(?:&gt;){3}", text), path
    assert "[data-md-copying] :is(.gp, .go, .gt, .gr) { display: none; }" in (site / "site.css").read_text()
    assert '<span class="gp">' in (site / "guide.html").read_text()


def test_signatures_and_sections(site):
    """The page of verify_chain shows the first line of the docstring, and each section of it as a section."""
    text = (site / "api/ops/verify_chain.html").read_text()
    for section in ("Parameters", "Returns", "Raises", "Examples"):
        assert text.count(f'<span class="doc-section-title">{section}:</span>') == 1, section
    assert sk.verify_chain.__doc__.split("\n")[0] in shown(text)
    assert "temperature) raise ValueError too." in shown(text)  # the end of an entry of two lines
    tree = (site / "api/ops/verify_tree.html").read_text()
    assert "<td><code>recursive_without_replacement</code></td>" in tree  # a table of a docstring


def test_pictures_and_search(site):
    assert all((site / "demo" / name).stat().st_size > 10_000 for name in ("trees.png", "cascades.png"))
    assert "STATUS_EMPTY_RESIDUAL" in (site / "search" / "search_index.json").read_text()
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")  # read from a folder
    assert 'src="assets/iframe-worker.js"' in (site / "index.html").read_text()


def tool(name):
    """Import a module of tools/docs/, which is not a package."""
    found = importlib.util.spec_from_file_location(name, Path(ROOT / f"tools/docs/{name}.py"))
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_drawings_are_up_to_date():
    """Drawings are made again from the code and the page of numbers. Every one is shown on a page."""
    pictures = tool("pictures")
    assert {path.stem for path in pictures.FOLDER.glob("*.svg")} == set(pictures.PICTURES)
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    for name, draw in pictures.PICTURES.items():
        assert (pictures.FOLDER / f"{name}.svg").read_text() == draw(), f"{name}: run python -m tools.docs.pictures"
        assert f"](pictures/{name}.svg)" in pages, name
    assert len(pictures.measured()) == 6


def test_docstrings_are_rewritten():
    pytest.importorskip("griffe")
    module = tool("docstrings")
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
