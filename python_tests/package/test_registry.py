# SPDX-License-Identifier: Apache-2.0
"""The registry's names and numbers equal those in the libraries, the headers and Triton.

For the headers, a C++ program is generated from the registry. It does not compile if a name differs, or if a switch
lacks an enumerator.
"""

import importlib
import pkgutil
import re
import shutil
import subprocess
import sys

import pytest
import torch
from support.paths import ROOT

import specdec_kernels as sk
from build_tools.ninja_file import CXX
from specdec_kernels import example_calls, registry
from specdec_kernels.backends import dispatch

CSRC = ROOT / "csrc"


def camel(name):
    return "".join(part.capitalize() for part in name.split("_"))


def dtype(name):
    return name.capitalize().replace("Bfloat", "BFloat")


ENUMS = {  # C++ enum -> {enumerator: number}; kOneHot and kNothing are kinds that callers cannot give
    "Rule": {f"Rule::k{camel(name)}": rule.code for name, rule in registry.RULES.items()},
    "Method": {f"Method::k{camel(name)}": method.code for name, method in registry.TREE_METHODS.items()},
    "Kind": {f"Kind::k{camel(name)}": code for name, code in registry.ROW_KINDS.items()}
    | {"Kind::kOneHot": 2, "Kind::kNothing": 3},
    "DType": {f"k{dtype(name)}": i for i, name in enumerate(registry.ROW_DTYPES)},
    "Status": {f"k{camel(name)}": getattr(registry, f"STATUS_{name.upper()}")
               for name in ("invalid_row", "empty_residual", "invalid_draft", "invalid_bonus", "history_full")},
    "Domain": {f"kDomain{camel(name)}": getattr(registry, f"DOMAIN_{name.upper()}")
               for name in ("accept", "final", "draft", "noise")},
    "MaskFormat": {f"kMask{dtype(name)}": code for name, code in registry.MASK_FORMATS.items()}
    | {"kMaskFormats": len(registry.MASK_FORMATS)},
}  # fmt: skip
NUMBERS = {
    "kRules": len(registry.RULES),
    "kSlots": registry.SLOTS,
    "kChunk": registry.CHUNK,
    "kMaxDrafts": registry.MAX_DRAFTS,
    "kMaxNodes": registry.MAX_NODES,
    "kIdsEnd": registry.MAX_VOCABULARY,
    "kMaxCounted": registry.MAX_COUNTED,
    "kBadParent": registry.STATUS_INVALID_PARENT,
    "kBadPosition": registry.STATUS_INVALID_PREFIX,
}


HEADERS = (
    *("core/final_token", "core/philox", "core/row", "rules/rule"),
    *("ops/build_tree/build_tree", "ops/count_tokens_/count_tokens_", "ops/tree_mask/tree_mask"),
    *("ops/grow_tree/grow_tree", "ops/verify_tree/tree"),
)
ALPHAS = (0.0, 0.5, 1.0)  # the ends, at which a rule may equal the exact one, and a parameter between them


def statements():
    """Yield (name, value in the registry, C++ expression for it)."""
    for name, number in NUMBERS.items():
        yield name, number, name
    for values in ENUMS.values():
        for name, number in values.items():
            yield name, number, f"listed({name})"
    for name, rule in registry.RULES.items():
        code = f"Rule::k{camel(name)}"
        yield f"{name} is a law", rule.defines_distribution, f"replaces_target({code})"
        yield f"{name} reads the draft", rule.reads_draft, f"reads_draft({code})"
        yield f"{name} reads the entropy", rule.reads_entropy, f"reads_entropy({code})"
        yield f"{name}'s name", True, f'std::string(kRuleNames[int({code})]) == "{name}"'
        at = f"row_of({code}).exact_at"
        yield f"{name} is exact at", True, f"std::isnan({at})" if rule.exact_at is None else f"{at} == {rule.exact_at}"
        for x in ALPHAS:
            exact = name == "exact" or rule.exact_at == x
            yield f"{name} at {x} is exact", exact, f"resolved({code}, {x}f) == Rule::kExact"
        for method, known in registry.TREE_METHODS.items():
            yield f"{method} takes {name}", name in known.rules, f"takes(Method::k{camel(method)}, {code})"
        for parameter, which in zip(rule.parameters, ("first", "second")):
            high, closing = (registry.FLT_MAX, "]") if parameter.high == registry.INF else parameter[3:5]
            ends = {"least": parameter.low, "most": high, "otherwise": parameter.default}
            ends |= {"closed_below": parameter.opening == "[", "closed_above": closing == "]"}
            for field, x in ends.items():
                yield f"{name}, {parameter.name}: {field}", x, f"row_of({code}).{which}.{field}"


