"""Contract checks of streams, hashed embeddings and the draft head: each rule is broken once."""

from __future__ import annotations

import numpy as np
import pytest
from stoker import _native

from op_tools import ints
from test_ops_check import B, C, D, F, K, P, S, b16, f32, good, i32, i64, refuse, refuse_any, u8

WIDE = S * D
EPS = ((0.0, "0"), (-1.0, "-1"), (float("inf"), "inf"), (float("nan"), "nan"))


def half(*shape):
    return np.zeros(shape, np.float16)


@pytest.mark.parametrize("op, field, value, message", [
    # streams
    ("stream_copy", "x", b16(P, D), "expected [*, *] F32, found [3, 64] BF16"),
    ("stream_copy", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("stream_copy", "s", f32(P, WIDE), "expected [3, *, 64] F32, found [3, 128] F32"),
    ("stream_copy", "s", f32(P + 1, S, D), "expected [3, *, 64] F32, found [4, 2, 64] F32"),
    ("stream_add", "x", f32(P, 1, D), "expected [*, *] F32, found [3, 1, 64] F32"),
    ("stream_add", "count", f32(1), "expected [1] I32, found [1] F32"),
    ("stream_add", "s", f32(P, S, D + 1), "expected [3, *, 64] F32, found [3, 2, 65] F32"),
    ("hyper_down", "s", f32(P, WIDE), "expected [*, *, *] F32, found [3, 128] F32"),
    ("hyper_down", "gain", f32(D), "expected [128] F32, found [64] F32"),
    ("hyper_down", "gain", f32(S, D), "expected [128] F32, found [2, 64] F32"),
    ("hyper_down", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("hyper_down", "w__0", f32(5, D), "expected [*, 128] of a weight type, found [5, 64] F32"),
    ("hyper_down", "w__0", ("Q8_1", u8(5, 144), (5, WIDE)),
     "expected [*, 128] of a weight type, found [5, 128] Q8_1"),
    ("hyper_down", "w__1", f32(3, WIDE), "expected [2, 128] of a weight type, found [3, 128] F32"),
    ("hyper_down", "w__1", f32(S, D), "expected [2, 128] of a weight type, found [2, 64] F32"),
    ("hyper_down", "w__1", None, "inject: expected no view, as w[1] is absent"),
    ("hyper_down", "low", b16(P, 6), "expected [3, 5] BF16 or F32, found [3, 6] BF16"),
    ("hyper_down", "low", half(P, 5), "expected [3, 5] BF16 or F32, found [3, 5] F16"),
    ("hyper_down", "factor", f32(P, 3), "expected [3, 2] F32, found [3, 3] F32"),
    ("hyper_down", "factor", b16(P, S), "expected [3, 2] F32, found [3, 2] BF16"),
    ("hyper_down", "inject", None, "expected a view, as w[1] is present"),
    ("hyper_down", "inject", f32(P, 3), "expected [3, 2] F32, found [3, 3] F32"),
    ("hyper_mix", "low", half(P, 32), "expected [*, *] BF16 or F32, found [3, 32] F16"),
    ("hyper_mix", "w", f32(WIDE, 31), "expected [128, 32] of a weight type, found [128, 31] F32"),
    ("hyper_mix", "w", f32(D, 32), "expected [128, 32] of a weight type, found [64, 32] F32"),
    ("hyper_mix", "s", f32(P + 1, S, D), "expected [3, *, *] F32, found [4, 2, 64] F32"),
    ("hyper_mix", "factor", f32(P + 1, S), "expected [3, 2] F32, found [4, 2] F32"),
    ("hyper_mix", "factor", half(P, S), "expected [3, 2] F32, found [3, 2] F16"),
    ("hyper_mix", "gain", f32(D), "expected [128] F32, found [64] F32"),
    ("hyper_mix", "count", i32(1, 1), "expected [1] I32, found [1, 1] I32"),
    ("hyper_mix", "out", b16(P, WIDE), "expected [3, 64] BF16 or F32, found [3, 128] BF16"),
    ("hyper_mix", "out", f32(P, D), "expected BF16 as low, found F32"),
    ("hyper_inject", "x", f32(D), "expected [*, *] F32, found [64] F32"),
    ("hyper_inject", "inject", f32(P), "expected [3, *] F32, found [3] F32"),
    ("hyper_inject", "inject", f32(P, 3), "s: expected [3, 3, 64] F32, found [3, 2, 64] F32"),
    ("hyper_inject", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("hyper_inject", "s", f32(P, S, 9), "expected [3, 2, 64] F32, found [3, 2, 9] F32"),
    # hashed embeddings
    ("ngram_rows", "ids", i32(P, 1), "expected [*] I32, found [3, 1] I32"),
    ("ngram_rows", "tokens", i32(C), "expected [*, *] I32, found [10] I32"),
    ("ngram_rows", "tokens", i32(B, 1), "expected at least 2 positions, found 1"),
    ("ngram_rows", "rows", i32(P + 1, 3), "expected [3, 3] I32, found [4, 3] I32"),
    ("ngram_rows", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("ngram_rows", "mult", ints(1, 3, 5), "expected [*] I64, found [3] I32"),
    ("ngram_rows", "mult", i64(1), "expected at least 2 multipliers, found 1"),
    ("ngram_rows", "size", f32(4), "expected [*] I64, found [4] F32"),
    ("ngram_rows", "size", i64(7, 7, 9),
     "expected heads that are a multiple of the 2 orders, found 3"),
    ("ngram_rows", "offset", i64(0, 7, 14), "expected [4] I64, found [3] I64"),
    ("ngram_rows", "out", i32(P, 3), "expected [3, 4] I32, found [3, 3] I32"),
    ("ngram_rows", "out", np.zeros((P, 4), np.int64), "expected [3, 4] I32, found [3, 4] I64"),
    ("ngram_rows", "eos", -1, "expected at least 0, found -1"),
    ("gather_heads", "table", ("Q8_K", u8(5, 292), (5, 256)),
     "expected [*, *] of a weight type, found [5, 256] Q8_K"),
    ("gather_heads", "piece", None, "expected a view, as piece_rows is given, found none"),
    ("gather_heads", "piece", i64(0, 80), "expected [3] I64, found [2] I64"),
    ("gather_heads", "piece", ints(0, 80, 0), "expected [3] I64, found [3] I32"),
    ("gather_heads", "piece_rows", 0, "expected at least 1, found 0"),
    ("gather_heads", "piece_rows", -2, "expected at least 1, found -2"),
    ("gather_heads", "piece_rows", 3, "piece: expected [2] I64, found [3] I64"),
    ("gather_heads", "ids", i32(P), "expected [*, *] I32, found [3] I32"),
    ("gather_heads", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("gather_heads", "out", b16(P, 3 * D), "expected [3, 256] BF16 or F32, found [3, 192] BF16"),
    ("gather_heads", "out", half(P, 4 * D), "expected [3, 256] BF16 or F32, found [3, 256] F16"),
    ("gather_heads", "scale", float("nan"), "expected a finite number, found nan"),
    ("ple_gate", "key", f32(P, D), "expected [3, 128] F32, found [3, 64] F32"),
    ("ple_gate", "value", f32(P, WIDE), "expected [3, 64] F32, found [3, 128] F32"),
    ("ple_gate", "s", f32(P, WIDE), "expected [*, *, *] F32, found [3, 128] F32"),
    ("ple_gate", "key_gain", f32(D), "expected [128] F32, found [64] F32"),
    ("ple_gate", "query_gain", f32(S, D), "expected [128] F32, found [2, 64] F32"),
    ("ple_gate", "conv_gain", b16(WIDE), "expected [128] F32, found [128] BF16"),
    ("ple_gate", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("ple_gate", "y", f32(P, S, D), "expected [3, 128] F32, found [3, 2, 64] F32"),
    ("ple_gate", "normed", f32(P, D), "expected [3, 128] F32, found [3, 64] F32"),
    # draft head
    ("draft_rows", "slots", u8(B, 31), "expected [*, 32] U8, found [2, 31] U8"),
    ("draft_rows", "chosen", i32(B + 1), "expected [2] I32, found [3] I32"),
    ("draft_rows", "chosen", None, "expected a view, as step is above 0"),
    ("draft_rows", "rows", i32(B + 1, 3), "expected [2, 3] I32, found [3, 3] I32"),
    ("draft_rows", "ids", i32(B, 1), "expected [2] I32, found [2, 1] I32"),
    ("draft_rows", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("draft_rows", "step", -1, "expected 0 .. 14, found -1"),
    ("draft_rows", "step", 15, "expected 0 .. 14, found 15"),
    ("draft_rows", "step", 0, "chosen: expected no view, as step is 0"),
    ("draft_put", "rows", i32(B, 2), "expected [*, 3] I32, found [2, 2] I32"),
    ("draft_put", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("draft_put", "chosen", i32(P), "expected [2] I32, found [3] I32"),
    ("draft_put", "drafts", i32(P, K), "expected [2, *] I32, found [3, 4] I32"),
    ("draft_put", "drafts", i32(B, 16), "expected at most 15 proposals, found 16"),
    ("draft_put", "n_draft", i32(P), "expected [2] I32, found [3] I32"),
    ("draft_put", "step", K, "expected 0 .. 3, found 4"),
    ("draft_put", "step", -1, "expected 0 .. 3, found -1"),
    ("commit_rows", "slots", u8(65, 32), "expected at most 64 slots, found 65"),
    ("commit_rows", "kept", i32(P), "expected [2] I32, found [3] I32"),
    ("commit_rows", "rows", i32(P), "expected [*, 3] I32, found [3] I32"),
    ("commit_rows", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("next_ids", "tokens", i32(B, 1), "expected at least 2 positions, found 1"),
    ("next_ids", "rows", i32(P, 4), "expected [*, 3] I32, found [3, 4] I32"),
    ("next_ids", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("next_ids", "ids", i32(B), "expected [3] I32, found [2] I32"),
    ("mtp_join", "e", f32(P, WIDE), "expected [3, 64] F32, found [3, 128] F32"),
    ("mtp_join", "x", b16(P, S, D), "expected [*, *, *] F32, found [3, 2, 64] BF16"),
    ("mtp_join", "e_gain", f32(WIDE), "expected [64] F32, found [128] F32"),
    ("mtp_join", "gain", f32(D), "expected [128] F32, found [64] F32"),
    ("mtp_join", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("mtp_join", "out", b16(P, S, D), "expected [3, 2, 128] BF16 or F32, found [3, 2, 64] BF16"),
    ("mtp_join", "out", half(P, S, 2 * D),
     "expected [3, 2, 128] BF16 or F32, found [3, 2, 128] F16"),
    ("mtp_join", "n", i32(2), "expected [1] I32, found [2] I32"),
    ("mtp_join", "whole", 2, "expected 0 .. 1, found 2"),
    ("mtp_join", "whole", -1, "expected 0 .. 1, found -1"),
])  # fmt: skip
def test_rule(op, field, value, message):
    name = field.replace("__", "[") + "]" if "__" in field else field
    named = message.split(":")[0] in ("inject", "chosen", "piece", "s")  # the rule of another field
    refuse(op, message if named else f"{name}: {message}", **{field: value})


@pytest.mark.parametrize("op", ["hyper_down", "ple_gate", "mtp_join"])
@pytest.mark.parametrize("value, found", EPS)
def test_eps(op, value, found):
    refuse(op, f"eps: expected a finite number above 0, found {found}", eps=value)


def test_what_may_be_left_out():
    refuse_any("hyper_down", {"w[1]": f32(S, WIDE), "low": f32(P, 5)})
    without = {"table": f32(5, D), "piece_rows": 0}
    refuse("gather_heads", "piece_rows: expected at least 1, found 0", **without)
    for op, gone, changes in (("hyper_down", ("w[1]", "inject"), {}),
                              ("gather_heads", ("piece",), without),
                              ("draft_rows", ("chosen",), {"step": 0})):  # fmt: skip
        run_without(op, gone, changes)


def run_without(op, gone, changes):
    args = {k: v for k, v in (good(op) | changes).items() if k not in gone}
    _native.run_op(op, args, "definition", 1)


def test_strides():
    spread = np.zeros((P, S, 2 * D), F)[:, :, :D]  # rows may be apart, their streams not
    text = "expected a stride of dimension 1 of exactly 256 bytes, found 512"
    refuse("ple_gate", f"s: {text}", s=spread)
    refuse("mtp_join", f"x: {text}", x=spread)
    refuse_any("mtp_join", {"x": np.zeros((P, S + 1, D), F)[:, :S]})
    refuse("mtp_join", "out: expected a stride of dimension 1 of exactly 256 bytes, found 512",
           out=("BF16", np.zeros((P, S, 4 * D), np.uint16)[:, :, : 2 * D], (P, S, 2 * D)))  # fmt: skip
    both = f32(P, S, D)
    refuse("stream_add", "s: expected no overlap with x, found both in buffer 0", s=both,
           x=both[:, 0])  # fmt: skip
