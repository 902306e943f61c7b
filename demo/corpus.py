# SPDX-License-Identifier: Apache-2.0
"""The target writes the draft's training text. No HumanEval prompt is among the openings.

Kinds: A chat, the user's turn written by the model as well; B the same, opened with "Write a Python function" and the
like; C raw code grown from a few characters; D code after real signatures and docstrings; E chat answers to requests
that are put together from a template and a topic. Answers are sampled at temperature 1, 0.7 and 0.3 in the ratio 3:2:1.
"""

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from teacher import PAD, load_target

from specdec_kernels.decode.models.lean_llama import LeanLlama

LENGTH = 240  # tokens of a sequence, prompt included
BATCH = 128  # sequences of a shard, all of one kind
KINDS = "AEDBDEACDE"  # the kind of shard s is KINDS[s % 10]
TEMPERATURES = (1.0, 0.7, 1.0, 0.7, 1.0, 0.3)

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}"
)
ANSWER = "<|im_end|>\n<|im_start|>assistant\n"

OPENERS = """What|How|Why|Can you|Could you|Please|Explain|Write|Describe|I|I need|I'm|My|Give me|Tell me|Is it|
Is there|Summarize|Suggest|Help me|Create|When|Where|Who|Which|Do you|Should I|Compare|List|Give an example of|In|The|
Imagine|Translate|Rewrite|Name|Define|If|Are|Does|What is the|How do I|How can I|Write a short|What are some"""
CODE_REQUESTS = """Write a Python function|Implement a Python function|Write a function that|Create a Python program|
Write a Python script|Write code|Given a list|Given a string|Complete the following Python function|
Fix this Python code|
How do I write a Python function|Write a Python class"""
CODE_STARTS = """def |def is_|def get_|def find_|def count_|def sum_|def sort_|def check_|def remove_|def max_|
def string_|
def list_|def parse_|def compute_|def max_sub|def num_|def convert_|def longest_|import |from typing import |class |
solve(|
from typing import List\\n\\n\\ndef |import math\\n\\ndef |def f(|# |def factor|def encode_|def decode_|def filter_"""
TEMPLATES = """Explain {} to a beginner.|What is {}?|Write a short paragraph about {}.|Give me five facts about {}.|
What are the advantages and disadvantages of {}?|Write a poem about {}.|How has {} changed over the last century?|
Why is {} important?|I want to learn about {}. Where should I start?|Write a story that begins with {}.|
Summarize the history of {}.|What are common mistakes people make with {}?|Give me three tips about {}.|
How would you describe {} to a child?|Write an email to a friend about {}.|What questions should I ask about {}?|
Compare {} with something similar.|Make a list of ideas for a project about {}.|Who should care about {}, and why?|
Write a dialogue between two people who disagree about {}.|Tell me something surprising about {}.|
What do I need to know about {} before a job interview?|Plan a lesson on {}.|Can you help me with {}?"""
TOPICS = """solar panels|the Roman Empire|baking sourdough bread|learning the violin|compound interest|black holes|
gardening in winter|the immune system|public speaking|electric cars|chess openings|jazz music|the French Revolution|
photosynthesis|meditation|remote work|machine learning|tea ceremonies|space travel|train travel in Europe|coral reefs|
the printing press|basketball|saving money|mental health at work|the water cycle|modern art|renewable energy|cats|
dinosaurs|
volcanoes|yoga|vegetarian cooking|the Silk Road|quantum computers|raising chickens|photography|the moon landing|
antibiotics|minimum wage|writing a resume|time management|the Great Wall of China|swimming|healthy breakfasts|
online privacy|folk tales|bees|rivers|inflation|the human heart|glaciers|football tactics|knitting|city planning|
recycling|
the Renaissance|sleep|marathon training|coffee|small businesses|science fiction|whales|bridges|earthquakes|vaccines|
the stock market|friendship|deserts|DNA|opera|bicycles|rainforests|probability|the alphabet|clocks|wine|ancient Egypt|
the periodic table|leadership|camping|astronomy|budget travel|nutrition|open source software|migration of birds|
housing prices|museums|teamwork|owls|mathematics"""
PACKAGES = """json re os collections itertools functools statistics string textwrap random heapq bisect datetime
calendar
fractions decimal shutil pathlib inspect ast difflib csv zipfile urllib email html http logging unittest argparse
asyncio
numpy numpy.lib networkx networkx.algorithms sympy.ntheory sympy.combinatorics sympy.utilities sympy.core sympy.geometry
sympy.matrices sympy.series sympy.stats mpmath jinja2 rich typer huggingface_hub tokenizers transformers
torch.nn.functional"""


def pieces(text):
    """The entries of one of the lists above; a written \\n stands for a line break."""
    return [x.replace("\\n", "\n") for x in text.replace("\n", "").split("|")]


def modules(name):
    """The module and, for a package, its direct submodules; those that cannot be imported are skipped."""
    try:
        root = import_module(name)
    except Exception:
        return
    yield root
    for info in pkgutil.iter_modules(getattr(root, "__path__", [])):
        if not info.name.startswith(("_", "test")):
            try:
                yield import_module(f"{name}.{info.name}")
            except Exception:
                continue


