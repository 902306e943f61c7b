# SPDX-License-Identifier: Apache-2.0
"""The tables of every op's arguments, in the order of its schema, and of its results.

These are generated from the tables: the schemas in csrc/schema.cpp (by build_tools/schema.py), docs/ops.md, the fakes,
the arguments of Triton's functions, the split over ranks and part of the tests with hostile inputs. Other places repeat
them, and test_argument_table.py compares these with the tables: the ops' headers, the public functions and the shapes
in their docstrings, the reference, Triton, example calls, hostile calls. This module imports nothing of the package.

Sizes: B requests; G drafted tokens of a request; N rows, or nodes of a tree; V and Vq ids of target and draft (a q at
the end marks a size of the draft's); g_b drafts of request b in a ragged batch, where D = sum(g_b) and R = D + B; K
drafts of L levels; E entries of a sparse row; M = 3 Vq + V + 1 numbers of a map, or M rows that nodes or results index;
S lists or masks, of H used tokens, I biases, P words of prompt bits or W words of mask bits. Logits [N, V] and
[S, K, V] may also be stores, whose rows are looked up by index.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

ROW_DTYPES = ("float32", "bfloat16", "float16")  # in the order of csrc's DType
INTEGERS = ("int32", "int64")
PROBABILITIES = ("float32", "float64", "bfloat16", "float16")
TYPES: dict[str, tuple[str, tuple[str, ...]]] = {  # name: (type in the schema, dtypes of a tensor)
    "rows": ("Tensor", ROW_DTYPES),
    "rows or ids": ("Tensor", (*ROW_DTYPES, *INTEGERS)),
    "probabilities": ("Tensor", PROBABILITIES),
    "probabilities or ids": ("Tensor", (*PROBABILITIES, *INTEGERS)),
    "integers": ("Tensor", INTEGERS),
    **{dtype: ("Tensor", (dtype,)) for dtype in ("int64", "int32", "float32", "float64")},
    "ids or bits": ("Tensor", ("int32", "uint32")),
    "ids or map": ("Tensor", (*INTEGERS, "uint32")),  # uint32: VocabMap.packed
    "int32, written": ("Tensor", ("int32",)),  # the op writes to it
    "number": ("SymInt", ()),
    "code": ("int", ()),  # stands for a word of the public function, or is a number but not a size
    "flag": ("bool", ()),
    "numbers": ("float[]", ()),
}
LEADS = {"request": "B", "row": "N"}  # the first dimension of a tensor with one entry per request or row


class Argument(NamedTuple):
    name: str  # in the schema; "" if only the public function takes it
    type: str
    shape: str = ""  # as the public function takes it, " | " between alternatives; "...": any shape
    per: str = "all"  # "request" or "row": one entry for each, or one for all; "all": shared; "count": the number of
    # requests or rows that are present; "whole": a call with this argument cannot be split by requests
    optional: bool = False
    public: str = "="  # place in the public function: a field "target.row", a part "tree.0", "=" its name; "": none
    default: bool | float | None = None  # its value if it is left out; only if it may be, but cannot be None
    is_view: bool = False  # only the overload "views" takes it, so plain calls do not pay for it

    @property
    def shapes(self) -> list[str]:
        return self.shape.split(" | ") if self.shape else []

    @property
    def is_written(self) -> bool:
        return self.type.endswith(", written")

    @property
    def may_be_left_out(self) -> bool:
        return self.optional or self.default is not None

    def is_off(self, value: object) -> bool:
        """Return whether giving this value is the same as leaving the argument out."""
        return value is None if self.optional else self.default is not None and value == self.default

    def is_cut(self, dims: int) -> bool:
        """Return whether a tensor with this many dimensions may have an entry for each request or row."""
        lead = LEADS.get(self.per)
        return any(shape.split(", ")[0] == lead and shape.count(",") + 1 == dims for shape in self.shapes)


SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_n_sigma", "numbers")
SIDE = ("logits", *SAMPLING, "stats", "kind", "row")


def _side(public, logits, rows, V, per="row", takes=SIDE, row="", optional=False, stats="optional", ids=False):
    """Yield the arguments of one side. Fields of Rows that are not in `takes` get no name, since the op lacks them.

    rows: the dimensions before V. stats: "optional", or "made" if the public function computes stats that are not
    given. ids: True if the op takes Rows.ids and Rows.vocab_map, for which _ids() yields the argument."""
    prefix = logits.removesuffix("logits") if logits.endswith("logits") else f"{logits}_"
    each = f"{LEADS[per]} | 1"
    fields = {
        "logits": Argument(logits, "rows", _ending(rows, V), per, optional),
        **{x: Argument(x, "integers" if x == "top_k" else "float32", each, per, True) for x in SAMPLING[:-1]},
        "numbers": Argument("numbers", "numbers", optional=True),
        "stats": Argument("stats", "float32", _ending(rows, "4"), per, stats == "optional"),
        "kind": Argument("kind", "code"),
        "row": Argument("row", "integers", row, "request" if row == "B, N" else "whole", True),
    }
    for field in SIDE:
        name = "" if field not in takes else logits if field == "logits" else prefix + field
        if field != "numbers" or name:
            yield fields[field]._replace(name=name, public="" if field == "numbers" else f"{public}.{field}")
    for view in ("penalties", "bias", "allowed", *("ids", "vocab_map") * (not ids)):  # see _views()
        yield Argument("", "float32", optional=True, public=f"{public}.{view}")


def _ids(side, prefix, rows, per, is_view=True):
    shape = _ending(rows, "E") + " | M"  # M = 3 Vq + V + 1
    yield Argument(f"{prefix}ids", "ids or map", shape, per, True, f"{side}.ids", is_view=is_view)
    yield Argument("", "ids or map", "", "all", True, f"{side}.vocab_map")


def _views(side, per, prefix="", positions=()):
    """Yield the fields of a side's Penalties, Bias and Allowed. positions: dimensions of one entry per position."""
    lead, each = LEADS[per], " | ".join((LEADS[per], *positions))
    ids, words = (_ending(" | ".join(("S", *positions[:1])), last) for last in ("I", "W"))
    fields = [
        *((x, "float32", f"{lead} | 1", per, f"penalties.{x}") for x in ("repetition", "frequency", "presence")),
        ("penalty_numbers", "numbers", "", "all", ""),
        ("", "int32", "S, P", "all", "penalties.prompt_bits"),  # P = ceil(H/32)
        ("history_marks", "ids or bits", "S, H | S, P", "all", "penalties.ids"),
        ("history_counts", "int32", "S, H", "all", "penalties.counts"),
        ("history_row", "integers", lead, per, "penalties.row"), ("bias_ids", "integers", ids, "all", "bias.ids"),
        ("bias_values", "float32", ids, "all", "bias.values"), ("bias_row", "integers", each, per, "bias.row"),
        ("allowed_bits", "int32", words, "all", "allowed.bits"), ("allowed_row", "integers", each, per, "allowed.row"),
        *[("drafted", "integers", "N, n", per, "penalties.drafted")] * (per == "row"),  # others take drafts anyway
    ]  # fmt: skip
    for name, kind, shape, of, field in fields:
        yield Argument(name and prefix + name, kind, shape, of, True, field and f"{side}.{field}", is_view=True)


