# SPDX-License-Identifier: Apache-2.0
import torch

from specdec_kernels.example_calls.inputs import FILTERS
from specdec_kernels.ops.row_stats import row_stats
from specdec_kernels.ops.sample import sample
from specdec_kernels.registry import CHAIN_METHODS, RULES
from specdec_kernels.rows import Rows

B, G = 4, 5
LENGTHS = (2, 0, 1, 2)  # draft lengths of a ragged batch


def calls(x):
    target, draft = x.close_rows(B, G + 1)
    step = {"target": target, "draft_tokens": x.drawn(draft[:, :G]), "draft": draft[:, :G]}
    random = x.random(B)
    stats = {"target": with_stats(target), "draft": with_stats(draft[:, :G])}
    yield "uniforms", step | {"uniforms": x.uniforms(B, G + 1)}
    yield "seeds", step | random
    yield "stats", step | stats | random
    yield "filters", step | random | {"target": Rows(target, **FILTERS)}
    yield (
        "filters per request",
        step | random | {"target": Rows(target, **x.filters(B)), "draft": Rows(draft[:, :G], **x.filters(B))},
    )
    yield "a filtered draft", step | random | {"draft": Rows(draft[:, :G], **FILTERS)}
    yield "greedy", step | {"target": Rows(target, temperature=0.0), "max_draft": G}
    yield "one-hot drafts", {name: given for name, given in step.items() if name != "draft"} | random
    yield "all accepted", step | random | {"draft": target[:, :G]}
    pads = torch.arange(G, device="cpu") >= torch.tensor([[5], [3], [1], [0]], dtype=torch.int64, device="cpu")
    yield "short drafts", step | random | {"draft_tokens": step["draft_tokens"].where(x.on_device(~pads), -1)}
    yield "a wider draft", step | random | {"draft": x.rows(B, G, more=3)}
    yield "a bonus row of the draft's", step | random | {"draft": draft, "rule": "ensemble", "alpha": 0.5}
    yield "the engine's bonus", step | random | {"target": target[:, :G], "bonus_tokens": x.integers(0, x.V, B)}
    probs = {"target": Rows(x.probs(B, G + 1), kind="probs"), "draft": Rows(x.probs(B, G), kind="probs")}
    yield "probabilities", step | random | probs
    for name, given in x.views(B, (B, G + 1)):
        both = {"target": Rows(target, **FILTERS, **given), "draft": Rows(draft[:, :G], **given)}
        yield name, step | random | both
    yield "probabilities of the draft", step | random | {"draft": Rows(x.probs(B, G), kind="probs")}
    for name, given in x.listed(B, G):
        yield f"{name} drafts", step | random | {"draft": Rows(**given, temperature=0.7)}
        yield f"{name} drafts, blocks", step | random | {"draft": Rows(**given), "method": "block"}
    for name, given in x.listed(B, G, probs=True):
        yield f"{name} probabilities", step | random | {"draft": Rows(**given, kind="probs")}
    yield "blocks", step | random | stats | {"method": "block"}
    yield from races(x, step | random | probs)
    yield from by_rule(x, step | random)
    yield from stored(x, step | random)
    yield from ragged(x, target.flatten(0, 1), draft.flatten(0, 1), step["draft_tokens"].flatten())
    stale = {name: x.stale(given, B - 1) for name, given in (step | random).items()}
    filters = {name: x.stale(given, B - 1) for name, given in x.filters(B).items()}
    padded = {"target": Rows(stale["target"], **filters), "num_requests": x.integers(0, B, 1)}
    yield "padded buffers", stale | padded


def with_stats(rows):
    """Return Rows of logits [..., V] with their stats [..., 4]."""
    return Rows(rows, stats=row_stats(rows.reshape(-1, rows.size(-1))).view(*rows.shape[:-1], 4))


def races(x, step):
    """Yield races whose drafts are the winners of most rows."""
    target = x.close_rows(B, G + 1)[0]
    rows = target.flatten(0, 1)
    position = step["offset"][:, None] + x.on_device(torch.arange(G + 1, device="cpu"))
    won = sample(rows, race=True, seed=step["seed"].repeat_interleave(G + 1), offset=position.flatten()).tokens
    likely = {"draft_tokens": won.view(B, G + 1)[:, :G], "method": "race"}
    yield "a race of probabilities", step | likely
    yield "a race", step | likely | {"target": target}
    yield "a race, filters per request", step | likely | {"target": Rows(target, **x.filters(B))}
    yield "a race by noise keys", step | likely | {"target": with_stats(target), "offset": None} | x.keys(B, G + 1)
    for name, given in x.views(B, (B, G + 1)):
        yield f"{name}, a race", step | likely | {"target": Rows(target, **FILTERS, **given)}
    bonus = {"target": target[:, :G], "bonus_tokens": x.integers(0, x.V, B)}
    yield "a race, the engine's bonus", step | likely | bonus


