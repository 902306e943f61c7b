# SPDX-License-Identifier: Apache-2.0
import torch

from specdec_kernels.example_calls.inputs import FILTERS
from specdec_kernels.example_calls.verify_chain import with_stats
from specdec_kernels.registry import BY_LAW, RULES, TREE_METHODS
from specdec_kernels.rows import Rows

B, N = 2, 7


def calls(x):
    small, (target, draft) = x.tree(B, 3, 1), x.node_rows(B, N)
    few = {"tree": small, "target": target[:, :4], "draft": draft[:, :4]}
    yield "uniforms of drafts", few | {"method": "kseq", "uniforms": x.uniforms(B, 4)}
    step = {"tree": x.tree(B, 3, 2), "target": target, "draft": draft, **x.random(B)}
    for method in TREE_METHODS:
        yield from by_method(x, method, step)
    keys = {"target": with_stats(target), "offset": None} | x.keys(B, N)
    yield "race, noise keys", step | {"tree": step["tree"][:2], "method": "race"} | keys
    for method in BY_LAW:
        codes = x.tensor(*(RULES[name].code for name in ("opt_log", "token_v3")))
        yield f"{method} by rules", step | {"method": method, "rule": codes, "alpha": x.tensor(0.4, 0.5)}
        yield f"{method} by lossy", step | {"method": method, "rule": "lossy", "alpha": 0.3}
    of_target = {name: given for name, given in step.items() if name != "draft"} | {"tree": step["tree"][:2]}
    thresholds = {"method": "target_only", "rule": "thresholds", "alpha": (0.5, 0.4)}
    yield "target_only by thresholds", of_target | thresholds
    for method in ("traversal", "kseq"):
        tree = tuple(x.stale(part, 1) for part in step["tree"])
        stale = {name: x.stale(given, 1) for name, given in step.items() if name != "tree"}
        yield f"{method}, padded buffers", stale | {"tree": tree, "method": method, "num_requests": x.integers(0, 2, 1)}


def by_method(x, method, step):
    parents, tokens, *_ = step["tree"]
    target, draft = step["target"], step["draft"]
    nodes = step | {"tree": (parents, tokens), "method": method}
    yield f"{method}, drafts", step | {"method": method}
    yield f"{method}, nodes", nodes | {"max_depth": 1}
    yield f"{method}, filters", step | {"method": method, "target": Rows(target, **FILTERS)}
    yield (
        f"{method}, filters per request",
        nodes | {"target": Rows(target, **x.filters(B)), "draft": Rows(draft, **x.filters(B))},
    )
    turned = x.on_device(torch.arange(N, device="cpu").flip(0).expand(B, N).contiguous())
    yield f"{method}, rows by index", nodes | {"target": Rows(target, row=turned), "draft": Rows(draft, row=turned)}
    yield f"{method}, stats", nodes | {"target": with_stats(target), "draft": with_stats(draft)}
    yield f"{method}, a chain by links", nodes | chain(x, tokens)
    probs = {"target": Rows(x.probs(B, N), kind="probs"), "draft": Rows(x.probs(B, N), kind="probs")}
    yield f"{method}, probabilities", nodes | probs
    for name, given in x.views(B, (B, N)):
        yield (f"{method}, {name}", nodes | {"target": Rows(target, **given), "draft": Rows(draft, **given)})
    for name, given in x.listed(B, N):
        yield f"{method}, {name} drafts", nodes | {"draft": Rows(**given, temperature=0.7)}
    yield f"{method}, one tree for all", nodes | {"tree": (parents[0], tokens[0])}
    if method != "kseq":
        yield f"{method}, one-hot drafts", {name: given for name, given in nodes.items() if name != "draft"}
    if method == "greedy":
        return
    yield f"{method}, greedy requests", nodes | {"target": Rows(target, temperature=x.tensor(0.0, 1.0))}


def chain(x, tokens):
    """Return a tree and links in which each node is the only child of the one before."""
    node = torch.arange(N, device="cpu").expand(B, N)
    first = x.on_device((node + 1).where(node < N - 1, -1))
    return {"tree": (x.on_device(node - 1), tokens), "links": (first, torch.full_like(first, -1))}