def _ending(leads, last):
    return " | ".join(f"{lead}, {last}" for lead in leads.split(" | "))


def _rows(*takes, **how):
    return _side("rows", "logits", "N", "V", takes=("logits", *takes), **how)


def _pair(side, V, **how):
    return _side(side, side, "N", V, takes=("logits", "stats"), **how)


def _randomness(per, uniforms, keys=""):
    """Yield seed, offset and uniforms. keys: further shapes of seed, if it may hold a noise key for each row."""
    each = f"{LEADS[per]} | 1"
    yield Argument("seed", "int64", each + keys, per, True)
    yield Argument("offset", "int64", each, per, True)
    if per == "row":
        yield Argument("slot", "integers", "N", per, True)
        yield Argument("first_slot", "number", public="slot")
    yield Argument("uniforms", "float64", uniforms, per, True)


def _rule(alpha):
    yield Argument("rule", "integers", "B | 1", "request", True)
    yield Argument("alpha", "float32", alpha, "request", True)
    yield Argument("rule_numbers", "numbers", optional=True, public="")


_OF_ROWS = (Argument("num_rows", "integers", "1", "count", True), *_views("rows", "row"))
_OF_DRAFTS = (*_OF_ROWS, *_ids("rows", "", "N", "row"))
_DRAFT_ROWS, _DRAFT_NODES = "B, G | D | B, G+1 | R | Nq | Sq, Kq", "B, N | B, Mq"
_LAST = (
    Argument("num_requests", "integers", "1", "count", True),
    Argument("", "flag", public="require_exact"),
    Argument("", "results", public="out"),
)