def by_rule(x, step):
    """Yield calls with every rule: some by name, then all by codes, several rules in a batch if the method has them."""
    yield "a rule, one number", step | {"rule": "lossy", "alpha": 0.3}
    yield "a rate of each position", step | {"rule": "synthetic", "alpha": (0.9,) * step["draft_tokens"].shape[1]}
    yield "a rule, two numbers", step | {"rule": "thresholds", "alpha": (0.5, 0.4)}
    yield "a rule by default", step | {"rule": "typical"}
    for method, known in CHAIN_METHODS.items():
        codes = [RULES[name].code for name in known.rules]
        for first in range(0, len(codes), B):
            some = (codes[first:] + codes * B)[:B]
            both = torch.tensor(
                [[1.0 if code == RULES["relaxed"].code else 0.4, 0.5] for code in some],
                dtype=torch.float32,
                device="cpu",
            )
            alpha = x.on_device(both if first % (2 * B) else both[:, 0])
            yield f"rules from {first}, {method}", step | {"method": method, "rule": x.tensor(*some), "alpha": alpha}


def stored(x, step):
    """Yield calls whose rows are looked up by index in a store: row n is [n // K, n % K]."""
    far = x.rows(B, 2 * G)
    one, slots = far.flatten(0, 1), far.transpose(0, 1)  # slots: K = B, with other strides
    at = x.integers(0, 2 * G * B, B, G + 1).int()
    kept = {"target": Rows(one, row=at), "draft": Rows(slots, row=at[:, :G].long())}
    yield "rows by number", step | kept
    stats = with_stats(far).stats
    given = {
        "target": Rows(one, row=at, stats=stats.flatten(0, 1)),
        "draft": Rows(slots, row=at, stats=stats.transpose(0, 1)),
    }
    yield "rows by number, stats", step | given | {"method": "block", "rule": "chow", "alpha": 0.9}
    mixed = at[:, :G].where(x.on_device(torch.arange(G, device="cpu") % 2 == 0), -1)
    yield "one-hot drafts among others", step | {"draft": Rows(slots, row=mixed)}
    hostile = torch.tensor([-2, 2 * G * B, 1 << 40, -(1 << 63), -1, 0], dtype=torch.int64, device="cpu")
    nowhere = x.on_device(hostile.expand(B, G + 1))
    yield (
        "numbers of no row",
        step | {"target": Rows(one, row=nowhere.flip(1)), "draft": Rows(slots, row=nowhere[:, :G])},
    )
    lengths = torch.tensor((0, *LENGTHS), dtype=torch.int64, device="cpu").cumsum(0)
    D = int(lengths[-1])
    some = {
        "cu_draft": x.on_device(lengths),
        "max_draft": max(LENGTHS),
        "draft_tokens": step["draft_tokens"].flatten()[:D],
    }
    where = {"target": Rows(one, row=at.flatten()[: D + B]), "draft": Rows(slots, row=mixed.flatten()[:D])}
    yield "ragged, rows by slot", step | some | where


def ragged(x, target, draft, tokens):
    D = sum(LENGTHS)
    step = {
        "target": target[: D + B],
        "draft_tokens": tokens[:D],
        "draft": draft[:D],
        "cu_draft": x.on_device(torch.tensor((0, *LENGTHS), dtype=torch.int64, device="cpu").cumsum(0)),
        "max_draft": max(LENGTHS),
        **x.random(B),
    }
    yield "ragged", step
    yield "ragged stats", step | {"target": with_stats(target[: D + B]), "draft": with_stats(draft[:D])}
    yield "ragged blocks by a rule", step | {"draft": draft[: D + B], "method": "block", "rule": "chow", "alpha": 0.9}
    race = {"method": "race", "draft": None}
    yield "ragged race", step | race
    yield "ragged race by noise keys", step | race | {"offset": None} | x.keys(D + B)
    bonus = {"target": target[:D], "bonus_tokens": x.integers(0, x.V, B)}
    yield "ragged, the engine's bonus", step | bonus | {"draft": None}
    here = sum(LENGTHS[: B - 1])
    ends = {"target": here + B - 1, "draft_tokens": here, "draft": here, "cu_draft": B}
    stale = {name: x.stale(step[name], ends.get(name, B - 1)) for name in (*ends, "seed", "offset")}
    yield "ragged padded buffers", step | stale | {"num_requests": x.integers(0, B, 1)}
