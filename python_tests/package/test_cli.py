# SPDX-License-Identifier: Apache-2.0
"""The command line with a tiny model in a folder: its output and its errors."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support import tiny
from support.tiny import WORDS, folder

from specdec_kernels import decode
from specdec_kernels.cli import main, options
from specdec_kernels.registry import TREE_METHODS

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return folder(root / "target", 0), folder(root / "draft", 1)


class Ran(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str = ""

    @property
    def output(self):
        return self.stdout + self.stderr


@pytest.fixture
def run(capsys):
    def go(*arguments):
        status = main([str(a) for a in arguments])
        printed = capsys.readouterr()
        return Ran(status, printed.out, printed.err)

    return go


@pytest.fixture
def generate(run):
    def go(pair, *arguments):
        target, draft = pair
        common = ["--target", target, "--prompt", "def f(x): def f", "--max-new-tokens", 24, "--dtype", "float32"]
        alone = "--draft" in arguments or "--plain" in arguments and "--rule" not in arguments
        return run("generate", *common, *arguments, *(() if alone else ("--draft", draft)))

    return go


def test_info(run):
    from specdec_kernels import __version__

    result = run("info")
    assert result.exit_code == 0 and __version__ in result.output and "cpu" in result.output


def test_without_a_command_it_says_what_there_is(run):
    result = run()
    assert result.exit_code == 2 and all(name in result.output for name in ("info", "selfcheck", "generate", "cache"))


# Packages of the extras; the plain install has only torch and numpy.
EXTRAS = (
    "typer",
    "rich",
    "transformers",
    "accelerate",
    "safetensors",
    "gguf",
    "platformdirs",
    "triton",
    "scipy",
    "matplotlib",
)


@pytest.fixture
def plain_install(tmp_path):
    """Return a function that runs the command line with the extras' packages hidden, and selfcheck with few draws."""
    script = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))
from specdec_kernels import selfcheck
from specdec_kernels.selfcheck import chains, rules, trees
chains.STEPS = trees.TREE_STEPS = rules.RULE_STEPS = 20_000  # too few for the controls
for name in [name for name in selfcheck.CHECKS if name.startswith("control")]:
    del selfcheck.CHECKS[name]
