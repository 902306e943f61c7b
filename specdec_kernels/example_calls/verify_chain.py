# SPDX-License-Identifier: Apache-2.0
import torch

from specdec_kernels.ops.row_stats import row_stats
from specdec_kernels.registry import CHAIN_METHODS, RULES

B, G = 4, 5
LENGTHS = (2, 0, 1, 2)  # of the drafts of a ragged batch


def calls(x):
    target, draft = x.close_rows(B, G + 1)
    step = {"target_logits": target, "draft_tokens": x.drawn(draft[:, :G]), "draft_logits": draft[:, :G]}
    random = x.random(B)
    stats = {"target_stats": stats_of(target), "draft_stats": stats_of(draft[:, :G])}
    yield "uniforms", step | {"uniforms": x.uniforms(B, G + 1)}
    yield "seeds", step | random
    yield "stats", step | stats | random
    yield "filters", step | random | {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.01}
    yield "filters per request", step | random | x.filters(B) | x.filters(B, "draft_")
    numbers = {"draft_temperature": 0.7, "draft_top_k": 50, "draft_top_p": 0.9, "draft_min_p": 0.01}
    yield "a filtered draft", step | random | numbers
    yield "greedy", step | {"temperature": 0.0, "max_draft": G}
    yield "one-hot drafts", {name: given for name, given in step.items() if name != "draft_logits"} | random
    yield "all accepted", step | random | {"draft_logits": target[:, :G]}
    pads = torch.arange(G, device="cpu") >= torch.tensor([[5], [3], [1], [0]], dtype=torch.int64, device="cpu")
    yield "short drafts", step | random | {"draft_tokens": step["draft_tokens"].where(x.on_device(~pads), -1)}
    yield "a wider draft", step | random | {"draft_logits": x.rows(B, G, more=3)}
    yield "a bonus row of the draft's", step | random | {"draft_logits": draft, "rule": "ensemble", "alpha": 0.5}
    yield "the engine's bonus", step | random | {"target_logits": target[:, :G], "bonus_tokens": x.integers(0, x.V, B)}
    kinds = {"target_kind": "probs", "draft_kind": "probs"}
    yield "probabilities", step | random | {"target_logits": x.probs(B, G + 1), "draft_logits": x.probs(B, G)} | kinds
    yield "probabilities of the draft", step | random | {"draft_logits": x.probs(B, G), "draft_kind": "probs"}
    yield "blocks", step | random | stats | {"method": "block"}
    yield from by_rule(x, step | random)
    yield from stored(x, step | random)
    yield from ragged(x, target.flatten(0, 1), draft.flatten(0, 1), step["draft_tokens"].flatten())
    stale = {name: x.stale(given, B - 1) for name, given in (step | random | x.filters(B)).items()}
    yield "padded buffers", stale | {"num_requests": x.integers(0, B, 1)}


def stats_of(rows):
    return row_stats(rows.flatten(0, 1)).view(*rows.shape[:2], 4)


def by_rule(x, step):
    """Every rule: by name with its default, then by code, all of a request in turn."""
    yield "a rule, one number", step | {"rule": "lossy", "alpha": 0.3}
    yield "a rate of each position", step | {"rule": "synthetic", "alpha": (0.9,) * step["draft_tokens"].shape[1]}
    yield "a rule, two numbers", step | {"rule": "thresholds", "alpha": (0.5, 0.4)}
    yield "a rule by default", step | {"rule": "typical"}
    for method, known in CHAIN_METHODS.items():
        codes = [RULES[name].code for name in known.rules]
        for first in range(0, len(codes), B):
            some = (codes[first:] + codes)[:B]
            both = torch.tensor(
                [[1.0 if code == RULES["relaxed"].code else 0.4, 0.5] for code in some],
                dtype=torch.float32,
                device="cpu",
            )
            alpha = x.on_device(both if first % (2 * B) else both[:, 0])
            yield f"rules from {first}, {method}", step | {"method": method, "rule": x.tensor(*some), "alpha": alpha}


def stored(x, step):
    """Rows that lie elsewhere than in the order of the positions: row n of a store is [n // K, n % K]."""
    far = x.rows(B, 2 * G)
    slots = far.transpose(0, 1)  # K = B: their own strides
    at = x.integers(0, 2 * G * B, B, G + 1).int()
    kept = {"target_logits": far.flatten(0, 1), "target_row": at, "draft_logits": slots, "draft_row": at[:, :G].long()}
    yield "rows by number", step | kept
    stats = row_stats(far.flatten(0, 1))
    of_slots = stats.view(B, 2 * G, 4).transpose(0, 1)
    given = {"target_stats": stats, "draft_stats": of_slots, "method": "block", "rule": "chow", "alpha": 0.9}
    yield "rows by number, stats", step | kept | given | {"draft_row": at}
    mixed = at[:, :G].where(x.on_device(torch.arange(G, device="cpu") % 2 == 0), -1)
    yield "one-hot drafts among others", step | {"draft_logits": slots, "draft_row": mixed}
    hostile = torch.tensor([-2, 2 * G * B, 1 << 40, -(1 << 63), -1, 0], dtype=torch.int64, device="cpu")
    nowhere = x.on_device(hostile.expand(B, G + 1))
    yield "numbers of no row", step | kept | {"target_row": nowhere.flip(1), "draft_row": nowhere[:, :G]}
    lengths = torch.tensor((0, *LENGTHS), dtype=torch.int64, device="cpu").cumsum(0)
    D = int(lengths[-1])
    some = {
        "cu_draft": x.on_device(lengths),
        "max_draft": max(LENGTHS),
        "draft_tokens": step["draft_tokens"].flatten()[:D],
    }
    where = {"target_row": at.flatten()[: D + B], "draft_row": mixed.flatten()[:D]}
    yield "ragged, rows by slot", step | kept | some | where


def ragged(x, target, draft, tokens):
    D = sum(LENGTHS)
    step = {
        "target_logits": target[: D + B],
        "draft_tokens": tokens[:D],
        "draft_logits": draft[:D],
        "cu_draft": x.on_device(torch.tensor((0, *LENGTHS), dtype=torch.int64, device="cpu").cumsum(0)),
        "max_draft": max(LENGTHS),
        **x.random(B),
    }
    yield "ragged", step
    yield "ragged stats", step | {"target_stats": row_stats(target[: D + B]), "draft_stats": row_stats(draft[:D])}
    yield (
        "ragged blocks by a rule",
        step | {"draft_logits": draft[: D + B], "method": "block", "rule": "chow", "alpha": 0.9},
    )
    bonus = {"target_logits": target[:D], "bonus_tokens": x.integers(0, x.V, B)}
    yield "ragged, the engine's bonus", step | bonus | {"draft_logits": None}
    here = sum(LENGTHS[: B - 1])
    ends = {"target_logits": here + B - 1, "draft_tokens": here, "draft_logits": here, "cu_draft": B}
    stale = {name: x.stale(step[name], ends.get(name, B - 1)) for name in (*ends, "seed", "offset")}
    yield "ragged padded buffers", step | stale | {"num_requests": x.integers(0, B, 1)}
