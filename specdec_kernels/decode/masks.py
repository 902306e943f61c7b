# SPDX-License-Identifier: Apache-2.0
"""Masks of the ids that requests allow (Request.allowed), for the rows of a step."""

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

import specdec_kernels as sk

from ..ops import _check
from .transfers import send, upload

__all__ = ["Masks"]

_FREE, _OVER = -1, -2  # in place of a mask's index: all ids are allowed; the row cannot be reached

Path = tuple[int, ...]  # the drafts between a request's last token and a row


class Masks:
    """The masks of a batch's requests. In a step this object calls a request's `allowed` at most once per path.

    It is never called with a text that it forbids, nor with one that goes on after an end token. The rows after such
    texts have no mask, since no token of theirs counts: the draft before them is rejected, or it ends the request.
    """

    def __init__(self, batch):
        self._batch = batch
        self._asked: list[int] = []  # the sequences' lengths when _numbers was started
        self._numbers: dict[tuple[int, Path], int] = {}
        self._words: list[torch.Tensor] = []

    def after(self, paths: list[list[Path]]) -> sk.Allowed | None:
        """Return the masks of P rows of each request, after these paths [n][P]; None if all rows allow all ids.

        Their `row` [n, P] is the index of each row's mask, -1 for none.
        """
        lengths = [len(s.tokens) for s in self._batch]
        if lengths != self._asked:
            self._asked, self._numbers, self._words = lengths, {}, []
        numbers = [[self._number(b, path) for path in own] for b, own in enumerate(paths)]
        used = sorted({i for own in numbers for i in own if i >= 0})
        if not used:
            return None
        row = {i: place for place, i in enumerate(used)}
        bits = pad_sequence([self._words[i] for i in used], batch_first=True)
        device = self._batch.device
        return sk.Allowed(send(bits, device), upload([[row.get(i, -1) for i in own] for own in numbers], device))

    def _number(self, b: int, path: Path) -> int:
        """Return the index of the mask after a path of request b, or _FREE or _OVER."""
        if (b, path) not in self._numbers:
            self._numbers[b, path] = self._ask(b, path)
        return self._numbers[b, path]

    def _ask(self, b: int, path: Path) -> int:
        s = self._batch[b]
        if s.request.allowed is None:
            return _FREE
        if path:
            before, token = self._number(b, path[:-1]), path[-1]
            if before == _OVER or token < 0 or token in s.request.eos:
                return _OVER
            if before != _FREE and not _allows(self._words[before], token):
                return _OVER
        words = s.request.allowed(s.tokens[len(s.request.prompt) :] + list(path))
        if words is None:
            return _FREE
        self._words.append(_checked(words, s.index))
        return len(self._words) - 1


def _checked(words: Any, index: int) -> torch.Tensor:
    """Return a checked copy of the words of a request's function, which may reuse their memory."""
    found = torch.as_tensor(words) if isinstance(words, torch.Tensor) or hasattr(words, "__array__") else None
    if found is None or found.dtype != torch.int32 or found.dim() != 1 or not len(found):
        came = _check.shown(words) if found is None else f"{found.dtype} {list(found.shape)}"
        raise TypeError(f"Request: allowed must return int32 words [W] or None, that of request {index} gave {came}")
    return found.cpu().clone()


def _allows(words: torch.Tensor, token: int) -> bool:
    return token // 32 < len(words) and bool(int(words[token // 32]) >> token % 32 & 1)