def program():
    """Generate a program that prints every C++ value on its own line."""
    lines = [*(f'#include "{CSRC}/{header}.h"' for header in HEADERS), "#include <cmath>", "#include <cstdio>"]
    lines += ["#include <string>", "using namespace specdec;"]
    for enum, values in ENUMS.items():
        cases = " ".join(f"case {name}: " for name in values)
        lines.append(f"int32_t listed({enum} x) {{ switch (x) {{ {cases} break; }} return int32_t(x); }}")
    lines += [
        "Rule resolved(Rule rule, float x) {",
        "  const int64_t code = int64_t(rule);",
        "  Rules rules;",
        "  rules.rule.data = &code, rules.alpha.data = &x;",
        "  return rules[0];",
        "}",
        "int main() {",
        *(f'  std::printf("%.9g\\n", double({there}));' for _, _, there in statements()),
        "}",
    ]
    return "\n".join(lines)


@pytest.mark.skipif(not shutil.which(CXX), reason=f"{CXX} is not here")
def test_the_headers_say_what_the_registry_says(tmp_path):
    source, binary = tmp_path / "numbers.cpp", tmp_path / "numbers"
    source.write_text(program())
    subprocess.run([CXX, "-std=c++20", "-Werror=switch", source, "-o", binary], check=True)
    there = subprocess.run([binary], check=True, capture_output=True, text=True).stdout.split()
    wanted = [(what, f"{float(here):.9g}") for what, here, _ in statements()]
    assert [(what, x) for (what, _), x in zip(wanted, there, strict=True)] == wanted
    # Conversely: a switch that lacks an enumerator is an error.
    source.write_text(program().replace("case Kind::kNothing: ", ""))
    refused = subprocess.run(
        [CXX, "-std=c++20", "-Werror=switch", "-fsyntax-only", source], capture_output=True, text=True
    )
    assert refused.returncode and "kNothing" in refused.stderr


@pytest.mark.parametrize("name", [name for name, rule in registry.RULES.items() if rule.parameters])
def test_the_library_names_a_rule_and_its_range_alike(name):
    p, ids, u = torch.zeros(1, 2, 3), torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.float64)
    rule = registry.RULES[name]
    wanted = f"alpha of rule '{name}' must be in {rule.parameters[0].range}, got -1 at index 0"
    with pytest.raises(ValueError, match=re.escape(wanted)):
        sk.verify_chain(p, ids, p, uniforms=u, rule=torch.tensor([rule.code]), alpha=torch.tensor([-1.0]))


def test_the_libraries_define_these_ops():
    assert dispatch.ops() == sorted(registry.OPS)


def test_triton_numbers_alike():
    """A constant in the Triton package with one of these names from the registry has the registry's number."""
    pytest.importorskip("triton")
    wanted = {name.upper(): rule.code for name, rule in registry.RULES.items()}
    wanted |= {name.upper(): method.code for name, method in registry.TREE_METHODS.items()}
    wanted |= {name: x for name, x in vars(registry).items() if name.startswith("DOMAIN_")} | {"CHUNK": registry.CHUNK}
    wanted |= {
        name.removeprefix("STATUS_"): x for name, x in vars(registry).items() if name.startswith("STATUS_INVALID_")
    }
    wanted |= {"EMPTY_RESIDUAL": registry.STATUS_EMPTY_RESIDUAL, "HISTORY_FULL": registry.STATUS_HISTORY_FULL}
    wanted |= {"MAX_DRAFTS": registry.MAX_DRAFTS}
    package, seen = importlib.import_module("specdec_kernels.triton"), set()
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        for name, x in vars(importlib.import_module(module.name)).items():
            number = getattr(x, "value", x)
            if name in wanted and isinstance(number, int):
                assert number == wanted[name], (module.name, name)
                seen.add(name)
    assert {"LOSSY", "TARGET_ONLY", "DOMAIN_FINAL", "INVALID_DRAFT", "HISTORY_FULL", "CHUNK"} <= seen


def test_every_list_walks_over_the_registry(monkeypatch):
    """Each of these lists notices an op that is in the registry only: it has the op, or its error names it."""
    monkeypatch.setattr(registry, "OPS", (*registry.OPS, "throw_away"))
    monkeypatch.setattr(registry, "FUNCTIONS", (*registry.FUNCTIONS, "throw_away"))
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("bench", "gates")}
    for name in kept:
        monkeypatch.delitem(sys.modules, name)
    run, hostile = importlib.import_module("bench.run"), importlib.import_module("gates.hostile")
    assert "throw_away" in run.OPS and "throw_away" in hostile.OPS and "throw_away" in hostile.CHECKS
    for walk in (
        lambda: list(importlib.import_module("bench.sanitize").calls("cpu")),
        lambda: example_calls.every_call(),
    ):
        with pytest.raises(ModuleNotFoundError, match="specdec_kernels.example_calls.throw_away"):
            walk()
