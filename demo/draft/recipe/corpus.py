# SPDX-License-Identifier: Apache-2.0
"""Generation of the draft's training text by the target. No HumanEval prompt is among the openings.

Kinds of text:

    A  chat; the model writes the user's turn too
    B  the same, where the user's turn starts with "Write a Python function" or the like
    C  code after a few characters
    D  code after real signatures and docstrings
    E  chat answers to requests made of a template and a topic
    F  code after the head and docstring of a small task; half of them end with the beginning of an example

Tokens are sampled at temperature 1, 0.7 and 0.3, for sequences in the ratio 3:2:1.
"""

import ast
import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from demo.draft.recipe.openings import CODE_REQUESTS, CODE_STARTS, OPENERS, PACKAGES, TASKS, TEMPLATES, TOPICS, pieces
from demo.draft.recipe.teacher import Corpus, load_target
from specdec_kernels.decode.models.lean_llama import LeanLlama

LENGTH = 240  # tokens of a sequence, prompt included
BATCH = 128  # sequences of a shard, all of one kind
KINDS = "DFEDFAFDBECF"  # the kind of shard s is KINDS[s % 12]
TEMPERATURES = (1.0, 0.7, 1.0, 0.7, 1.0, 0.3)

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}"
)
ANSWER = "<|im_end|>\n<|im_start|>assistant\n"


def modules(name):
    """Yield a module and, for a package, its direct submodules; those that cannot be imported are skipped."""
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
    """Return function heads with docstrings, 40 to 900 characters, from the sources of PACKAGES, sorted and unique."""
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


def task_head(task, rng):
    """Return imports, signature and docstring of one of TASKS; types and a final ">>> name(" are added at random."""
    signature, text = re.fullmatch(r"(.+?\)(?: -> .+?)?): ([A-Z].+)", task).groups()
    name, typed = signature.split("(")[0], rng.random() < 0.7
    if not typed:
        signature = re.sub(r": [^:()]+?(?=, \w+:|\))|: Tuple\[.*?\](?=[,)])| -> .*", "", signature)
    used = [word for word in ("Dict", "List", "Optional", "Tuple") if word in signature]
    head = f"from typing import {', '.join(used)}\n\n\n" if used else ""
    head += f'def {signature}:\n    """' + (" " if rng.random() < 0.5 else "\n    ") + text
    return head + ('\n    """\n' if rng.random() < 0.5 else f"\n    >>> {name}(")


def prompts(kind, n, rng, heads):
    """Return n prompt texts of one kind."""
    if kind == "A":
        return [CHAT.format(rng.choice(pieces(OPENERS)) if rng.random() < 0.8 else "") for _ in range(n)]
    if kind == "B":
        return [CHAT.format(rng.choice(pieces(CODE_REQUESTS))) for _ in range(n)]
    if kind == "C":
        return [str(rng.choice(pieces(CODE_STARTS))) for _ in range(n)]
    if kind == "D":
        return [heads[i] for i in rng.choice(len(heads), n, replace=False)]
    if kind == "F":
        return [task_head(str(rng.choice(pieces(TASKS))), rng) for _ in range(n)]
    asked = [str(rng.choice(pieces(TEMPLATES))).format(rng.choice(pieces(TOPICS))) for _ in range(n)]
    return [CHAT.format(text) + ANSWER for text in asked]


def draw(logits, temperature, generator):
    """Draw one id per row of logits [B, V] by inverse CDF in two levels: a block of 128 ids, then an id in it."""
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
    """Continue every prompt -> (tokens, states, log_z).

    tokens [B, LENGTH]: prompts and continuations. states [B, LENGTH - 1, d]: the model's last hidden states at all
    tokens but the last. log_z [B, LENGTH - 1]: ln Z of its logits there (teacher.log_normaliser).
    """
    B, length = len(prompt_ids), torch.tensor([len(p) for p in prompt_ids])
    tokens, log_z = torch.zeros(B, LENGTH, dtype=torch.int64), torch.zeros(B, LENGTH - 1)
    for row, p in zip(tokens, prompt_ids):
        row[: len(p)] = torch.tensor(p)
    temperature = torch.tensor([TEMPERATURES[i % len(TEMPERATURES)] for i in range(B)])
    same = int((tokens == tokens[0]).all(0)[: int(length.min()) - 1].long().cumprod(0).sum())
    cache = model.new_cache(B, LENGTH)
    cache.keep_states(model.state_size, model.dtype, model.device)
    if same:  # the tokens that all prompts begin with are read once
        logits = model.forward(tokens[:1, :same], [0], cache)
        log_z[:, :same] = logits.float().logsumexp(-1)
        for slot in range(1, B):
            cache.move(0, slot)
    for t in track(range(same, LENGTH - 1), description=title):
        logits = model.forward(tokens[:, t : t + 1], [t] * B, cache)[:, 0]
        log_z[:, t] = logits.float().logsumexp(-1)
        tokens[:, t + 1] = torch.where(t + 1 < length, tokens[:, t + 1], draw(logits, temperature, generator))
    return tokens, cache.states[:, : LENGTH - 1], log_z


def shard_paths(folder, shards):
    return [Path(folder) / f"shard-{s:03d}.npz" for s in range(shards)]


def grow(folder, shards, seed=1, part=0, parts=1):
    """Write folder/shard-XXX.npz (tokens, length, prompt_length, kind), and states-XXX.pt as store_states does.

    Finished shards are kept. part: the number of this process among `parts` that share the work.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = shard_paths(folder, shards)
    missing = [s for s in range(part, shards, parts) if not paths[s].exists()]
    if not missing:
        return
    target, tokenizer = load_target()
    model, heads = LeanLlama.from_hf(target), signatures()
    for s in missing:
        kind, rng = KINDS[s % len(KINDS)], np.random.default_rng([seed, s])
        ids = [tokenizer(p)["input_ids"][: LENGTH * 2 // 3] for p in prompts(kind, BATCH, rng, heads)]
        generator = torch.Generator().manual_seed(seed * 100_003 + s)
        tokens, states, log_z = write(model, ids, generator, f"shard {s} ({kind})")
        partial = folder / f"partial-{s:03d}.npz"
        np.savez_compressed(
            partial,
            tokens=tokens.numpy().astype(np.uint16),
            length=np.full(BATCH, LENGTH, np.int32),
            prompt_length=np.array([len(p) for p in ids], dtype=np.int32),
            kind=np.full(BATCH, kind),
        )
        first = Corpus(partial).first_label
        kept = {i: (h.clone(), z[first(i) - 1 :].clone()) for i, (h, z) in enumerate(zip(states, log_z))}
        torch.save(kept, states_of(paths[s]))
        partial.rename(paths[s])  # renamed last, so a shard with this name is complete


def states_of(shard):
    """Return the file with the states of a shard that grow() wrote."""
    return shard.with_name(shard.name.replace("shard", "states")).with_suffix(".pt")