from specdec_kernels.cli import main
sys.exit(main())
"""

    def go(*arguments):
        command = [sys.executable, "-c", script, *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        return Ran(done.returncode, done.stdout, done.stderr)

    return go


@pytest.mark.slow
def test_the_plain_install_is_enough(plain_install):
    info, selfcheck = plain_install("info"), plain_install("selfcheck")
    assert info.exit_code == 0 and "CPU instruction set" in info.output, info.output
    assert selfcheck.exit_code == 0 and "PASSED in" in selfcheck.output, selfcheck.output


@pytest.mark.thorough
@pytest.mark.slow
def test_generate_says_which_extra_it_needs(plain_install):
    result = plain_install("generate", "--prompt", "a")
    why = "error: generate needs rich, which the plain install leaves out: in the source tree, pip install "
    assert result.exit_code == 2 and result.output.strip() == why + '--no-build-isolation -e ".[decode]"'


def test_generate_streams_text_and_ends_with_statistics(generate, pair):
    plain = generate(pair, "--plain")
    assert plain.exit_code == 0, plain.output
    assert "def f(x): def f" in plain.output and "tokens/s" in plain.output and "acceptance" not in plain.output
    for arguments in (
        ["--gamma", 3],
        ["--gamma", "auto"],
        ["--lookup-first"],
        ["--lookup-under"],
        ["--draft", "lookup"],
    ):
        result = generate(pair, *arguments)
        assert result.exit_code == 0, result.output
        assert result.stdout == plain.stdout and "acceptance" in result.output


@pytest.mark.slow
def test_generate_with_trees(generate, pair):
    """Trees give the greedy text, by each of four methods. A sampled tree depends on its seed."""
    plain = generate(pair, "--plain").stdout
    for method, more in (("kseq", []), ("recursive_without_replacement", []), ("greedy", ["--drafts", 2])):
        result = generate(pair, "--method", method, "--gamma", 3, *more)
        assert result.exit_code == 0 and result.stdout == plain, result.output
        assert f"{method}: " in result.output
    for arguments in (["--widths", "3,1"], ["--lookup-first"]):
        assert generate(pair, "--method", "target_only", *arguments).stdout == plain
    hot = "--method", "kseq", "--temperature", 1, "--drafts", 2
    one, same, other = (generate(pair, *hot, "--seed", s).stdout for s in (1, 1, 2))
    assert one == same != other


def test_what_temperature_0_makes_void(pair):
    """The options that `generate` refuses at temperature 0 change neither the text nor the number of drafts: filters,
    the seed with the rule "exact", and the number of drafts where drafts are drawn."""
    models = decode.load_pair(*pair, torch.float32)
    prompt = models.tokenizer.encode("def f(x): def f")

    def go(method, drafts=3, rule="exact", **fields):
        chain = decode.ModelDrafter(models.draft, 3)
        drafter = chain if method == "chain" else decode.TreeDrafter(models.draft, method, drafts, 3)
        request = decode.Request(prompt, max_new_tokens=8, rule=rule, **fields)
        out = decode.generate(models.target, [request], drafter, verify="race" if method == "race" else None)
        return out.results[0].tokens, out.stats.drafted, out.stats.target_calls

    filters = [{"top_k": 1}, {"top_p": 0.1}, {"min_p": 1.0}, {"top_n_sigma": 0.1}]
    for method in options.METHODS:
        for rule in ("exact", *([] if method != "chain" else ["diff", "typical", "synthetic"])):
            alpha = {"alpha": 0.5} if rule == "synthetic" else {}
            usual = go(method, rule=rule, **alpha)
            for void in filters + [{"seed": 5}] * (rule == "exact"):
                assert go(method, rule=rule, **alpha, **void) == usual, (method, rule, void)
        drawn = method != "chain" and TREE_METHODS[method].children != "any"
        assert method == "chain" or (go(method, drafts=1) == go(method)) == drawn, method
    assert go("chain", rule="synthetic", alpha=0.5) != go("chain", rule="synthetic", alpha=0.5, seed=5)


@pytest.mark.parametrize("more", [[], ["--top-p", 0.9, "--presence-penalty", 0.6, "--logit-bias", "5=-inf"]])
def test_generate_with_the_race(generate, pair, more):
    """Each seed has one text, that of plain decoding, whatever the drafter and whichever prompts are decoded beside
    it."""
    race = "--method", "race", "--temperature", 1, *more
    plain, other = (generate(pair, "--plain", "--seed", seed, *race) for seed in (3, 4))
    assert plain.exit_code == 0 and plain.stdout != other.stdout, plain.output
    assert plain.stdout != generate(pair, "--plain", "--temperature", 1, *more, "--seed", 3).stdout
    for arguments in (
        ["--gamma", 1],
        ["--gamma", 4],
        ["--lookup-first"],
        ["--lookup-under"],
        ["--draft", "lookup"],
        ["--widths", "3,1"],
        ["--widths", "auto", "--lookup-first"],
    ):
        result = generate(pair, "--seed", 3, *race, *arguments)
        assert result.exit_code == 0 and result.stdout == plain.stdout, (arguments, result.output)
        assert "race: " in result.output
    two = generate(pair, "--prompt", "def g", "--seed", 3, *race, "--gamma", 3)
    assert two.exit_code == 0 and plain.stdout in two.stdout, two.output


@pytest.mark.slow
def test_generate_with_rules(generate, pair):
    """At the strict end of a rule the text is the target's. At the other end of chow it is the draft's, and a plain
    cascade, which never defers there, does not call the target."""
    target, draft = pair
    plain, drafted = (generate(p, "--plain").stdout for p in (pair, (draft, target)))
    assert plain != drafted
    trees = ["--rule", "chow", "--alpha", 0, "--method", "kseq"], ["--rule", "thresholds", "--method", "target_only"]
    for arguments in (["--rule", "chow", "--alpha", 0], ["--rule", "lenience"], ["--block"], *trees):
        result = generate(pair, "--gamma", 3, *arguments)
        assert result.exit_code == 0 and result.stdout == plain, result.output
    for arguments in (["--gamma", 3], ["--gamma", 3, "--block"], ["--plain"]):
        result = generate(pair, "--rule", "chow", "--alpha", 1, *arguments)
        assert result.exit_code == 0 and result.stdout == drafted, result.output
    assert "target calls 0" in " ".join(result.output.split())
    typical = generate(pair, "--rule", "typical", "--alpha", "0.2,0.5", "--gamma", 3, "--temperature", 1)
    assert typical.exit_code == 0 and "acceptance" in typical.output


def test_the_methods_are_those_of_the_loop():
    from specdec_kernels.decode import TREE_METHODS

    assert set(options.METHODS) == {"chain", *TREE_METHODS}


def test_generate_beams(generate, pair):
    """--beams W prints W texts, best first, and the same with and without a draft."""
    plain = generate(pair, "--beams", 3, "--plain", "--max-new-tokens", 9)
    drafted = generate(pair, "--beams", 3, "--gamma", 2, "--max-new-tokens", 9)
    assert plain.exit_code == drafted.exit_code == 0, plain.output + drafted.output
    assert plain.stdout == drafted.stdout and "beam search: " in drafted.output
    lines = plain.stdout.splitlines()[1:4]
    scores = [float(line.split()[0]) for line in lines]
    assert scores == sorted(scores, reverse=True) and all("length" in line or "eos" in line for line in lines)


def test_generate_samples_by_seed(generate, pair):
    hot = "--gamma", 3, "--temperature", 1, "--top-p", 0.9
    one, same, other = (generate(pair, *hot, "--seed", s).stdout for s in (1, 1, 2))
    assert one == same != other


def test_generate_with_penalties_biases_and_a_minimum(generate, pair):
    """Each option changes the text, and drafts do not. A bias can force one token: the text is then that letter."""
    free = generate(pair, "--plain").stdout
    one = WORDS.index("q")
    for given in (["--repetition-penalty", 5], ["--frequency-penalty", 9], ["--presence-penalty", 9],
                  ["--logit-bias", f"{one}=100"]):  # fmt: skip
        text = generate(pair, "--plain", *given).stdout
        assert text != free and generate(pair, "--gamma", 3, *given).stdout == text
    assert text.endswith("q" * 24 + "\n")
    end = ["--logit-bias", "0=100"]  # the end token
    lengths = [
        int(re.search(r"new tokens\s+(\d+)", generate(pair, "--gamma", 3, *end, "--min-tokens", n).output)[1])
        for n in (0, 1, 7)
    ]
    assert lengths == [1, 2, 8]


@pytest.fixture(scope="module")
def spelled(tmp_path_factory):
    """Return a pair whose tokenizer reads any text."""
    root = tmp_path_factory.mktemp("spelled")
    return tuple(tiny.byte_level_folder(root / name, i) for i, name in enumerate(("target", "draft")))


def test_generate_with_a_grammar(generate, spelled, tmp_path):
    """The text matches the grammar and is the same with and without drafts. The end token is allowed where a match may
    end."""
    pytest.importorskip("llguidance", reason="not installed: llguidance")
    schema, regex = tmp_path / "schema.json", tmp_path / "regex.txt"
    schema.write_text('{"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},'
                      '"required": ["a", "b"], "additionalProperties": false}')  # fmt: skip
    regex.write_text("[a-f]{2,4}(yes|no)\n")
    for file, matches in (
        (schema, lambda text: json.loads(text)["a"] in "xy" and json.loads(text).keys() == {"a", "b"}),
        (regex, lambda text: re.fullmatch("[a-f]{2,4}(yes|no)", text)),
    ):
        texts = {
            generate(spelled, "--grammar", file, "--max-new-tokens", 40, *more).stdout
            for more in (["--plain"], ["--gamma", 3], ["--method", "kseq"], ["--method", "target_only"])
        }
        [text] = texts
        assert matches(text.split("def f(x): def f")[1].strip()), text


def test_generate_with_a_grammar_that_is_wrong(generate, spelled, tmp_path):
    pytest.importorskip("llguidance", reason="not installed: llguidance")
    for name, text, says in (
        ("a.json", "{", "the JSON schema must be JSON: "),
        ("a.json", '{"type": "x"}', "the JSON schema must be one that llguidance takes: Invalid type: x"),
        ("a.txt", "(a", "the regular expression must be one that llguidance takes: "),
    ):
        (tmp_path / name).write_text(text)
        result = generate(spelled, "--grammar", tmp_path / name)
        assert result.exit_code == 2 and result.stdout == ""
        assert result.stderr.startswith(f"error: Grammar: {says}") and result.stderr.count("\n") == 1, result.stderr


def test_generate_a_grammar_needs_llguidance(generate, spelled, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    (tmp_path / "a.txt").write_text("a")
    result = generate(spelled, "--grammar", tmp_path / "a.txt")
    assert result.exit_code == 2 and result.output.startswith(
        "error: --grammar needs llguidance, which the plain install "
    )
    assert result.output.strip().endswith('-e ".[decode,grammar]"')


def test_generate_without_bad_words(generate, pair):
    """Bad words of one token and of several: none is in the output, and drafts change nothing."""
    prompt = "def f(x): def f"
    free = generate(pair, "--plain").stdout.split(prompt)[1].strip("\n")
    bad = [free[3], free[0:2], free[8:11]]
    options = [x for word in bad for x in ("--bad-word", word)]
    texts = {generate(pair, *options, *more).stdout for more in (["--plain"], ["--gamma", 3], ["--method", "kseq"])}
    [text] = texts
    text = text.split(prompt)[1]
    assert not any(word in text for word in bad) and len(text.strip("\n")) == 24


def test_generate_a_batch_stops_at_a_string(generate, pair):
    target, draft = pair
    text = generate(pair, "--plain").stdout.split("def f(x): def f")[1]
    stop = text[4:6]
    result = generate(pair, "--prompt", "abc abc", "--stop", stop)
    assert result.exit_code == 0 and "request 1" in result.output
    assert text[: text.find(stop)] in result.output and text[: text.find(stop) + 2] not in result.output


def test_generate_refuses_models(generate, pair, tmp_path):
    """Errors that are found while models are located or loaded."""
    other = folder(tmp_path / "other", 2, WORDS[:10] + ["%"] + WORDS[11:])
    for arguments, message in [
        (["--draft", other], "target and draft must have one vocabulary"),
        (["--draft", "missing.gguf"], "--draft missing.gguf: no such file"),
    ]:
        result = generate(pair, *arguments)
        assert result.exit_code == 2 and message in " ".join(result.stderr.split()), result.output
        assert result.stdout == ""


def test_vocabularies_that_differ_are_named(pair, tmp_path):
    from specdec_kernels.decode import load_pair

    target, _ = pair
    swapped = folder(tmp_path / "swapped", 2, WORDS[:2] + [WORDS[3], WORDS[2]] + WORDS[4:])
    with pytest.raises(ValueError, match=r"2 with another id \('a': 2 against 3\)"):
        load_pair(target, swapped)
    longer = folder(tmp_path / "longer", 2, [*WORDS, "%"])
    with pytest.raises(ValueError, match=r"34 tokens against 35; 1 only in the draft \('%'\)"):
        load_pair(target, longer)


def test_padded_output_rows_are_fine(generate, pair, tmp_path):
    """A draft with the same tokenizer and more output rows is accepted."""
    target, _ = pair
    path = folder(tmp_path / "padded", 3)
    tiny.llama(3, vocab=len(WORDS) + 30).save_pretrained(path)
    config = json.loads((tmp_path / "padded" / "config.json").read_text())
    assert config["vocab_size"] == len(WORDS) + 30
    assert generate(pair, "--draft", path).stdout == generate(pair, "--plain").stdout


def test_a_request_that_ends_in_an_error_is_said(generate, pair, monkeypatch):
    """A failed request is reported on stderr with its reason, and by the exit status. The other requests' text stays on
    stdout."""
    from specdec_kernels import decode

    stream = decode.stream

    def failing(*given, output, **options):
        yield from stream(*given, output=output, **options)
        output.results[1].finished, output.results[1].error = "error", "target pass: no memory [here]"

    plain = generate(pair, "--prompt", "ab")
    monkeypatch.setattr(decode, "stream", failing)
    result = generate(pair, "--prompt", "ab")
    assert (plain.exit_code, result.exit_code) == (0, 1) and result.stdout == plain.stdout
    assert "error: request 1 ended in an error after 24 tokens: target pass: no memory [here]\n" in result.stderr


def test_what_is_printed_where(generate, pair):
    """stdout has the text only; progress and statistics go to stderr."""
    result = generate(pair, "--gamma", 3)
    assert result.stdout.startswith("def f(x): def f") and "tokens/s" not in result.stdout + result.stderr[:8]
    assert "tokens/s" in result.stderr and "loading: " in result.stderr


def test_ctrl_c_ends_with_the_statistics_of_what_was_decoded(generate, pair, monkeypatch):
    from specdec_kernels import decode

    stream = decode.stream

    def interrupted(*given, **options):
        for n, event in enumerate(stream(*given, **options)):
            yield event
            if n == 4:
                raise KeyboardInterrupt

    whole = generate(pair, "--plain")
    monkeypatch.setattr(decode, "stream", interrupted)
    result = generate(pair, "--plain")
    assert result.exit_code == 130 and whole.stdout.startswith(result.stdout.rstrip("\n"))
    assert re.search(r"new tokens\W+5\b", result.stderr), result.stderr

    def while_loading(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(decode, "load_pair", while_loading)
    result = generate(pair, "--plain")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.slow
def test_a_closed_pipe_ends_in_silence(pair):
    command = [sys.executable, "-m", "specdec_kernels", "generate", "--target", pair[0], "--prompt", "abc", "--plain"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        said = run.stderr.read().decode()
    assert run.returncode != 0 and all(line.startswith("loading: ") for line in said.splitlines()), said
