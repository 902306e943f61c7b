# SPDX-License-Identifier: Apache-2.0
"""What `generate` can be told."""

import argparse
from typing import Any

from specdec_kernels.cli import values
from specdec_kernels.registry import RULES, TREE_METHODS

METHODS = "chain", *TREE_METHODS
COUNT = values.integer(1, "an integer >= 1")


def add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    texts: dict[str, Any] = {"action": "append", "type": values.text, "metavar": "TEXT"}
    option("--prompt", required=True, help="text to continue; repeat for a batch", **texts)
    option("--chat", action="store_true", help="wrap the prompt in the model's chat template")
    option("--max-new-tokens", type=COUNT, default=128, metavar="N", help="after which a text ends")
    option("--stop", default=[], help="a string that ends the text; special tokens count; may be repeated", **texts)
    _models(parser.add_argument_group("models"))
    _drafting(parser.add_argument_group("drafting"))
    _sampling(parser.add_argument_group("sampling"))


def _models(group):
    option = group.add_argument
    option("--target", default="smollm2", help='hub name, folder, .gguf file, or "smollm2"')
    option("--draft", default="lookup", help='as --target, a layer-draft folder, or "lookup" (the prompt itself)')
    dtypes = "auto", "bfloat16", "float32"
    option("--dtype", choices=dtypes, default="auto", help="auto: bfloat16 on a GPU and where the CPU has it")
    option("--device", type=values.device, default="cpu", help='"cpu", "cuda" or a GPU by its number, "cuda:1"')
    option("--graphs", action="store_true", help="on a GPU: passes of the models in CUDA graphs")


def _drafting(group):
    option = group.add_argument
    option("--plain", action="store_true", help="no speculation; with --rule a token-level cascade")
    methods = f"how drafts are verified: one chain, or a tree by {', '.join(TREE_METHODS)}"
    option("--method", choices=METHODS, default="chain", help=methods, metavar="METHOD")
    beams = values.integer(0, "an integer >= 1, or 0 for off")
    option("--beams", type=beams, default=0, metavar="W", help="beam search: the W best texts, in place of one; 0: off")
    option("--block", action="store_true", help="verify a chain as a block")
    gammas = 'tokens drafted at a time, a tree\'s depth; "auto": what pays, of a tree 4'
    option("--gamma", type=values.gamma, default="auto", help=gammas)
    option("--drafts", type=COUNT, default=4, help="of a tree: its chains", metavar="K")
    shapes = 'of a tree: children per level, as 4,2,1, or "auto": what pays'
    option("--widths", type=values.widths, default="", help=shapes)
    option("--lookup-first", action="store_true", help="look in the text first; in a tree: beside the model's drafts")
    option("--lookup-under", action="store_true", help="the draft's own tokens are looked up, and verified by it")
    rules = "how drafts are accepted; all but exact change the text, as listed below"
    option("--rule", type=values.rule, default="exact", help=rules)
    option("--alpha", type=values.alpha, default="", help="of the rule: a number, or two with a comma between them")


def _sampling(group):
    option = group.add_argument
    kind = values.sampling
    option("--temperature", type=kind("temperature"), default=0.0, help="0 is greedy", metavar="T")
    option("--top-k", type=kind("top_k"), default=0, help="0: off", metavar="K")
    option("--top-p", type=kind("top_p"), default=1.0, help="1: off", metavar="P")
    option("--min-p", type=kind("min_p"), default=0.0, help="0: off", metavar="P")
    option("--seed", type=values.seed, default=0, help="request i uses seed + i, of which the low 64 bits count")


_EXAMPLES = """examples:
  python -m specdec_kernels generate --prompt "def fibonacci(n):"
  python -m specdec_kernels generate --prompt "Once" --draft DRAFT --temperature 0.7 --method kseq --gamma 4
  python -m specdec_kernels generate --prompt "def f" --draft DRAFT --rule diff --alpha 0.3 --block
"""


def guarantees() -> str:
    """Each rule with its guarantee, and three examples."""
    width = max(map(len, RULES))
    rules = (f"  {name:<{width}}  {_range(rule)}{rule.says}" for name, rule in RULES.items())
    return (
        "rules (p: target, q: draft, pi: what is emitted; a rule that defers takes p, else q):\n"
        + "\n".join(rules)
        + "\n\n"
        + _EXAMPLES
    )


def _range(rule) -> str:
    return "".join(f"{parameter.name} in {parameter.range}; " for parameter in rule.parameters)
