# SPDX-License-Identifier: Apache-2.0
"""The Python on the pages runs: sessions print what the pages show, and programs run, page by page from top to
bottom."""

import doctest
import re

import pytest
import torch
from support.paths import ROOT

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        ROOT / "README.md",
        ROOT / "HACKING.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
    )
}
BLOCK = re.compile(r"```python\n(.*?)```", re.S)
LEFT_OUT = {"HACKING.md": "compiles kernels for minutes; python_tests/package/test_cuda_on_cpu.py does what it shows"}


def loop(folder):
    """Set up a pair of tiny models, as `pair`, and requests."""
    from support import tiny

    from specdec_kernels import decode

    pytest.importorskip("llguidance", reason="not installed: llguidance")
    pair = decode.load_pair(*(tiny.byte_level_folder(folder / name, 0) for name in ("large", "small")))
    drafter = decode.ModelDrafter(pair.draft)
    return dict(decode=decode, pair=pair, drafter=drafter, prompt=[4, 5, 6], requests=[decode.Request([4, 5, 6])])


def two_models(folder):
    """Set up the folders that the page loads from."""
    from support import tiny

    tiny.folder(folder / "large", 0)
    tiny.folder(folder / "small", 1)
    return {}


def engines(folder):
    """Set up a model as transformers loads it, a draft, and an encoded prompt."""
    from support import tiny
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny.folder(folder / "large", 0))
    words = len(tiny.WORDS)
    model, draft_model = tiny.llama(0, vocab=words), tiny.nearby(tiny.llama(0, vocab=words))
    model.generation_config.max_new_tokens = 8
    inputs = dict(input_ids=torch.tensor([[4, 5, 6]]), attention_mask=torch.ones(1, 3, dtype=torch.int64))
    return dict(model=model, draft_model=draft_model, tokenizer=tokenizer, inputs=inputs)


def sharded(folder):
    """Set up one rank, which holds the whole vocabulary."""
    store = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    B, G, V = 2, 3, 151_936
    target, draft = torch.randn(B, G + 1, V), torch.randn(B, G, V)
    seeds = dict(seed=torch.arange(B), offset=torch.zeros(B, dtype=torch.int64))
    return dict(target=target, draft=draft, draft_tokens=draft.argmax(-1), temperature=0.8, top_p=0.9, **seeds)


SETUP = {"docs/loop.md": loop, "docs/two_models.md": two_models, "docs/engines.md": engines, "docs/sharded.md": sharded}


@pytest.fixture
def process_group():
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if "```python" in text and page not in LEFT_OUT])
def test_python_runs(page, tmp_path, monkeypatch):
    names = SETUP[page](tmp_path) if page in SETUP else {}
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for block in BLOCK.findall(PAGES[page]):
        if block.startswith(">>> "):
            session = doctest.DocTestParser().get_doctest(block, names, page, page, 0)
            assert session.examples and runner.run(session, clear_globs=False).failed == 0
            names = session.globs
        else:
            assert ">>>" not in block
            exec(compile(block, page, "exec"), names)  # the page's own program


def test_every_session_is_in_a_block():
    for page, text in PAGES.items():
        inside = sum(block.count(">>> ") for block in BLOCK.findall(text))
        assert len(re.findall(r"^>>> ", text, re.M)) == inside, page


def test_pages_with_python():
    wanted = {
        "README",
        "docs/guide",
        "docs/choosing",
        "docs/tours",
        "docs/rollouts",
        "docs/questions",
        "docs/testing",
        *(p[:-3] for p in SETUP),
    }
    assert wanted == {page[:-3] for page, text in PAGES.items() if "```python" in text and page not in LEFT_OUT}


def test_a_wrong_page_fails(tmp_path):
    """Control: the runner fails for a session that prints something else."""
    runner = doctest.DocTestRunner()
    session = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "x", "x", 0)
    assert runner.run(session, out=lambda text: None).failed == 1
