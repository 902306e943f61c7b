# SPDX-License-Identifier: Apache-2.0
"""A tree of several continuations of one prompt in one slot of a model's cache. Shared prefixes are stored once."""

from collections.abc import Iterable
from os.path import commonprefix

import torch

from ..transfers import upload
from .prompt import read_tokens
from .slot_cache import Branches
from .vocabulary import written_out

__all__ = ["Path", "TokenTree", "check_trees"]

Path = tuple[int, ...]  # the prompt's last token and the tokens of a continuation after it


def check_trees(model) -> None:
    """Raise ValueError if a model cannot decode trees (Model.refuses)."""
    if "trees" in getattr(model, "refuses", {}):
        raise ValueError(f"beam_search: the model cannot be used: in a tree, {model.refuses['trees']}")


class TokenTree:
    """The cached tokens after a prompt as a tree, indexed by their paths; node 0 is the root.

    Continuations branch and end without copying a slot. A node attends to its ancestors. Nodes that no continuation
    uses any more are dropped, and a prefix that all share becomes part of the prompt.

    Args:
        model: a Model (models/adapters.py).
        prompt: at least one token; all but the last are read here.
        room: the most nodes that may be cached at once.
    """

    def __init__(self, model, prompt: list[int], room: int):
        self.model, self.cache = model, model.new_cache(1, len(prompt) + room)
        self.start = len(prompt) - 1  # the root's position
        self.nodes: dict[Path, int] = {}  # in numerical order, so a parent comes before its children
        read_tokens(model, prompt[:-1], self.cache)

    def feed(self, paths: Iterable[Path]) -> dict[Path, torch.Tensor]:
        """Feed the last token of every path in one pass -> {path: logits [V] after it}.

        A path must come before its continuations.
        """
        first, new = len(self.nodes), list(dict.fromkeys(paths))
        self.nodes.update((path, first + i) for i, path in enumerate(new))
        device = self.model.device
        parents = upload([[self.nodes.get(path[:-1], -1) for path in self.nodes]], device, torch.int32)
        ids = upload([[path[-1] for path in new]], device).clamp(0, self.model.vocab_size - 1)
        logits = self.model.forward(ids, [self.start], self.cache, branches=Branches(parents, [first]))[0]
        return dict(zip(new, written_out(logits, getattr(self.model, "vocab_map", None))))

    def missing(self, paths: Iterable[Path]) -> list[Path]:
        """Return the prefixes of paths that are not cached, shorter ones first."""
        root = len(next(iter(self.nodes), ()))
        return [path[:n] for path in paths for n in range(root + 1, len(path) + 1) if path[:n] not in self.nodes]

    def keep(self, paths: list[Path]) -> None:
        """Drop all nodes that are on none of the paths. The last node of each path is dropped too: it is fed next."""
        if not self.nodes:
            return
        root = len(next(iter(self.nodes)))
        wanted = {path[:n] for path in paths for n in range(root, len(path))}
        kept = [path for path in self.nodes if path in wanted]
        nodes = upload([[self.nodes[path] for path in kept]], self.model.device)
        self.cache.compact([self.start], nodes)
        shared = len(commonprefix([path[:-1] for path in paths]))
        trunk = sum(len(path) <= shared for path in kept) - 1  # nodes above the new root: all paths share them
        self.start += trunk
        self.nodes = {path: i for i, path in enumerate(kept[trunk:])}
