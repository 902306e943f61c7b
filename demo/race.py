# SPDX-License-Identifier: Apache-2.0
"""Compare the race with other verification methods on the demo's models: acceptance, and texts with plain decoding's.

    python -m demo.race                                        # 40 prompts of 64 tokens
    python -m demo.race --prompts 164 --tokens 160 --texts 1   # only the texts at temperature 1, over 20,000 tokens

Models: SmolLM2-135M-Instruct and the demo's draft in float32. Prompts: HumanEval. Drafts: chains of --gamma tokens.
"sampled" is what many engines do: the target's token is drawn, and a draft is accepted if it is that token. Here its
texts are the race's texts, but its drafts are drawn with other random numbers. Intervals are 95% confidence intervals,
from resampling prompts.

The chance that a row accepts one draft is computed exactly: sum min(p, q) for "token", theory.race_acceptance for the
race, sum p q for "sampled". It is averaged over the rows of the race's texts. A text that differs from plain decoding's
is shown with the two best keys of the race at the first difference.
"""

import argparse

import numpy as np
import torch

from demo.parts import HERE
from demo.prompts import humaneval
from demo.reader import Reader
from demo.trees import FIELDS, interval, mean_interval
from specdec_kernels import decode, theory
from specdec_kernels.decode.sequence import Batch
from specdec_kernels.reference.race import keys_of

METHODS = "token", "block", "race", "sampled"


class Apart(decode.ModelDrafter):
    """A ModelDrafter that draws its drafts with its own random numbers, even if the target's come from a race."""

    def propose(self, batch):
        own = Batch(batch, batch.device, batch.first)
        own.readback = batch.readback
        return super().propose(own)


def decoded(pair, requests, batch, method, gamma) -> decode.Output:
    """Decode with one of METHODS; gamma 0: plainly, by the race."""
    drafter = None if gamma == 0 else (Apart if method == "sampled" else decode.ModelDrafter)(pair.draft, gamma)
    verify = "race" if method == "sampled" else method
    output = decode.generate(pair.target, requests, drafter, verify=verify, max_batch=batch).check()
    assert output.stats.status == 0, output.stats.status
    return output


@torch.inference_mode()
def row_chances(pair, request, tokens) -> list[float]:
    """Return the chance that a draft is accepted, averaged over the rows of a text: by token, race and sampled."""
    whole, n = request.prompt + tokens[:-1], len(request.prompt)
    z, y = (x[n - 1 :].double() / request.temperature for x in Reader(pair, len(whole))(whole, 0))
    p, q = z.softmax(-1), y.softmax(-1)
    rates = theory.acceptance_rate(p, q), theory.race_acceptance(p, q), (p * q).sum(-1)
    return [rate.mean().item() for rate in rates]


@torch.inference_mode()
def apart(pair, request, found, plain) -> str | None:
    """Return where a text first differs from plain decoding's, with the race's two best keys there; None: equal."""
    at = next((i for i, (a, b) in enumerate(zip(found, plain)) if a != b), None)
    if at is None:
        return None
    ids = torch.tensor([request.prompt + plain[:at]])
    row = pair.target.forward(ids, [0], pair.target.new_cache(1, ids.shape[1]), keep=[ids.shape[1] - 1])[0]
    keys = keys_of(None, row.double().numpy() / request.temperature, request.seed, ids.shape[1])
    first, second = np.sort(keys)[:-3:-1]
    return f"from token {at} on: keys {first:.7f} and {second:.7f}, {first - second:.1e} apart"


def compare(pair, requests, batch, gamma, found) -> None:
    """Print which texts of the race differ from those of plain decoding."""
    plain = [r.tokens for r in decoded(pair, requests, batch, "race", 0).results]
    for name, output in found.items():
        places = [apart(pair, *each) for each in zip(requests, (r.tokens for r in output.results), plain)]
        print(f"  {name}: {sum(map(bool, places))} of {len(plain)} texts differ, {sum(map(len, plain))} tokens")
        print("".join(f"    request {i} {place}\n" for i, place in enumerate(places) if place), end="", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("prompts", 40), ("tokens", 64), ("gamma", 4), ("batch", 8), ("threads", 1), ("texts", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pair = decode.load_pair("smollm2", str(HERE / "draft"), torch.float32)
    prompts = humaneval(args.prompts, pair.tokenizer)
    for temperature in (1.0,) if args.texts else (1.0, 0.7):
        requests = [decode.Request(p, args.tokens, temperature, seed=i, eos=pair.eos) for i, p in enumerate(prompts)]
        print(f"temperature {temperature}, {args.gamma} drafts, {len(prompts)} prompts of {args.tokens} tokens")
        found = {}
        for method in ("race",) if args.texts else METHODS:
            found[method] = decoded(pair, requests, args.batch, method, args.gamma)
            counts = [[int(getattr(r.stats, name)) for name in FIELDS] for r in found[method].results]
            rates = interval(counts, "new_tokens", "rows"), interval(counts, "accepted", "tested")
            each = ("{:.3f} ({:.3f}-{:.3f})".format(*rate) for rate in rates)
            print("  {:8} {} tokens per target call, {} of tested drafts accepted".format(method, *each), flush=True)
        if not args.texts:
            texts = (r.tokens for r in found["race"].results)
            chances = zip(*(row_chances(pair, *each) for each in zip(requests, texts)))
            for method, values in zip(("token", "race", "sampled"), chances):
                print(
                    "  {:8} {:.3f} ({:.3f}-{:.3f}) chance of a row".format(method, *mean_interval(values)), flush=True
                )
        compare(pair, requests, args.batch, args.gamma, {name: found[name] for name in found if name in METHODS[2:]})


if __name__ == "__main__":
    main()
