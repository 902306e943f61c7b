# SPDX-License-Identifier: Apache-2.0
"""Tests of what a model supports: passes over a few random ids, run when the model is wrapped.

Models with the same forward arguments treat them differently: some ignore positions, some align the last query with
the last key, some depend on the longest row of a pass. So passes of the kinds that the loop makes are compared with
plain passes of the model, which use neither a cache nor a mask.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch

from ..transfers import CPU, upload
from .closeness import Closeness
from .evaluating import evaluating
from .slot_cache import Branches, SlotCache

__all__ = ["UNKNOWN", "Findings", "is_one_model", "probe"]

UNKNOWN = 2**31  # max_positions of a model whose config has no limit
_LENGTH = 12  # tokens of a row
_FAR = 1200  # keys in the pass that tests the mask: longer than attention windows that a config may not name
_FOUND: WeakKeyDictionary = WeakKeyDictionary()  # model -> (state that the findings depend on, findings)


@dataclass(frozen=True)
class Findings:
    """The limits of a model that can be served: unsupported features and the number of usable positions."""

    positions: int
    refuses: Mapping[str, str] = field(default_factory=dict)  # "batches", "trees": what was found
    note: str = ""  # why `positions` is less than in the model's config


def probe(served) -> Findings:
    """Test a model (HFModel) -> its limits. The findings for an unchanged model are cached.

    Raises:
        ValueError: it cannot be served at all.
    """
    model = served.model
    state = _state(model)
    known, findings = _FOUND.get(model, (None, None))
    if known != state or findings is None:
        findings = _Probe(served).run()
        _FOUND[model] = state, findings
    return findings


def _state(model):
    """Return what must be unchanged for the findings to be used again. Weights are not part of it."""
    modules = tuple(
        (name, type(m), len(m._forward_hooks), len(m._forward_pre_hooks), "forward" in vars(m))
        for name, m in model.named_modules()
    )
    config = model.config.get_text_config()
    return modules, model.dtype, model.device, getattr(config, "_attn_implementation", None), config.to_json_string()


def is_one_model(model, served) -> bool:
    """Return whether `served` (LeanLlama) gives the same logits as `model`, which may have been patched elsewhere."""
    rows = _random_ids(model, served.vocab_size)
    plain, close = _plain_passes(model, rows, served.dtype)
    return close.agrees(served.forward(rows[:1], [0], served.new_cache(1, _LENGTH)), plain[:1])


class _Probe:
    """The test of one model: three rows of ids, their plain logits, and a cache for passes like the loop's."""

    def __init__(self, served):
        self.served, self.name = served, type(served.model).__name__
        self._refused = f"HFModel: {self.name} cannot be decoded by this loop:"
        if served.max_positions < _LENGTH:
            raise ValueError(f"HFModel: {self.name} must have {_LENGTH} positions, got {served.max_positions}")
        self.ids = _random_ids(served.model, served.vocab_size)
        self.cache, self.note = SlotCache(len(self.ids), _LENGTH), ""

    def run(self) -> Findings:
        self._require("a plain pass", self._plain)
        if not self.close.rows_are_independent:
            by = f"{self.close.noise:.1e} of their spread"
            raise ValueError(f"{self._refused} a row's logits depend on what else is in a plain pass, by {by}")
        self._require("a pass under a mask, with a cache", self._first_pass)
        self._require("passes after cached tokens and over rejected ones", self._rollback)
        refuses = {
            "batches": self._find("positions are ignored in rows that stand at different ones", self._uneven),
            "trees": self._find("positions are ignored in trees", self._tree),
        }
        hidden = self._find("a token sees by how many keys there are, not by the mask", self._hidden_keys)
        refuses = {what: found or hidden for what, found in refuses.items() if found or hidden}
        return Findings(self._positions(), refuses, self.note)

    def _require(self, what: str, check: Callable[[], bool]) -> None:
        """Raise ValueError if the check fails. For checks without which nothing can be decoded."""
        found = self._find("its logits are not those of plain passes", check)
        if found:
            raise ValueError(f"{self._refused} in {what}, {found}")

    def _find(self, failure: str, check: Callable[[], bool]) -> str:
        """Return what is wrong; "" if the check passes."""
        try:
            return "" if check() else failure
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # any exception of the model's forward is a finding
            first = next(iter(str(error).strip().splitlines()), "")
            return f"it raises {type(error).__name__}: {first}"

    def _agrees(self, logits, row: int, start: int) -> bool:
        """Return whether logits [T, V] agree with the plain ones of ids[row, start:]."""
        return self.close.agrees(logits[None], self.plain[row : row + 1, start : start + len(logits)])

    def _pass(self, ids, start, slot=0, branches=None):
        return self.served.forward(ids, start, self.cache, slot, branches=branches)

    def _plain(self) -> bool:
        self.plain, self.close = _plain_passes(self.served.model, self.ids, self.served.dtype)
        return True

    def _first_pass(self) -> bool:
        return self._agrees(self._pass(self.ids[:1, :6], [0])[0], 0, 0)

    def _rollback(self) -> bool:
        self._pass(self.ids[1:2, :4], [6])  # another row's tokens, all of which are rejected
        two = self._pass(self.ids[:1, 6:8], [6])[0]
        one = self._pass(self.ids[:1, 8:9], [8])[0]
        return self._agrees(two, 0, 6) and self._agrees(one, 0, 8)

    def _hidden_keys(self) -> bool:
        """Check a short row in a pass with many masked keys after it, as in a batch with a long row."""
        cache = SlotCache(1, min(_FAR, self.served.max_positions))
        positions = cache.begin([0], 5, 0, self.served.device)
        cache.length, cache.sees_all = cache.capacity, False
        cache.seen = torch.arange(cache.length, device=positions.device) <= positions[..., None]
        return self._agrees(self.served.run(self.ids[:1, :5], positions, cache)[0], 0, 0)

    def _uneven(self) -> bool:
        self._pass(self.ids[1:, :3], [0, 0], slot=1)
        start = [9, 3, 2]
        logits = self._pass(_spans(self.ids, start, 3), start)
        return all(self._agrees(logits[i], i, at) for i, at in enumerate(start))

    def _tree(self) -> bool:
        """Check a tree whose wrong branch comes before the right one, in two passes."""
        right, wrong = self.ids[:1, 5:9], self.ids[1:2, 5:7]  # of nodes 0, 2, 4, 5, and of nodes 1, 3
        nodes = torch.stack((right[:, 0], wrong[:, 0], right[:, 1], wrong[:, 1], right[:, 2], right[:, 3]), 1)
        parents = torch.tensor([[-1, 0, 0, 1, 2, 4]], dtype=torch.int32, device=nodes.device)
        parts = [self._pass(nodes[:, a : a + 3], [5], branches=Branches(parents, [a])) for a in (0, 3)]
        return self._agrees(parts[0][0, [0, 2]], 0, 5) and self._agrees(parts[1][0, 1:], 0, 7)

    def _positions(self) -> int:
        """Return the number of positions in which a token's logits do not depend on the positions of later tokens."""
        most = self.served.max_positions
        if most == UNKNOWN:
            return most
        known = sorted({x for x in _trained_lengths(self.served.model.config) if _LENGTH <= x < most})
        step, found = max(1, (known or [most])[0] // _LENGTH), ""
        for limit in (most, *reversed(known)):
            found = self._find("the position of one token changes another's", lambda: self._far_token(limit, step))
            if not found:
                if limit < most:
                    self.note = f" (of {most}: a token past them changes how a pass places all others)"
                return limit
        raise ValueError(f"{self._refused} {found}")

    def _far_token(self, limit: int, step: int) -> bool:
        """Check tokens `step` positions apart: their logits must not change when the last one moves to limit - 1."""
        near = step * torch.arange(_LENGTH, device=self.served.device)[None]
        rows = []
        for last in (near[0, -1], limit - 1):
            positions, cache = near.clone(), SlotCache(1, _LENGTH)
            positions[0, -1] = last
            cache.begin([0], _LENGTH, 0, near.device)
            rows.append(self.served.run(self.ids[:1], positions, cache)[:, :-1])
        return self.close.agrees(rows[1], rows[0])


def _trained_lengths(config) -> Iterator[int]:
    """Yield every original_max_position_embeddings of a config and the dicts nested in it."""
    name, todo = "original_max_position_embeddings", [config.to_dict()]
    while todo:
        values = todo.pop()
        todo += [value for value in values.values() if isinstance(value, dict)]
        if isinstance(values.get(name), int):
            yield values[name]


def _random_ids(model, vocab_size: int) -> torch.Tensor:
    """Return [3, 12] random ids of ordinary text, without the special ids that the config names."""
    config = {**model.config.to_dict(), **model.config.get_text_config().to_dict()}
    special = {x for name, x in config.items() if name.endswith(("_token_id", "_token_index")) and isinstance(x, int)}
    text = [i for i in range(min(vocab_size, 50_000)) if i not in special] or [0]
    generator = torch.Generator(device="cpu").manual_seed(0)
    drawn = torch.randint(len(text), (3, _LENGTH), generator=generator, device="cpu")
    return upload(text, CPU)[drawn].to(model.device)


def _spans(ids, start: list[int], width: int) -> torch.Tensor:
    return torch.stack([row[at : at + width] for row, at in zip(ids, start)])


@torch.inference_mode()
def _plain_passes(model, ids, dtype) -> tuple[torch.Tensor, Closeness]:
    """Return the logits of ids [3, T] in one plain pass, and a Closeness made from plain passes of other shapes.

    The others are two shorter passes, and one with a mask that hides the ends of two rows.
    """
    there = torch.ones_like(ids)
    there[1:, 9:] = 0

    def logits(ids, **options):
        return model(input_ids=ids, use_cache=False, **options).logits

    with evaluating(model):
        plain, padded = logits(ids), logits(ids, attention_mask=there)
        shorter = [logits(ids[:1, :length]) for length in (1, 5)]
    pairs = [(x, plain[:1, : x.shape[1]]) for x in shorter]
    return plain, Closeness([*pairs, (padded[:1], plain[:1]), (padded[1:, :9], plain[1:, :9])], dtype)
