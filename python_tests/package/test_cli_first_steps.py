# SPDX-License-Identifier: Apache-2.0
"""First steps on the command line: prompts from every source, threads, quick help, a reader that closes the pipe."""

import argparse
import io
import os
import subprocess
import sys
import time

import pytest
import torch
from support.paths import ROOT
from support.tiny import folder

from specdec_kernels import backends
from specdec_kernels.cli import app, generate, info, main, options
from specdec_kernels.cli.threads import pick_threads

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def threads():
    yield torch.get_num_threads()
    torch.set_num_threads(1)


def prompts(*arguments):
    parser = argparse.ArgumentParser()
    options.add(parser)
    return parser.parse_args([str(a) for a in arguments]).prompt


def test_prompts_come_in_the_order_given(tmp_path, monkeypatch):
    one, lines = tmp_path / "one.txt", tmp_path / "lines.jsonl"
    one.write_text("def f():\n\n")
    lines.write_text('"a\\n"\n\n{"prompt": "b \u2028", "id": 3}\n', "utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    got = prompts("--prompt", "x\n", "--prompt-file", lines, "--prompt", "-", "--prompt-file", one)
    assert got == ["x\n", "a\n", "b \u2028", "from a pipe", "def f():\n"]
    assert prompts() == []


@pytest.mark.parametrize(
    ("name", "holds", "says"),
    [
        ("x.txt", b"", "must be a text of at least one character, got ''"),
        ("x.txt", b"\xff", "must be text in UTF-8, got {}"),
        ("x.txt", None, "must be a file that can be read, got {}: Is a directory"),
        ("x.jsonl", b"\n", "must be a file with at least one prompt, got {}"),
        (
            "x.jsonl",
            b'"a"\n[1]\n',
            'must be a file whose lines are strings or {{"prompt": ...}}, got {} with line 2: [1]',
        ),
        ("x.jsonl", b'{"prompt": ""}', "with line 1"),
    ],
)
def test_a_file_without_a_prompt(tmp_path, capsys, name, holds, says):
    path = tmp_path / name
    path.mkdir() if holds is None else path.write_bytes(holds)
    assert main(["generate", "--prompt-file", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --prompt-file ") and says.format(path) in said and said.count("\n") == 1


def test_generate_chooses_its_threads(tmp_path, capsys, monkeypatch):
    """The number of threads found by timing is used, unless one is given. A text from a file is continued."""
    file = tmp_path / "prompt.txt"
    file.write_text("abc abc\n")
    arguments = ["generate", "--target", folder(tmp_path / "target", 0), "--prompt-file", str(file), "--plain"]
    arguments += ["--max-new-tokens", "4", "--dtype", "float32"]
    asked = []
    monkeypatch.setattr(generate, "pick_threads", lambda target, counts: asked.append(counts) or (1, 0.01))
    texts = []
    for given, threads in ([], 1), (["--threads", "2"], 2):
        torch.set_num_threads(2)
        assert main([*arguments, *given]) == 0 and torch.get_num_threads() == threads
        printed = capsys.readouterr()
        texts.append(printed.out)
        assert ("loading: one thread or 2\n" in printed.err) == (not given)
    assert asked == [(1, 2)] and texts[0] == texts[1] and texts[0].startswith("abc abc") and len(texts[0]) > 8


class Crawls:
    """A model whose passes are slow with one number of threads."""

    def __init__(self, threads):
        self.threads, self.passes = threads, 0

    def new_cache(self, slots, capacity):
        assert (slots, capacity) == (1, 2)

    def forward(self, ids, starts, cache, keep="last"):
        self.passes += 1
        time.sleep(0.03 if torch.get_num_threads() == self.threads else 0.001)


def test_threads_that_crawl_are_not_chosen():
    for slow, want in (2, 1), (1, 2):
        target = Crawls(slow)
        threads, seconds = pick_threads(target, (1, 2), passes=3)
        assert threads == want and 0.001 <= seconds < 0.03 and target.passes == 1 + 2 * 4
    assert torch.get_num_threads() == 1
    target = Crawls(1)
    pick_threads(target, (1, 2), seconds=0.0)
    assert target.passes == 1 + 2 * 2, "one turn to warm up, one to time"


def test_threads_are_restored_after_an_error():
    class Fails(Crawls):
        def forward(self, ids, starts, cache, keep="last"):
            super().forward(ids, starts, cache, keep)
            if torch.get_num_threads() == 2:
                raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        pick_threads(Fails(1), (1, 2))
    assert torch.get_num_threads() == 1


def test_help_waits_for_torch_alone():
    """Help imports torch, this package and the standard library only. The package takes less than a quarter of torch's
    own time."""
    script = """
import sys, time
import torch
of_torch, before = time.process_time(), set(sys.modules)
from specdec_kernels.cli import main
try:
    main(["generate", "--help"])
except SystemExit:
    spent = time.process_time() - of_torch
    print(spent / of_torch, *{name.split(".")[0] for name in set(sys.modules) - before}, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    share, *packages = done.stderr.split()
    assert float(share) < 0.25 and set(packages) <= {"specdec_kernels", *sys.stdlib_module_names}, done.stderr


@pytest.mark.parametrize("buffer", [1, io.DEFAULT_BUFFER_SIZE, 1 << 20], ids="buffer of {}".format)
@pytest.mark.parametrize("arguments", [["info"], ["--version"], ["generate", "--help"], ["cache"], []], ids=" ".join)
def test_a_reader_that_leaves(arguments, buffer, monkeypatch, capsys):
    """`... | head -1`: there is no traceback, and Python's flush at exit reports no error.

    A print fails at once if the buffer is small, and at the last flush if the buffer holds the whole text.
    """
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=buffer) as closed:
        monkeypatch.setattr("sys.stdout", closed)
        assert main(arguments) == app.CLOSED
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("gpus", "chosen", "runs", "says"),
    [
        (0, "cpu", ["cpu"], "CPU tensors: CPU ops. No GPU found."),
        (0, "cuda", ["cpu"], "CPU tensors: CPU ops. No GPU found."),
        (2, "cuda", ["cpu", "cuda"], "CPU tensors: CPU ops. GPU tensors: CUDA C++ ops."),
        (1, "triton", ["cpu", "triton"], "CPU tensors: CPU ops. GPU tensors: Triton ops."),
        (1, "cuda", ["cpu"], "CPU tensors: CPU ops. GPU tensors: no ops, for the reasons above."),
        (1, "cpu", ["cpu"], "CPU tensors: CPU ops. GPU tensors: no ops, for the reasons above."),
    ],
)
def test_info_ends_with_what_runs_where(monkeypatch, gpus, chosen, runs, says):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(backends, "chosen", lambda: chosen)
    monkeypatch.setattr(backends, "available", lambda: runs)
    assert info.sentence() == says
    if chosen == "triton":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        assert info.sentence().startswith("CPU tensors: Triton ops, interpreted.")


def test_info_prints_it_last(capsys):
    assert main(["info"]) == 0 and capsys.readouterr().out.endswith(f"\n\n{info.sentence()}\n")