def signatures(limit=6):
    """Function heads with their docstrings, 40 to 900 characters, read from the sources of PACKAGES; sorted, unique."""
    found = set()
    for package in PACKAGES.split():
        for module in modules(package):
            try:
                tree = ast.parse(inspect.getsource(module))
            except (OSError, TypeError, SyntaxError):
                continue
            for node in ast.walk(tree):
                doc = isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
                if doc and len(node.args.args) <= limit:
                    doc = doc.replace("\n", "\n    ")
                    head = f'def {node.name}({ast.unparse(node.args)}):\n    """{doc}\n    """\n'
                    if 40 <= len(head) <= 900:
                        found.add(head)
    return sorted(found)


def prompts(kind, n, rng, heads):
    """n prompt texts of one kind."""
    if kind == "A":
        return [CHAT.format(rng.choice(pieces(OPENERS)) if rng.random() < 0.8 else "") for _ in range(n)]
    if kind == "B":
        return [CHAT.format(rng.choice(pieces(CODE_REQUESTS))) for _ in range(n)]
    if kind == "C":
        return [str(rng.choice(pieces(CODE_STARTS))) for _ in range(n)]
    if kind == "D":
        return [heads[i] for i in rng.choice(len(heads), n, replace=False)]
    asked = [str(rng.choice(pieces(TEMPLATES))).format(rng.choice(pieces(TOPICS))) for _ in range(n)]
    return [CHAT.format(text) + ANSWER for text in asked]


def draw(logits, temperature, generator):
    """One id per row of logits [B, V] by inverse CDF in two levels: a block of 128 ids, then an id in it."""
    z = logits.float()
    w = ((z - z.amax(-1, keepdim=True)) / temperature[:, None]).exp_().view(len(z), -1, 128)
    blocks = w.sum(-1).double().cumsum(-1)
    u = torch.rand(len(z), 1, generator=generator, dtype=torch.float64) * blocks[:, -1:]
    block = torch.searchsorted(blocks, u, right=True).clamp_max(blocks.shape[1] - 1)
    inside = w[torch.arange(len(z)), block[:, 0]].double().cumsum(-1)
    left = u - torch.where(block > 0, blocks.gather(1, (block - 1).clamp_min(0)), 0.0)
    return (block * 128 + torch.searchsorted(inside, left, right=True).clamp_max(127))[:, 0]


@torch.inference_mode()
def write(model, prompt_ids, generator, title):
    """Token ids [B, LENGTH]: every prompt, and what the model makes of it."""
    B, length = len(prompt_ids), torch.tensor([len(p) for p in prompt_ids])
    tokens = torch.zeros(B, LENGTH, dtype=torch.int64)
    for row, p in zip(tokens, prompt_ids):
        row[: len(p)] = torch.tensor(p)
    temperature = torch.tensor([TEMPERATURES[i % len(TEMPERATURES)] for i in range(B)])
    same = int((tokens == tokens[0]).all(0)[: int(length.min()) - 1].long().cumprod(0).sum())
    cache = model.new_cache(B, LENGTH)
    if same:  # the opening that all share is read once
        model.forward(tokens[:1, :same], [0], cache, keep=None)
        for slot in range(1, B):
            cache.move(0, slot)
    for t in track(range(same, LENGTH - 1), description=title):
        logits = model.forward(tokens[:, t : t + 1], [t] * B, cache)[:, 0]
        tokens[:, t + 1] = torch.where(t + 1 < length, tokens[:, t + 1], draw(logits, temperature, generator))
    return tokens


def grow(folder, shards, seed=1):
    """Writes folder/shard-XXX.npz (tokens, length, prompt_length, kind); finished shards are kept."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    missing = [s for s in range(shards) if not (folder / f"shard-{s:03d}.npz").exists()]
    if not missing:
        return
    target, tokenizer = load_target()
    model, heads = LeanLlama.from_hf(target), signatures()
    for s in missing:
        kind, rng = KINDS[s % len(KINDS)], np.random.default_rng([seed, s])
        ids = [tokenizer(p)["input_ids"][: LENGTH * 2 // 3] for p in prompts(kind, BATCH, rng, heads)]
        tokens = write(model, ids, torch.Generator().manual_seed(seed * 100_003 + s), f"shard {s} ({kind})")
        prompt_length = np.array([len(p) for p in ids], dtype=np.int32)
        rest = {
            "prompt_length": prompt_length,
            "length": np.full(BATCH, LENGTH, np.int32),
            "kind": np.full(BATCH, kind),
        }
        np.savez_compressed(folder / "partial.npz", tokens=tokens.numpy().astype(np.uint16), **rest)
        (folder / "partial.npz").rename(folder / f"shard-{s:03d}.npz")


def merge(paths, out):
    """Joins corpus files into one, rows padded to the longest."""
    parts = [np.load(p) for p in paths]
    width = max(p["tokens"].shape[1] for p in parts)
    tokens = [np.pad(p["tokens"], ((0, 0), (0, width - p["tokens"].shape[1])), constant_values=PAD) for p in parts]
    rest = {k: np.concatenate([p[k] for p in parts]) for k in ("length", "prompt_length", "kind")}
    np.savez_compressed(out, tokens=np.concatenate(tokens), **rest)
