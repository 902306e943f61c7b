# SPDX-License-Identifier: Apache-2.0
"""torch.export example: export a decoding step that ends in verify_chain, save and load it, and compare it to the step.

python examples/export.py
"""

import tempfile
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

import specdec_kernels as sk


class Step(torch.nn.Module):
    """A module that scores each request's last token and draft with a target model, and verifies the draft."""

    def __init__(self, vocabulary: int = 1000, width: int = 64):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, ids, draft_logits, seed, offset):
        hidden = self.embed(ids)
        logits = self.head(scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True))  # any causal model
        target, draft = sk.Rows(logits, temperature=0.8, top_p=0.95), sk.Rows(draft_logits, temperature=0.8)
        out = sk.verify_chain(target, ids[:, 1:], draft, seed=seed, offset=offset)
        return out.tokens, out.num_accepted


def inputs(B: int, G: int = 4, vocabulary: int = 1000):
    """Return ids [B, G+1] (the last token, then the drafts), the draft's rows [B, G, V], and seeds and offsets [B]."""
    rows = torch.randn(B, G, vocabulary)
    seeds = dict(seed=torch.arange(B * G), offset=torch.zeros(1, dtype=int))
    drawn = sk.sample(sk.Rows(rows.view(B * G, -1), temperature=0.8), **seeds)
    ids = torch.cat([torch.zeros(B, 1, dtype=torch.int64), drawn.tokens.view(B, G)], 1)
    return ids, rows, torch.arange(B), torch.full((B,), 7)


def exported(step: torch.nn.Module) -> torch.export.ExportedProgram:
    """Export the step for 1 to 1,024 requests."""
    B = torch.export.Dim("B", min=1, max=1024)
    return torch.export.export(step, inputs(3), dynamic_shapes=[{0: B}] * 4)


def main():
    torch.manual_seed(0)
    step = Step().eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        torch.export.save(exported(step), path := Path(folder) / "step.pt2")
        loaded = torch.export.load(path).module()
        for B in (1, 3, 8):
            given = inputs(B)
            assert all(map(torch.equal, loaded(*given), step(*given)))
    print("exported: equal to the step for 1, 3 and 8 requests")


if __name__ == "__main__":
    main()