TABLE: dict[str, tuple[Argument, ...]] = {
    "uniforms": (
        Argument("seed", "int64", "B", "request"), Argument("offset", "int64", "B", "request"),
        Argument("n", "number"), Argument("domain", "code"),
    ),
    "accept": (
        Argument("p", "probabilities", "..."), Argument("q", "probabilities or ids", "..."),
        Argument("u", "float64", "..."),
    ),
    "count_tokens_": (
        Argument("ids", "int32, written", "S, H"), Argument("counts", "int32, written", "S, H"),
        Argument("tokens", "integers", "B, n", "request"),
        *(Argument(x, "integers", "B", "request", True) for x in ("num_tokens", "row")),
    ),
    "residual": (Argument("p", "rows", "N, V", "row"), Argument("q", "rows or ids", "N, Vq | N", "row"), _OF_ROWS[0]),
    "row_gap": (*_pair("p", "V"), *_pair("q", "Vq", ids=True), *_ids("q", "q_", "N", "row", False)),
    "kseq_rho": (
        *_pair("p", "V"), *_pair("q", "Vq", ids=True), Argument("k", "integers", "N | 1", "row"),
        *_ids("q", "q_", "N", "row", False),
    ),
    "row_stats": (*_rows(*SAMPLING, ids=True), *_OF_DRAFTS),
    "sample": (
        *_rows(*SAMPLING, "stats", ids=True),
        Argument("k", "number"), Argument("replacement", "flag"), *_randomness("row", "N, k"), _OF_DRAFTS[0],
        Argument("race", "flag", default=False), *_OF_DRAFTS[1:],
    ),
    "top_logprobs": (
        *_rows("stats", stats="made"), Argument("k", "number"), Argument("tokens", "integers", "N, m", "row", True),
        *_OF_ROWS,
    ),
    "row_topw": (*_rows("stats"), Argument("score", "float32", "N", "row"), Argument("w", "number"), *_OF_ROWS),
    "support": (*_rows("stats", "row", row="M", stats="made"), Argument("max_kept", "number"), *_OF_ROWS),
    "build_tree": (Argument("draft_tokens", "integers", "B, K, L", "request"),),
    "grow_tree": (
        Argument("log_q", "float32", "B, L, K", "request"), Argument("tokens", "integers", "B, L, K", "request"),
        Argument("nodes", "number"),
    ),
    "budget": (
        Argument("survival", "float32", "B, G", "whole"), Argument("total", "number"),
        Argument("num_drafts", "integers", "B", "whole", True),
    ),
    "tree_mask": (
        Argument("parents", "integers", "B, N | N", "request"),
        *(Argument(x, "integers", "B | 1", "request", True) for x in ("prefix_len", "tree_start")),
        Argument("num_keys", "number"), Argument("format", "code"), Argument("", "code", public="dtype"),
    ),
    "verify_chain": (
        *_side("target", "target_logits", "B, G+1 | R | B, G | D | N | S, K", "V", "request",
               row="B, G+1 | R | B, G | D"),
        Argument("draft_tokens", "integers", "B, G | D", "request"),
        *_side("draft", "draft_logits", _DRAFT_ROWS, "Vq", "request", row="B, G | D | B, G+1 | R", optional=True,
               ids=True),
        Argument("cu_draft", "integers", "B+1", "whole", True), Argument("max_draft", "number"),
        Argument("bonus_tokens", "integers", "B | B, 1", "request", True), Argument("method", "code"),
        *_rule("B | 1 | B, 2 | 1, 2 | B, G | B, G, 1 | B, G, 2 | 1, G, 1 | 1, G, 2"),
        *_randomness("request", "B, G+1", " | B, G+1 | R"), *_LAST,
        *_views("target", "request", "target_", ("B, G+1", "R")),
        *_views("draft", "request", "draft_", ("B, G+1", "R")), *_ids("draft", "draft_", _DRAFT_ROWS, "request"),
    ),
    "verify_tree": (
        Argument("parents", "integers", "B, N | N", "request", public="tree.0"),
        Argument("node_tokens", "integers", "B, N | N", "request", public="tree.1"),
        Argument("draft_nodes", "integers", "B, K, L", "request", True, "tree.3"),
        Argument("first_child", "integers", "B, N", "request", True, "links.0"),
        Argument("next_sibling", "integers", "B, N", "request", True, "links.1"),
        *_side("target", "target_logits", "B, N | B, M", "V", "request", row="B, N"),
        *_side("draft", "draft_logits", _DRAFT_NODES, "Vq", "request", row="B, N", optional=True, ids=True),
        Argument("method", "code"), Argument("max_depth", "number"),
        *_rule("B | 1 | B, 2 | 1, 2"), *_randomness("request", "B, N+1 | B, K*L+1", " | B, N"), *_LAST,
        *_views("target", "request", "target_", ("B, N",)), *_views("draft", "request", "draft_", ("B, N",)),
        *_ids("draft", "draft_", _DRAFT_NODES, "request"),
    ),
}  # fmt: skip
TABLE = {op: tuple(x._replace(public=x.name) if x.public == "=" else x for x in rows) for op, rows in TABLE.items()}

