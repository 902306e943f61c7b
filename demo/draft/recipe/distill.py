# SPDX-License-Identifier: Apache-2.0
"""Make the demo's draft model from its target: write text, store states, train. Each stage resumes and needs one core.

The last two commands measure the draft.

python -m demo.draft.recipe.distill corpus --shards 20   # the target writes text, 1 to 2 min per shard
python -m demo.draft.recipe.distill train                # store the target's states once, train a draft
python -m demo.draft.recipe.distill train --init demo/draft --out distill-work/next \\
    --alone 0 --decay 1 --peak 2.5e-3 --share 0.1        # train it further
python -m demo.draft.recipe.distill evaluate             # alpha on unseen prompts, without states, and the cost c
python -m demo.draft.recipe.distill acceptance           # accepted / tested in the decode loop, by position
"""

import json
from pathlib import Path

import torch
import typer

app = typer.Typer(add_completion=False, help=__doc__.splitlines()[0])
HERE = Path(__file__).parent
DRAFT = HERE.parent  # the demo's weights
WORK = typer.Option(Path("distill-work"), help="folder for stored states, shards and checkpoints")
THREADS = typer.Option(1, help="CPU threads")


@app.command()
def corpus(
    work: Path = WORK,
    shards: int = 20,
    seed: int = 1,
    part: int = typer.Option(0, help="of --parts processes that share the work, this one's number"),
    parts: int = 1,
    out: Path = None,
    threads: int = THREADS,
):
    """Let the target write text: shards of 128 sequences in WORK/grown. --out: the shipped corpus and the shards."""
    from demo.draft.recipe.corpus import grow
    from demo.draft.recipe.teacher import Corpus

    torch.set_num_threads(threads)
    grow(work / "grown", shards, seed, part, parts)
    if out:
        Corpus(HERE / "corpus.npz", *grown_shards(work, shards)).save(out)


def grown_shards(work, shards):
    """Return the first `shards` files of WORK/grown. All must exist: another process may still be writing some."""
    from demo.draft.recipe.corpus import shard_paths

    paths = shard_paths(work / "grown", shards)
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise typer.BadParameter(f"wanted {shards} shards in {work / 'grown'}, got all but {', '.join(missing)}")
    return paths


@app.command()
def train(
    corpus: Path = HERE / "corpus.npz",
    grown: int = typer.Option(0, help="shards of WORK/grown to read besides"),
    work: Path = WORK,
    out: Path = DRAFT,
    steps: int = 1250,
    seed: int = 0,
    init: Path = typer.Option(None, help="a draft folder, or the checkpoint of an earlier run, to begin with"),
    peak: float = typer.Option(1.2e-3, help="learning rate"),
    decay: float = typer.Option(0.4, help="share of the steps over which it falls; 0: never, for a run that goes on"),
    share: float = typer.Option(1.0, help="of that rate, for the layers: a draft that is trained already wants little"),
    alone: float = typer.Option(None, help="share of the steps on KL alone, the first; a trained draft wants 0"),
    threads: int = THREADS,
):
    """Store the target's states once (1.2 GB and half an hour per 1M tokens), then train a draft. Resumes."""
    from demo.draft.recipe.corpus import states_of
    from demo.draft.recipe.teacher import Corpus, load_target, store_states
    from demo.draft.recipe.train import Data
    from demo.draft.recipe.train import train as run

    torch.set_num_threads(threads)
    first, more = Corpus(corpus), grown_shards(work, grown)
    text = Corpus(corpus, *more)
    shards = [(0, path) for path in store_states(first, work / f"states-{corpus.stem}-{len(first)}")]
    shards += [(begin, states_of(path)) for begin, path in zip(text.begins[1:], more)]
    target, _ = load_target(torch.float32)
    checkpoint = work / f"train-{seed}-{steps}.pt"
    run(Data(text, shards), target, out, steps, seed, init, checkpoint, peak, decay, share, alone)


@app.command()
def evaluate(draft: Path = DRAFT, dtype: str = "bfloat16", code: int = 164, tokens: int = 64, threads: int = THREADS):
    """Print alpha on HumanEval and chat prompts at temperature 1, 0.7 and 0, and the cost c, as JSON."""
    from demo.draft.recipe import evaluate as measure
    from demo.draft.recipe.teacher import load_target
    from specdec_kernels.decode.models.layer_draft import LayerDraft
    from specdec_kernels.decode.models.lean_llama import LeanLlama

    torch.set_num_threads(threads)
    target, tokenizer = load_target(getattr(torch, dtype))
    big, small = LeanLlama.from_hf(target), LeanLlama.from_layer_draft(LayerDraft.load(draft, target))
    cost = measure.measure_cost(big, small)
    alpha = measure.measure_alpha(big, small, tokenizer, code, tokens)
    print(json.dumps({"dtype": dtype, "threads": threads, "alpha": alpha, "cost": cost}, indent=2))


@app.command()
def acceptance(
    drafts: list[Path] = typer.Argument(None, help="draft folders, demo/draft by default"),
    dtype: str = "bfloat16",
    tokens: int = 64,
    gamma: int = 4,
    temperature: float = 1.0,
    seed: int = 0,
    threads: int = THREADS,
):
    """Print the share of tested drafts that the decode loop accepts on 55 HumanEval prompts, by position."""
    from demo.draft.recipe import acceptance as loop
    from demo.draft.recipe.teacher import load_target
    from specdec_kernels.decode.models.layer_draft import LayerDraft
    from specdec_kernels.decode.models.lean_llama import LeanLlama

    torch.set_num_threads(threads)
    target, tokenizer = load_target(getattr(torch, dtype))
    big, prompts, folders = LeanLlama.from_hf(target), loop.code_prompts(tokenizer), drafts or [DRAFT]
    small = [LeanLlama.from_layer_draft(LayerDraft.load(folder, target)) for folder in folders]
    print(loop.report(folders, [loop.measure(big, s, prompts, tokens, gamma, temperature, seed=seed) for s in small]))


if __name__ == "__main__":
    app()
