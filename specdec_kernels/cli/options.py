# SPDX-License-Identifier: Apache-2.0
"""The options of `generate`."""

import argparse
from typing import Any

from specdec_kernels.cli import values
from specdec_kernels.registry import NO_PENALTIES, RULES

METHODS = {
    "chain": "one draft; with --block it is verified as a block, which accepts at least as many tokens",
    "kseq": "K independent drafts, tested together",
    "recursive": "K independent drafts, tested one after another",
    "recursive_without_replacement": "distinct children, tested one after another",
    "target_only": "distinct children; the target draws, and a draft is accepted if it is drawn",
    "greedy": "distinct children; follows the target's best token, for --temperature 0",
    "traversal": "distinct children, tested from the leaves up",
    "race": "one draft, or with --widths a tree; a seed gives one text, whatever is drafted, also with --plain",
}
COUNT = values.integer(1, "an integer >= 1")


def add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    texts: dict[str, Any] = {"action": "append", "type": values.text, "metavar": "TEXT"}
    prompt = "text to continue, or - for standard input; repeat it for a batch"
    option("--prompt", action="append", type=values.prompt, default=[], help=prompt, metavar="TEXT")
    file = 'a file with one prompt (its last newline is dropped), or .jsonl: in each line a string or {"prompt": ...}'
    option("--prompt-file", action="extend", type=values.prompt_file, dest="prompt", help=file, metavar="FILE")
    option("--chat", action="store_true", help="wrap the prompt in the model's chat template")
    option("--max-new-tokens", type=COUNT, default=128, metavar="N", help="the most tokens to generate for a prompt")
    option(
        "--stop", default=[], help="a string that ends the text, which may be a special token; may be repeated", **texts
    )
    _models(parser.add_argument_group("models"))
    _drafting(parser.add_argument_group("drafting"))
    _sampling(parser.add_argument_group("sampling"))


def _models(group):
    option = group.add_argument
    option("--target", type=values.text, default="smollm2", help='hub name, folder, .gguf file, or "smollm2"')
    drafts = 'as --target, a layer-draft folder, or "lookup" (the prompt itself)'
    option("--draft", type=values.text, default="lookup", help=drafts)
    matches = "allow a draft model with another tokenizer; tokens are matched by their text"
    option("--match-tokens", action="store_true", help=matches)
    dtypes = "auto", "bfloat16", "float32"
    option("--dtype", choices=dtypes, default="auto", help="auto: bfloat16 on a GPU and where the CPU has it")
    option("--device", type=values.device, default="cpu", help='"cpu", "cuda" or a GPU by its number, "cuda:1"')
    threads = "CPU threads; by default one per core, or one alone if that is faster (another program holds a core)"
    option("--threads", type=COUNT, help=threads, metavar="N")
    option("--graphs", action="store_true", help="run the models' passes as CUDA graphs; needs a GPU")


def _drafting(group):
    option = group.add_argument
    option("--plain", action="store_true", help="no speculation; with --rule a token-level cascade")
    option("--method", choices=METHODS, default="chain", help="how drafts are verified, see below", metavar="METHOD")
    beams = values.integer(0, "an integer >= 1, or 0 for off")
    option("--beams", type=beams, default=0, metavar="W", help="beam search for the W best texts; 0: off")
    option("--block", action="store_true", help="verify a chain as a block")
    gammas = 'draft tokens per step (tree: its depth); "auto" adapts to measured acceptance, 4 for trees'
    option("--gamma", type=values.gamma, default="auto", help=gammas)
    option("--drafts", type=COUNT, default=4, help="drafted chains in a tree", metavar="K")
    shapes = 'children per level of a tree, as 4,2,1; "auto" adapts to measured acceptance'
    option("--widths", type=values.widths, default="", help=shapes)
    option(
        "--lookup-first",
        action="store_true",
        help="look for a draft in the text first, and ask the draft model if there is none; in a tree, use both",
    )
    option(
        "--lookup-under",
        action="store_true",
        help="the draft model verifies tokens looked up in the text, which makes drafting cheaper",
    )
    option("--rule", type=values.rule, default="exact", help="which drafts are accepted, see below")
    option(
        "--alpha",
        type=values.alpha,
        default="",
        help="the rule's parameters: one number, or two with a comma between them",
    )


def _sampling(group):
    option = group.add_argument
    kind = values.sampling
    option("--temperature", type=kind("temperature"), default=0.0, help="0 is greedy", metavar="T")
    option("--top-k", type=kind("top_k"), default=0, help="0: off", metavar="K")
    option("--top-p", type=kind("top_p"), default=1.0, help="1: off", metavar="P")
    option("--min-p", type=kind("min_p"), default=0.0, help="0: off", metavar="P")
    option("--top-n-sigma", type=kind("top_n_sigma"), default=0.0, help="0: off", metavar="N")
    _views(option)
    option("--seed", type=values.seed, default=0, help="prompt i uses seed + i; the low 64 bits count")


def _views(option):
    divided = "logits of tokens in the prompt or the output are divided by it if > 0, else multiplied; 1: off"
    each = "subtracted from a token's logit for each time that it occurs in the output; 0: off"
    once = "subtracted once from the logit of every token that occurs in the output; 0: off"
    for (name, off), text in zip(NO_PENALTIES.items(), (divided, each, once)):
        flag = "--" + name.replace("_", "-")
        option(flag, type=values.sampling(name), default=off, help=text, metavar="X")
    bias = "a number that is added to the logits of a token; -inf forbids it; may be repeated"
    kind = {"action": "append", "type": values.logit_bias, "metavar": "ID=VALUE"}
    option("--logit-bias", default=[], help=bias, **kind)
    early = "no end token before this many tokens; a stop string may still end the text"
    option("--min-tokens", type=values.integer(0, "an integer >= 0"), default=0, help=early, metavar="N")
    bad = "a text that the output must not contain, with or without a space before it; may be repeated"
    option("--bad-word", default=[], help=bad, action="append", type=values.text, metavar="TEXT")
    grammar = "a file with a JSON schema (.json) or a regular expression, which the output must match"
    option("--grammar", type=values.grammar, help=grammar, metavar="FILE")


_EXAMPLES = """examples:
  python -m specdec_kernels generate --prompt "def fibonacci(n):"
  python -m specdec_kernels generate --prompt "Once" --draft demo/draft --temperature 0.7 --method kseq --gamma 4
  python -m specdec_kernels generate --prompt-file prompt.txt --draft demo/draft --rule diff --alpha 0.3 --block
"""


def guarantees() -> str:
    """Return the end of the help: each method, each rule with its ranges and guarantee, and three examples."""
    methods = "methods (under --rule exact each emits the target's own distribution, at temperature 0 its own text):"
    rules = (
        "rules (p: target, q: draft, pi: what is emitted; a rule that defers takes p, else q; all but exact change p):"
    )
    says = {name: _range(rule) + rule.says for name, rule in RULES.items()}
    return f"{methods}\n{_listed(METHODS)}\n\n{rules}\n{_listed(says)}\n\n{_EXAMPLES}"


def _listed(says: dict[str, str]) -> str:
    width = max(map(len, says))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in says.items())


def _range(rule) -> str:
    return "".join(f"{x.name} in {x.range} (default {x.default:g}); " for x in rule.parameters)