_VERIFIED = "tokens int64 [B, {0}+1]; num_accepted int32 [B]; logprobs float32 [B, {0}+1]; status int32 [B]"
RESULTS = {
    "uniforms": "uniforms float64 [B, n]",
    "accept": "accepted bool [...]",
    "count_tokens_": "status int32 [B]",
    "residual": "residual float32 [N, V]; mass float64 [N]",
    "row_gap": "gaps float32 [N, 6]",
    "kseq_rho": "rho float64 [N]; beta float64 [N]; p_acc float64 [N]",
    "row_stats": "stats float32 [N, 4]",
    "sample": "tokens int64 [N, k]; logprobs float32 [N, k]; stats float32 [N, 4]",
    "top_logprobs": "ids int64 [N, k]; logprobs float32 [N, k]; token_logprobs float32 [N, m]; "
    "token_ranks int64 [N, m]",
    "row_topw": "scores float32 [N, w]; ids int64 [N, w]",
    "support": "ids int32 [M, max_kept]; counts int32 [M]; bits int32 [M, ceil(V/32)]",
    "build_tree": "parents int32 [B, K*L+1]; tokens int64 [B, K*L+1]; multiplicity int32 [B, K*L+1]; "
    "draft_nodes int32 [B, K, L]",
    "grow_tree": "parents int32 [B, nodes]; tokens int64 [B, nodes]",
    "budget": "kept int32 [B]",
    "tree_mask": "mask - [...]; depth int32 [B, N]; positions int64 [B, N]; status int32 [B]",  # -: dtype varies
    "verify_chain": _VERIFIED.format("G"),
    "verify_tree": _VERIFIED.format("max_depth") + "; path int32 [B, max_depth+1]",
}


def taken(op: str) -> tuple[Argument, ...]:
    """Return the op's arguments in the order of its schema."""
    return tuple(x for x in TABLE[op] if x.name)


def results(op: str) -> list[list[str]]:
    """Return the name, dtype and [shape] of each result."""
    return [x.split(" ", 2) for x in RESULTS[op].split("; ")]


@cache
def called(op: str) -> dict[str, str]:
    """Return the name that errors use for each argument of the schema.

    It is the place in the public function, or the argument's own name if it has none or is part of a tuple."""
    return {x.name: x.name if not x.public or x.public[-1].isdigit() else x.public for x in taken(op)}


def plain(op: str) -> tuple[Argument, ...]:
    """Return the arguments of a call without views: the first ones of taken()."""
    return tuple(x for x in taken(op) if not x.is_view)


@cache
def places(op: str) -> dict[str, Argument]:
    """Return the arguments by their places in the public function."""
    found: dict[str, Argument] = {}
    for x in TABLE[op]:
        found.setdefault(x.public, x)
    return {place: x for place, x in found.items() if place}


def sides(op: str) -> list[str]:
    """Return the parameters of the public function that are Rows, in their order."""
    return [x.public.removesuffix(".logits") for x in TABLE[op] if x.public.endswith(".logits")]
