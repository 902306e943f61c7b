# SPDX-License-Identifier: Apache-2.0
"""Watermark example: mark a text while it is decoded speculatively, and find the mark.

The target's tokens are drawn by a race (method "race"). The key of its noise is a hash of a secret and the four tokens
before each token. These are known before a row is verified: the key of row i uses the last four of the text and the i
drafts before the row. So the text, and with it the score of its mark, is that of plain decoding under the same secret,
whatever was drafted. The score needs the tokens and the secret, not the model. The request's seed is not used, so a
prompt has one marked text for each secret.

Where the same four tokens come again, the noise is the same. The tokens after them are marked, but not independent of
the earlier ones, so the detector counts each group of four once. The hash here is not cryptographic; a product needs a
keyed one that is.

python examples/watermark.py
python examples/watermark.py --temperature 0.7 --tokens 200 --gamma 2
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

import specdec_kernels as sk
from specdec_kernels import decode
from specdec_kernels.decode.drafters.draft_runner import DraftRunner
from specdec_kernels.registry import DOMAIN_NOISE

DRAFT = Path(__file__).parents[1] / "demo" / "draft"
WINDOW = 4  # number of tokens that determine the noise key of the next one


def keys(secret: int, windows: torch.Tensor) -> torch.Tensor:
    """Return the noise keys [...] int64 of the tokens that follow windows [..., WINDOW] of token ids."""
    key = torch.full(windows.shape[:-1], secret, dtype=torch.int64)
    for token in windows.unbind(-1):
        key = _mixed(key ^ token)
    return key


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """Return int64 numbers whose bits all depend on all bits of x (the last steps of splitmix64)."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ (x >> shift & (1 << 64 - shift) - 1)) * factor
    return x ^ (x >> 31 & (1 << 33) - 1)


@dataclass(frozen=True, eq=False)
class MarkedDraft(decode.Draft):
    """A chain for each request, with the noise key of each row of the target."""

    keys: torch.Tensor | None = None  # [n, G + 1] int64

    def verify(self, logits, batch, method, row):
        target, _ = self.sides(logits, batch, row)
        return sk.verify_chain(target, self.tokens, method="race", seed=self.keys)


class Marked(decode.Drafter):
    """A drafter of chains that are verified with the mark's noise, by which its model drafts too.

    model: a Model (decode.adapt); None: plain decoding, with the mark.
    """

    rules, verifies, draws_viewed = ("exact",), ("race",), True

    def __init__(self, secret: int, model=None, gamma: int = 4):
        self.secret, self.gamma = secret, 0 if model is None else gamma
        self.parts = () if model is None else (DraftRunner(model, reach=gamma + 1),)
        self.num_lookahead = 2 * self.gamma + 1

    def propose(self, batch):
        text = torch.tensor([([-1] * WINDOW + s.tokens)[-WINDOW:] for s in batch])
        drawn: list[torch.Tensor] = []
        room = torch.tensor([s.remaining - 1 for s in batch])
        for i in range(min(self.gamma, int(room.max()))):
            [model] = self.parts
            logits = model.extend(text[:, -1], i - 1) if i else model.catch_up(batch)
            seen = model.rows(logits, **batch.sampling, **batch.views.after_chain(drawn))
            tokens = sk.sample(seen, race=True, seed=keys(self.secret, text[:, -WINDOW:])).tokens
            drawn.append(tokens.masked_fill(room[:, None] <= i, -1))
            text = torch.cat((text, drawn[-1]), 1)
        return MarkedDraft(text[:, WINDOW:], keys=keys(self.secret, text.unfold(1, WINDOW, 1)))


def scores(secret: int, tokens: list[int]) -> torch.Tensor:
    """Return a score for each distinct window of WINDOW tokens, float64. Without the mark they average 1.

    The score is -ln(1 - u), where u is the race's random number for the token after the window. The winner's u tends to
    be near 1.
    """
    windows: dict[tuple, int] = {}
    for i in range(WINDOW, len(tokens)):
        windows.setdefault(tuple(tokens[i - WINDOW : i]), tokens[i])
    key = keys(secret, torch.tensor([*windows]).view(-1, WINDOW))
    start = torch.zeros(1, dtype=torch.int64)
    u = torch.tensor(
        [
            sk.uniforms(one, start, token + 1, DOMAIN_NOISE)[0, token].item()
            for one, token in zip(key.split(1), windows.values())
        ],
        dtype=torch.float64,
    )
    return -torch.log1p(-((u * 2.0**52).floor() + 0.5) * 2.0**-52)  # the race's own rounding: never 0 or 1


def chance(found: torch.Tensor) -> float:
    """Return the p-value: the chance that as many scores of unmarked text (exponential) sum to this much or more."""
    return torch.special.gammaincc(torch.tensor(len(found), dtype=torch.float64), found.sum()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--secret", type=int, default=2026)
    parser.add_argument("--prompt", default="The lighthouse keeper wrote in his diary:")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=1.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pair = decode.load_pair("smollm2", str(DRAFT), torch.float32)
    request = decode.Request(pair.tokenizer.encode(args.prompt), args.tokens, args.temperature, eos=pair.eos)
    texts = {}
    for name, drafter in {
        "marked, drafts of a model": Marked(args.secret, pair.draft, args.gamma),
        "marked, plain decoding": Marked(args.secret),
        "without the mark": None,
    }.items():
        output = decode.generate(pair.target, [request], drafter, verify="race").check()
        texts[name] = tokens = output.results[0].tokens
        found = scores(args.secret, tokens)
        calls = f"{output.stats.tokens_per_call:.2f} tokens per target call"
        print(f"{name}: score {found.mean():.3f} (1 without a mark), chance {chance(found):.0e}, {calls}")
    drafted, plain, _ = texts.values()
    print(f"with drafts and plainly: {'the same text' if drafted == plain else 'NOT the same text'}")
    print(args.prompt + pair.tokenizer.decode(drafted))


if __name__ == "__main__":
    main()
