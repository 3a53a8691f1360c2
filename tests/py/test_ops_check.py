"""Contract checks: each rule of each op is broken once, and the message names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stoker import InvalidArgumentError, _native

from op_tools import I32, ISAS, TABLES, bf16, ints

F = np.float32
U8 = np.uint8
P, D, B, C, K = 3, 64, 2, 10, 4
S = 2  # streams
F32_ID, BF16_ID = 0, 30  # of the type, as a constant of a plan
SIZES = {"ctl": 536, "slots": 32, "requests": 136, "pending": 88, "counters": 200, "done": 6168,
         "entry": 32}  # fmt: skip


def f32(*shape):
    return np.zeros(shape, F)


def i32(*shape):
    return np.zeros(shape, I32)


def i64(*values):
    return np.array(values, np.int64)


def u8(*shape):
    return np.zeros((*shape[:-1], -(-shape[-1] // 8)), np.int64).view(U8)[..., : shape[-1]]


def b16(*shape):
    return bf16(np.zeros(shape, np.uint16))


def good(op):
    """Arguments that pass, as a new dict."""
    rows, count = np.full((P, 3), 0, I32), ints(0)
    s = {k: u8(B, n) for k, n in SIZES.items()}
    ctl, window, drafts, n_draft = u8(SIZES["ctl"]), i32(B, C + 1), i32(B, K), i32(B)
    return {
        "ctl_read": {"ring": u8(4, SIZES["ctl"]), "round": np.zeros(1, np.int64), "ctl": ctl},
        "commit": {"ctl": ctl, "slots": s["slots"], "pending": s["pending"], "counters": s["counters"],
                       "tokens": window, "kept": i32(B)},
        "draft_none": {"drafts": drafts, "n_draft": n_draft},
        "draft_planted": {"slots": s["slots"], "counters": s["counters"], "table": window,
                              "accept": ints(1, 2, 3), "drafts": drafts, "n_draft": n_draft, "vocab": 9},
        "draft_ngram": {"slots": s["slots"], "tokens": window, "drafts": drafts, "n_draft": n_draft,
                            "n_max": 3, "n_min": 1},
        "round_rows": {"ctl": ctl, "slots": s["slots"], "requests": s["requests"], "pending": s["pending"],
                           "drafts": drafts, "n_draft": n_draft, "rows": i32(10, 3), "ids": i32(10),
                           "count": count, "span": i32(B, 2), "width": K + 1, "ctx": C},
        "gather_rows": {"table": f32(5, D), "ids": i32(P), "count": count, "out": f32(P, D), "scale": 1.0},
        "rms_norm": {"x": f32(P, D), "gain": f32(D), "count": count, "out": f32(P, D), "eps": 1e-5},
        "linear": {"x": f32(P, D), "count": count, "w[0]": f32(5, D), "bias[0]": f32(5),
                   "y[0]": f32(P, 5), "w[1]": ("Q4_1", u8(7, 40), (7, D)), "y[1]": f32(P, 7)},
        "rope": {"x": f32(P, 2, 8), "freq": f32(4), "rows": rows, "count": count, "out": f32(P, 2, 8), "neox": 1},
        "kv_append": {"k": f32(P, 2, 8), "v": f32(P, 2, 8), "rows": rows, "count": count,
                          "k_cache": b16(B, C, 2, 8), "v_cache": b16(B, C, 2, 8)},
        "attend": {"q": b16(P, 4, 8), "k_cache": b16(B, C, 2, 8), "v_cache": b16(B, C, 2, 8), "rows": rows,
                       "count": count, "out": b16(P, 4, 8), "scale": 1.0, "window": 0, "split": 4},
        "add": {"x": f32(P, D), "count": count, "y": f32(P, D)},
        "copy_rows": {"x": f32(P, D), "count": count, "out": f32(P, D)},
        "gelu_mul": {"gate": f32(P, D), "up": f32(P, D), "count": count, "out": b16(P, D)},
        "silu_mul": {"gate": f32(P, D), "up": f32(P, D), "count": count, "out": b16(P, D)},
        "argmax": {"x": f32(P, D), "count": count, "id": i32(P)},
        "norm_linear": {"x": f32(P, D), "gain": f32(D), "count": count, "w[0]": f32(5, D), "bias[0]": f32(5),
                        "y[0]": f32(P, 5), "w[1]": ("Q4_1", u8(7, 40), (7, D)), "y[1]": f32(P, 7),
                        "eps": 1e-5, "act": F32_ID},
        "norm_glu": {"x": f32(P, D), "gain": f32(D), "count": count, "w[0]": f32(5, D), "w[1]": f32(5, D),
                     "bias[0]": f32(5), "out": b16(P, 5), "eps": 1e-5, "gelu": 0},
        "linear_add": {"x": f32(P, D), "count": count, "w": f32(5, D), "bias": f32(5), "y": f32(P, 5)},
        "linear_parts": {"x": f32(P, 1024), "count": count, "w[0]": f32(5, 1024), "y[0]": f32(2, P, 5),
                         "w[1]": ("Q4_1", u8(7, 640), (7, 1024)), "y[1]": f32(2, P, 7)},
        "norm_add": {"x": f32(P, D), "gain": f32(D), "count": count, "y": f32(P, D), "eps": 1e-5},
        "norm_argmax": {"x": f32(P, D), "gain": f32(D), "count": count, "w": f32(5, D), "bias": f32(5),
                        "id": i32(P), "eps": 1e-5, "act": BF16_ID},
        "rope_attend": {"q": f32(P, 4, 8), "k": f32(P, 2, 8), "v": f32(P, 2, 8), "q_norm": f32(8),
                        "k_norm": f32(8), "freq": f32(4), "rows": rows, "count": count,
                        "k_cache": b16(B, C, 2, 8), "v_cache": b16(B, C, 2, 8), "out": b16(P, 4, 8),
                        "eps": 1e-5, "scale": 1.0, "window": 0, "split": 4, "neox": 1},
        "route_list": {"ids": i32(P, 2), "count": count, "list": u8(2 * P, SIZES["entry"]), "n": i32(1)},
        "expert_glu": {"x": f32(P, D), "list": u8(2 * P, SIZES["entry"]), "n": i32(1), "w[0]": f32(4, 5, D),
                       "w[1]": ("Q4_1", u8(4, 5, 40), (4, 5, D)), "out": f32(2 * P, 5), "gelu": 0},
        "expert_linear": {"x": b16(2 * P, D), "list": u8(2 * P, SIZES["entry"]), "n": i32(1),
                          "w": ("Q4_1", u8(4, 5, 40), (4, 5, D)), "y": f32(2 * P, 5)},
        "expert_sum": {"x": f32(2 * P, D), "weight": f32(P, 2), "count": count, "y": f32(P, D)},
        "stream_copy": {"x": f32(P, D), "count": count, "s": f32(P, S, D)},
        "stream_add": {"x": f32(P, D), "count": count, "s": f32(P, S, D)},
        "hyper_down": {"s": f32(P, S, D), "gain": f32(S * D), "count": count,
                       "w[0]": ("Q4_1", u8(5, 80), (5, S * D)), "w[1]": f32(S, S * D), "low": b16(P, 5),
                       "factor": f32(P, S), "inject": f32(P, S), "eps": 1e-6},
        "hyper_mix": {"low": b16(P, 32), "w": ("Q4_1", u8(S * D, 20), (S * D, 32)), "s": f32(P, S, D),
                      "factor": f32(P, S), "gain": f32(S * D), "count": count, "out": b16(P, D)},
        "hyper_inject": {"x": f32(P, D), "inject": f32(P, S), "count": count, "s": f32(P, S, D)},
        "ngram_rows": {"ids": i32(P), "tokens": window, "rows": rows, "count": count, "mult": i64(1, 3, 5),
                       "size": i64(7, 7, 9, 9), "offset": i64(0, 7, 14, 23), "out": i32(P, 4), "eos": 0},
        "gather_heads": {"table": ("Q4_1", u8(5, 40), (5, D)), "piece": i64(0, 80, 0), "ids": i32(P, 4),
                         "count": count, "out": b16(P, 4 * D), "piece_rows": 2, "scale": 1.0},
        "ple_gate": {"key": f32(P, S * D), "value": f32(P, D), "s": f32(P, S, D), "key_gain": f32(S * D),
                     "query_gain": f32(S * D), "conv_gain": f32(S * D), "count": count,
                     "y": f32(P, S * D), "normed": f32(P, S * D), "eps": 1e-6},
        "draft_rows": {"slots": s["slots"], "chosen": i32(B), "rows": i32(B, 3), "ids": i32(B),
                       "count": count, "step": 1},
        "draft_put": {"rows": i32(B, 3), "count": count, "chosen": i32(B), "drafts": drafts,
                      "n_draft": n_draft, "step": K - 1},
        "commit_rows": {"slots": s["slots"], "kept": i32(B), "rows": rows, "count": count},
        "next_ids": {"tokens": window, "rows": rows, "count": count, "ids": i32(P)},
        "mtp_join": {"e": f32(P, D), "x": f32(P, S, D), "e_gain": f32(D), "gain": f32(S * D),
                     "count": count, "out": b16(P, S, 2 * D), "n": i32(1), "eps": 1e-6, "whole": 1},
        "keep_rows": {"x": f32(P, D), "rows": rows, "count": count, "pending": b16(B, 5, D)},
        "take_rows": {"pending": f32(B, 5, D), "rows": rows, "count": count, "out": f32(P, D)},
        "window_commit": {"pending": b16(B, 5, D), "kept": i32(B), "window": b16(B, 3, D)},
        "window_push": {"x": f32(P, D), "rows": rows, "count": count, "window": b16(B, 3, D)},
        "conv": {"x": f32(P, D), "taps": f32(D, 3), "window": b16(B, 4, D), "rows": rows, "count": count,
                 "out": f32(P, D), "dilation": 2},
        "gdn_inputs": {"c": f32(P, 2 * 16 + 4 * 5), "a": f32(P, 4), "b": f32(P, 4), "coef": f32(4),
                       "dt": f32(4), "count": count, "q": f32(P, 2, 8), "in": f32(P, 16 + 4 * 7)},
        "gdn_step": {"q": f32(P, 2, 8), "in": f32(P, 16 + 4 * 7), "key": i32(4), "m": f32(B, 4, 8, 5),
                     "rows": rows, "count": count, "out": f32(P, 4, 5)},
        "gdn_scan": {"q": f32(P, 2, 8), "in": f32(P, 16 + 4 * 7), "key": i32(4), "m": f32(B, 4, 8, 5),
                     "rows": rows, "count": count, "out": f32(P, 4, 5)},
        "gdn_fold": {"pending": f32(B, 6, 16 + 4 * 7), "kept": i32(B), "key": i32(4), "m": f32(B, 4, 8, 5)},
        "gated_norm": {"x": f32(P, 4, 8), "gate": f32(P, 32), "gain": f32(8), "count": count,
                       "out": b16(P, 32), "eps": 1e-6},
        "index_append": {"k": f32(P, D), "gain": f32(D), "freq": f32(8), "rows": rows, "count": count,
                         "raw": b16(B, C, D), "pooled": b16(B, 3, D), "eps": 1e-5, "ratio": 4},
        "block_topk": {"q": b16(P, 2, D), "pooled": b16(B, 3, D), "rows": rows, "count": count,
                       "out": i32(P, K), "scale": 1.0, "ratio": 4},
        "attend_blocks": {"q": b16(P, 4, 8), "gate": f32(P, 4, 8), "k_cache": b16(B, C, 2, 8),
                          "v_cache": b16(B, C, 2, 8), "blocks": i32(P, K), "rows": rows, "count": count,
                          "out": b16(P, 4, 8), "scale": 1.0, "ratio": 4, "split": 4},
        "route_topk": {"logits": f32(P, 9), "count": count, "ids": i32(P, 2), "weight": f32(P, 2), "normed": 1},
        "route_force": {"table": i32(7, 2), "rows": rows, "count": count, "ids": i32(P, 2), "stride": 3},
        "gate_add": {"x": f32(P, D), "gate": f32(P, 1), "count": count, "y": f32(P, D)},
        "linear_argmax": {"x": b16(P, D), "count": count, "w": f32(5, D), "bias": f32(5), "id": i32(P)},
        "accept": {"slots": s["slots"], "requests": s["requests"], "drafts": drafts, "n_draft": n_draft,
                       "span": i32(B, 2), "chosen": i32(P), "pending": s["pending"], "ctx": C},
        "publish": {"ctl": ctl, "slots": s["slots"], "pending": s["pending"], "kept": i32(B),
                        "span": i32(B, 2), "round": np.zeros(1, np.int64), "ring": u8(4, SIZES["done"])},
    }[op]  # fmt: skip


def refuse(op, message, **changes):
    args = good(op) | {
        k.replace("__", "[") + "]" if "__" in k else k: v for k, v in changes.items()
    }
    with pytest.raises(InvalidArgumentError) as e:
        _native.run_op(op, {k: v for k, v in args.items() if v is not None}, "definition", 1)
    assert str(e.value) == f"{op}: {message}"
    assert isinstance(e.value, ValueError)
    assert e.value.code == "INVALID"


OPS = list(_native.op_list())


def test_every_op_is_here_and_passes():
    for op in OPS:
        for table in TABLES:
            _native.run_op(op, good(op), table, 2)


@pytest.mark.parametrize("op", OPS)
def test_required_views(op):
    for name, kind, mode in _native.op_list()[op]:
        if kind == "view" and "optional" not in mode:
            refuse(op, f"{name}: expected a view, found none",
                   **{name.replace("[", "__").replace("]", ""): None})  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_outputs_are_writable_and_overlap_nothing(op):
    fields = _native.op_list()[op]
    for name, kind, mode in fields:
        args = good(op)
        if kind != "view" or "out" not in mode or name not in args:
            continue
        value = args[name]
        array = value[1] if isinstance(value, tuple) else value
        array.flags.writeable = False
        key = name.replace("[", "__").replace("]", "")
        refuse(op, f"{name}: expected a writable array, found a read-only one", **{key: value})
        array.flags.writeable = True
        # A field of the same type and shape is the easiest way to overlap.
        for other, _, _ in fields:
            twin = args.get(other)
            if other == name or type(twin) is not type(value) or isinstance(value, (int, float)):
                continue
            same = (value[0], value[2]) == (twin[0], twin[2]) if isinstance(value, tuple) else (
                twin.dtype == value.dtype and twin.shape == value.shape)  # fmt: skip
            if same:
                pair = {key: value, other.replace("[", "__").replace("]", ""): value}
                with pytest.raises(InvalidArgumentError, match="expected no overlap with"):
                    refuse_any(op, pair)


def refuse_any(op, changes):
    args = good(op) | {
        k.replace("__", "[") + "]" if "__" in k else k: v for k, v in changes.items()
    }
    _native.run_op(op, args, "definition", 1)


@pytest.mark.parametrize("op, field, value, message", [
    # every view: type, rank, dimensions
    ("add", "x", np.zeros((P, D), np.float16), "expected [*, *] F32, found [3, 64] F16"),
    ("add", "x", f32(P, D, 1), "expected [*, *] F32, found [3, 64, 1] F32"),
    ("add", "x", f32(D), "expected [*, *] F32, found [64] F32"),
    ("add", "y", f32(P, D + 1), "expected [3, 64] F32, found [3, 65] F32"),
    ("add", "y", f32(P + 1, D), "expected [3, 64] F32, found [4, 64] F32"),
    ("add", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("add", "count", np.zeros(1, np.int64), "expected [1] I32, found [1] I64"),
    ("copy_rows", "x", i32(P, D), "expected [*, *] F32, found [3, 64] I32"),
    ("copy_rows", "out", f32(P, 9), "expected [3, 64] F32, found [3, 9] F32"),
    ("gather_rows", "table", ("Q8_K", u8(5, 292), (5, 256)),
     "expected [*, *] of a weight type, found [5, 256] Q8_K"),
    ("gather_rows", "ids", i32(P, 1), "expected [*] I32, found [3, 1] I32"),
    ("gather_rows", "out", f32(P, 65), "expected [3, 64] F32, found [3, 65] F32"),
    ("gather_rows", "scale", float("inf"), "expected a finite number, found inf"),
    ("rms_norm", "x", np.zeros((P, D), np.float16), "expected [*, *] F32, found [3, 64] F16"),
    ("rms_norm", "gain", f32(D - 1), "expected [64] F32, found [63] F32"),
    ("rms_norm", "out", np.zeros((P, D), np.float16),
     "expected [3, 64] BF16 or F32, found [3, 64] F16"),
    ("rms_norm", "eps", 0.0, "expected a finite number above 0, found 0"),
    ("rms_norm", "eps", float("nan"), "expected a finite number above 0, found nan"),
    ("linear", "x", np.zeros((P, D), np.float16),
     "expected [*, *] BF16 or F32, found [3, 64] F16"),
    ("linear", "w__0", f32(5, D + 1), "expected [*, 64] of a weight type, found [5, 65] F32"),
    ("linear", "w__1", ("Q4_1", u8(7, 60), (7, 96)),
     "expected [*, 64] of a weight type, found [7, 96] Q4_1"),
    ("linear", "w__1", ("Q8_1", u8(7, 72), (7, D)),
     "expected [*, 64] of a weight type, found [7, 64] Q8_1"),
    ("linear", "y__0", f32(P, 6), "expected [3, 5] F32, found [3, 6] F32"),
    ("linear", "y__1", None, "expected a view, as w[1] is present"),
    ("linear", "y__2", f32(P, 1), "expected no view, as w[2] is absent"),
    ("linear", "bias__0", f32(4), "expected [5] F32, found [4] F32"),
    ("linear", "bias__3", f32(4), "expected no view, as w[3] is absent"),
    ("linear", "w__3", f32(5, D), "expected segments without a gap, found none before this one"),
    ("rope", "x", f32(P, D), "expected [*, *, *] F32, found [3, 64] F32"),
    ("rope", "freq", f32(5), "expected at most 4 frequencies for heads of 8, found 5"),
    ("rope", "rows", i32(P, 2), "expected [3, 3] I32, found [3, 2] I32"),
    ("rope", "out", f32(P, 2, 9), "expected [3, 2, 8] BF16 or F32, found [3, 2, 9] F32"),
    ("rope", "neox", 2, "expected 0 .. 1, found 2"),
    ("kv_append", "v", f32(P, 2, 9), "expected [3, 2, 8] BF16 or F32, found [3, 2, 9] F32"),
    ("kv_append", "rows", i32(P + 1, 3), "expected [3, 3] I32, found [4, 3] I32"),
    ("kv_append", "k_cache", b16(B, C, 2, 9),
     "expected [*, *, 2, 8] BF16 or F32, found [2, 10, 2, 9] BF16"),
    ("kv_append", "v_cache", b16(B, C + 1, 2, 8),
     "expected [2, 10, 2, 8] BF16 or F32, found [2, 11, 2, 8] BF16"),
    ("kv_append", "v_cache", f32(B, C, 2, 8), "expected BF16 as k_cache, found F32"),
    ("attend", "q", b16(P, 4), "expected [*, *, *] BF16 or F32, found [3, 4] BF16"),
    ("attend", "k_cache", b16(B, C, 2, 9),
     "expected [*, *, *, 8] BF16 or F32, found [2, 10, 2, 9] BF16"),
    ("attend", "k_cache", b16(B, C, 3, 8), "expected heads that divide the 4 of q, found 3"),
    ("attend", "k_cache", f32(B, C, 2, 8), "expected BF16 as q, found F32"),
    ("attend", "v_cache", b16(B, C, 1, 8),
     "expected [2, 10, 2, 8] BF16 or F32, found [2, 10, 1, 8] BF16"),
    ("attend", "v_cache", f32(B, C, 2, 8), "expected BF16 as k_cache, found F32"),
    ("attend", "rows", i32(P, 4), "expected [3, 3] I32, found [3, 4] I32"),
    ("attend", "out", f32(P, 4, 8), "expected BF16 as q, found F32"),
    ("attend", "out", b16(P, 2, 8), "expected [3, 4, 8] BF16 or F32, found [3, 2, 8] BF16"),
    ("attend", "scale", float("nan"), "expected a finite number, found nan"),
    ("attend", "window", -1, "expected at least 0, found -1"),
    ("attend", "split", 0, "expected at least 1, found 0"),
    ("gelu_mul", "gate", f32(P), "expected [*, *] F32, found [3] F32"),
    ("gelu_mul", "up", f32(P, 1), "expected [3, 64] F32, found [3, 1] F32"),
    ("gelu_mul", "out", b16(P, 1), "expected [3, 64] BF16 or F32, found [3, 1] BF16"),
    ("silu_mul", "gate", f32(P), "expected [*, *] F32, found [3] F32"),
    ("silu_mul", "up", f32(P, 1), "expected [3, 64] F32, found [3, 1] F32"),
    ("silu_mul", "out", b16(P, 1), "expected [3, 64] BF16 or F32, found [3, 1] BF16"),
    ("argmax", "x", i32(P, D), "expected [*, *] F32, found [3, 64] I32"),
    ("argmax", "id", i32(P + 1), "expected [3] I32, found [4] I32"),
    # experts
    ("route_list", "ids", i32(P), "expected [*, *] I32, found [3] I32"),
    ("route_list", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("route_list", "list", u8(5, 32), "expected [6, 32] U8, found [5, 32] U8"),
    ("route_list", "list", u8(6, 24), "expected [6, 32] U8, found [6, 24] U8"),
    ("route_list", "n", i32(2), "expected [1] I32, found [2] I32"),
    ("expert_glu", "x", np.zeros((P, D), np.float16),
     "expected [*, *] BF16 or F32, found [3, 64] F16"),
    ("expert_glu", "w__0", f32(5, D), "expected [*, *, 64] of a weight type, found [5, 64] F32"),
    ("expert_glu", "w__0", f32(4, 5, 63), "expected [*, *, 64] of a weight type, found [4, 5, 63] F32"),
    ("expert_glu", "w__1", f32(3, 5, D), "expected [4, 5, 64] of a weight type, found [3, 5, 64] F32"),
    ("expert_glu", "w__1", ("Q8_1", u8(4, 5, 72), (4, 5, D)),
     "expected [4, 5, 64] of a weight type, found [4, 5, 64] Q8_1"),
    ("expert_glu", "out", f32(6, 6), "expected [*, 5] BF16 or F32, found [6, 6] F32"),
    ("expert_glu", "out", b16(6, 5), "expected F32 as x, found BF16"),
    ("expert_glu", "out", f32(7, 5), "expected routes that are a multiple of the 3 rows of x, found 7"),
    ("expert_glu", "list", u8(7, 32), "expected [6, 32] U8, found [7, 32] U8"),
    ("expert_glu", "n", np.zeros(1, np.int64), "expected [1] I32, found [1] I64"),
    ("expert_glu", "gelu", -1, "expected 0 .. 1, found -1"),
    ("expert_linear", "x", i32(6, D), "expected [*, *] BF16 or F32, found [6, 64] I32"),
    ("expert_linear", "list", u8(5, 32), "expected [6, 32] U8, found [5, 32] U8"),
    ("expert_linear", "n", i32(1, 1), "expected [1] I32, found [1, 1] I32"),
    ("expert_linear", "w", f32(4, 5, 65), "expected [*, *, 64] of a weight type, found [4, 5, 65] F32"),
    ("expert_linear", "y", f32(6, 6), "expected [6, 5] F32, found [6, 6] F32"),
    ("expert_linear", "y", b16(6, 5), "expected [6, 5] F32, found [6, 5] BF16"),
    ("expert_sum", "weight", f32(P), "expected [*, *] F32, found [3] F32"),
    ("expert_sum", "x", f32(5, D), "expected [6, *] F32, found [5, 64] F32"),
    ("expert_sum", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("expert_sum", "y", f32(P, D - 1), "expected [3, 64] F32, found [3, 63] F32"),
    # rows that are kept, recurrences
    ("keep_rows", "x", b16(P, D), "expected [*, *] F32, found [3, 64] BF16"),
    ("keep_rows", "rows", i32(P + 1, 3), "expected [3, 3] I32, found [4, 3] I32"),
    ("keep_rows", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("keep_rows", "pending", b16(B, 5, 63), "expected [*, *, 64] BF16 or F32, found [2, 5, 63] BF16"),
    ("keep_rows", "pending", np.zeros((B, 5, D), np.float16),
     "expected [*, *, 64] BF16 or F32, found [2, 5, 64] F16"),
    ("take_rows", "pending", i32(B, 5, D), "expected [*, *, *] BF16 or F32, found [2, 5, 64] I32"),
    ("take_rows", "out", f32(P, 63), "expected [*, 64] F32, found [3, 63] F32"),
    ("take_rows", "out", b16(P, D), "expected [*, 64] F32, found [3, 64] BF16"),
    ("take_rows", "rows", i32(P, 2), "expected [3, 3] I32, found [3, 2] I32"),
    ("take_rows", "count", f32(1), "expected [1] I32, found [1] F32"),
    ("window_commit", "pending", b16(B, D), "expected [*, *, *] BF16 or F32, found [2, 64] BF16"),
    ("window_commit", "kept", i32(B + 1), "expected [2] I32, found [3] I32"),
    ("window_commit", "window", b16(B + 1, 3, D),
     "expected [2, *, 64] BF16 or F32, found [3, 3, 64] BF16"),
    ("window_commit", "window", b16(B, 3, 9), "expected [2, *, 64] BF16 or F32, found [2, 3, 9] BF16"),
    ("window_commit", "window", f32(B, 3, D), "expected BF16 as pending, found F32"),
    ("window_push", "x", f32(P), "expected [*, *] F32, found [3] F32"),
    ("window_push", "rows", i32(P), "expected [3, 3] I32, found [3] I32"),
    ("window_push", "count", i32(1, 1), "expected [1] I32, found [1, 1] I32"),
    ("window_push", "window", b16(B, 3, 9), "expected [*, *, 64] BF16 or F32, found [2, 3, 9] BF16"),
    ("conv", "x", b16(P, D), "expected [*, *] F32, found [3, 64] BF16"),
    ("conv", "taps", f32(63, 3), "expected [64, *] F32, found [63, 3] F32"),
    ("conv", "taps", f32(D, 1), "expected at least 2 taps, found 1"),
    ("conv", "dilation", 0, "expected at least 1, found 0"),
    ("conv", "window", b16(B, 2, D), "expected [*, 4, 64] BF16 or F32, found [2, 2, 64] BF16"),
    ("conv", "window", b16(B, 4, 9), "expected [*, 4, 64] BF16 or F32, found [2, 4, 9] BF16"),
    ("conv", "window", i32(B, 4, D), "expected [*, 4, 64] BF16 or F32, found [2, 4, 64] I32"),
    ("conv", "rows", i32(2, 3), "expected [3, 3] I32, found [2, 3] I32"),
    ("conv", "count", i32(3), "expected [1] I32, found [3] I32"),
    ("conv", "out", f32(P, 65), "expected [3, 64] F32, found [3, 65] F32"),
    ("gdn_inputs", "c", f32(P), "expected [*, *] F32, found [3] F32"),
    ("gdn_inputs", "c", f32(P, 53), "expected 32 columns of q and k and a multiple of 4 of v, found 53"),
    ("gdn_inputs", "c", f32(P, 32), "expected 32 columns of q and k and a multiple of 4 of v, found 32"),
    ("gdn_inputs", "a", f32(P + 1, 4), "expected [3, *] F32, found [4, 4] F32"),
    ("gdn_inputs", "b", f32(P, 3), "expected [3, 4] F32, found [3, 3] F32"),
    ("gdn_inputs", "coef", f32(5), "expected [4] F32, found [5] F32"),
    ("gdn_inputs", "dt", f32(1), "expected [4] F32, found [1] F32"),
    ("gdn_inputs", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("gdn_inputs", "q", f32(P, 16), "expected [3, *, *] F32, found [3, 16] F32"),
    ("gdn_inputs", "in", f32(P, 43), "expected [3, 44] F32, found [3, 43] F32"),
    ("gdn_fold", "pending", b16(B, 6, 44), "expected [*, *, *] F32, found [2, 6, 44] BF16"),
    ("gdn_fold", "pending", f32(B, 6, 45),
     "expected a multiple of 8 columns of k and 28 more, found 45"),
    ("gdn_fold", "pending", f32(B, 6, 28),
     "expected a multiple of 8 columns of k and 28 more, found 28"),
    ("gdn_fold", "kept", i32(1), "expected [2] I32, found [1] I32"),
    ("gdn_fold", "key", i32(2), "expected [4] I32, found [2] I32"),
    ("gdn_fold", "m", f32(1, 4, 8, 5), "expected [2, *, *, *] F32, found [1, 4, 8, 5] F32"),
    ("gated_norm", "x", f32(P, 32), "expected [*, *, *] F32, found [3, 32] F32"),
    ("gated_norm", "gate", f32(P, 31), "expected [3, 32] F32, found [3, 31] F32"),
    ("gated_norm", "gain", f32(32), "expected [8] F32, found [32] F32"),
    ("gated_norm", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("gated_norm", "out", b16(P, 31), "expected [3, 32] BF16 or F32, found [3, 31] BF16"),
    ("gated_norm", "eps", 0.0, "expected a finite number above 0, found 0"),
    ("expert_glu", "at__0", np.zeros(5, np.int64), "expected [4] I64, found [5] I64"),
    ("expert_glu", "at__1", i32(4), "expected [4] I64, found [4] I32"),
    ("expert_linear", "at", np.zeros((4, 1), np.int64), "expected [4] I64, found [4, 1] I64"),
    # block-sparse attention
    ("index_append", "k", b16(P, D), "expected [*, *] F32, found [3, 64] BF16"),
    ("index_append", "gain", f32(D + 1), "expected [64] F32, found [65] F32"),
    ("index_append", "freq", f32(33), "expected at most 32 frequencies for heads of 64, found 33"),
    ("index_append", "rows", i32(P, 2), "expected [3, 3] I32, found [3, 2] I32"),
    ("index_append", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("index_append", "raw", b16(B, C, 8), "expected [*, *, 64] BF16 or F32, found [2, 10, 8] BF16"),
    ("index_append", "raw", b16(B, C, 1, D),
     "expected [*, *, 64] BF16 or F32, found [2, 10, 1, 64] BF16"),
    ("index_append", "pooled", b16(B, 2, D),
     "expected [2, 3, 64] BF16 or F32, found [2, 2, 64] BF16"),
    ("index_append", "pooled", b16(1, 3, D),
     "expected [2, 3, 64] BF16 or F32, found [1, 3, 64] BF16"),
    ("index_append", "pooled", f32(B, 3, D), "expected BF16 as raw, found F32"),
    ("index_append", "ratio", 0, "expected at least 1, found 0"),
    ("index_append", "eps", 0.0, "expected a finite number above 0, found 0"),
    ("block_topk", "q", b16(P, D), "expected [*, *, *] BF16 or F32, found [3, 64] BF16"),
    ("block_topk", "pooled", b16(B, 3, 8), "expected [*, *, 64] BF16 or F32, found [2, 3, 8] BF16"),
    ("block_topk", "pooled", f32(B, 3, D), "expected BF16 as q, found F32"),
    ("block_topk", "rows", i32(4, 3), "expected [3, 3] I32, found [4, 3] I32"),
    ("block_topk", "count", i32(1, 1), "expected [1] I32, found [1, 1] I32"),
    ("block_topk", "out", i32(4, K), "expected [3, *] I32, found [4, 4] I32"),
    ("block_topk", "out", f32(P, K), "expected [3, *] I32, found [3, 4] F32"),
    ("block_topk", "scale", float("inf"), "expected a finite number, found inf"),
    ("block_topk", "ratio", -1, "expected at least 1, found -1"),
    ("attend_blocks", "q", b16(P, 4), "expected [*, *, *] BF16 or F32, found [3, 4] BF16"),
    ("attend_blocks", "gate", b16(P, 4, 8), "expected [3, 4, 8] F32, found [3, 4, 8] BF16"),
    ("attend_blocks", "gate", f32(P, 4, 9), "expected [3, 4, 8] F32, found [3, 4, 9] F32"),
    ("attend_blocks", "k_cache", b16(B, C, 2, 9),
     "expected [*, *, *, 8] BF16 or F32, found [2, 10, 2, 9] BF16"),
    ("attend_blocks", "k_cache", b16(B, C, 3, 8), "expected heads that divide the 4 of q, found 3"),
    ("attend_blocks", "k_cache", f32(B, C, 2, 8), "expected BF16 as q, found F32"),
    ("attend_blocks", "v_cache", b16(B, C, 1, 8),
     "expected [2, 10, 2, 8] BF16 or F32, found [2, 10, 1, 8] BF16"),
    ("attend_blocks", "v_cache", f32(B, C, 2, 8), "expected BF16 as q, found F32"),
    ("attend_blocks", "blocks", i32(P), "expected [3, *] I32, found [3] I32"),
    ("attend_blocks", "blocks", i32(2, K), "expected [3, *] I32, found [2, 4] I32"),
    ("attend_blocks", "rows", i32(P, 4), "expected [3, 3] I32, found [3, 4] I32"),
    ("attend_blocks", "count", f32(1), "expected [1] I32, found [1] F32"),
    ("attend_blocks", "out", f32(P, 4, 8), "expected BF16 as q, found F32"),
    ("attend_blocks", "out", b16(P, 2, 8), "expected [3, 4, 8] BF16 or F32, found [3, 2, 8] BF16"),
    ("attend_blocks", "scale", float("nan"), "expected a finite number, found nan"),
    ("attend_blocks", "ratio", 0, "expected at least 1, found 0"),
    ("attend_blocks", "split", 0, "expected at least 1, found 0"),
    # routing
    ("route_topk", "logits", b16(P, 9), "expected [*, *] F32, found [3, 9] BF16"),
    ("route_topk", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("route_topk", "ids", i32(4, 2), "expected [3, *] I32, found [4, 2] I32"),
    ("route_topk", "ids", i32(P, 10), "expected at most the 9 of logits in a row, found 10"),
    ("route_topk", "weight", f32(P, 3), "expected [3, 2] F32, found [3, 3] F32"),
    ("route_topk", "normed", 2, "expected 0 .. 1, found 2"),
    ("route_force", "ids", f32(P, 2), "expected [*, *] I32, found [3, 2] F32"),
    ("route_force", "table", i32(7, 3), "expected [*, 2] I32, found [7, 3] I32"),
    ("route_force", "table", f32(7, 2), "expected [*, 2] I32, found [7, 2] F32"),
    ("route_force", "rows", i32(2, 3), "expected [3, 3] I32, found [2, 3] I32"),
    ("route_force", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("route_force", "stride", -1, "expected 0 .. 1048576, found -1"),
    ("route_force", "stride", (1 << 20) + 1, "expected 0 .. 1048576, found 1048577"),
    ("gate_add", "x", b16(P, D), "expected [*, *] F32, found [3, 64] BF16"),
    ("gate_add", "gate", f32(P), "expected [3, 1] F32, found [3] F32"),
    ("gate_add", "gate", f32(P, 2), "expected [3, 1] F32, found [3, 2] F32"),
    ("gate_add", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("gate_add", "y", f32(P, 9), "expected [3, 64] F32, found [3, 9] F32"),
    # fused ops
    ("linear_argmax", "x", np.zeros((P, D), np.float16),
     "expected [*, *] BF16 or F32, found [3, 64] F16"),
    ("linear_argmax", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("linear_argmax", "w", f32(5, 9), "expected [*, 64] of a weight type, found [5, 9] F32"),
    ("linear_argmax", "bias", f32(6), "expected [5] F32, found [6] F32"),
    ("linear_argmax", "id", i32(4), "expected [3] I32, found [4] I32"),
    ("norm_linear", "x", b16(P, D), "expected [*, *] F32, found [3, 64] BF16"),
    ("norm_linear", "gain", f32(D - 1), "expected [64] F32, found [63] F32"),
    ("norm_linear", "count", i32(2), "expected [1] I32, found [2] I32"),
    ("norm_linear", "w__1", ("Q4_1", u8(7, 60), (7, 96)),
     "expected [*, 64] of a weight type, found [7, 96] Q4_1"),
    ("norm_linear", "w__3", f32(5, D), "expected segments without a gap, found none before this one"),
    ("norm_linear", "y__0", f32(P, 6), "expected [3, 5] F32, found [3, 6] F32"),
    ("norm_linear", "y__1", None, "expected a view, as w[1] is present"),
    ("norm_linear", "bias__3", f32(4), "expected no view, as w[3] is absent"),
    ("norm_linear", "scale__2", f32(1, 1), "expected no view, as w[2] is absent"),
    ("norm_linear", "eps", 0.0, "expected a finite number above 0, found 0"),
    ("norm_linear", "act", 1, "expected BF16 or F32, found F16 (type id 1)"),
    ("norm_linear", "act", -1, "expected BF16 or F32, found ? (type id -1)"),
    ("norm_glu", "x", f32(P), "expected [*, *] F32, found [3] F32"),
    ("norm_glu", "gain", f32(D, 1), "expected [64] F32, found [64, 1] F32"),
    ("norm_glu", "w__0", f32(5, D + 1), "expected [*, 64] of a weight type, found [5, 65] F32"),
    ("norm_glu", "w__1", f32(6, D), "expected [5, 64] of a weight type, found [6, 64] F32"),
    ("norm_glu", "bias__1", f32(6), "expected [5] F32, found [6] F32"),
    ("norm_glu", "out", b16(P, 6), "expected [3, 5] BF16 or F32, found [3, 6] BF16"),
    ("norm_glu", "out", np.zeros((P, 5), np.float16),
     "expected [3, 5] BF16 or F32, found [3, 5] F16"),
    ("norm_glu", "eps", float("inf"), "expected a finite number above 0, found inf"),
    ("norm_glu", "gelu", 2, "expected 0 .. 1, found 2"),
    ("linear_add", "x", np.zeros((P, D), np.float16),
     "expected [*, *] BF16 or F32, found [3, 64] F16"),
    ("linear_add", "w", f32(5, D + 1), "expected [*, 64] of a weight type, found [5, 65] F32"),
    ("linear_add", "bias", f32(4), "expected [5] F32, found [4] F32"),
    ("linear_add", "y", f32(P, 6), "expected [3, 5] F32, found [3, 6] F32"),
    ("linear_add", "y", b16(P, 5), "expected [3, 5] F32, found [3, 5] BF16"),
    ("linear_parts", "x", np.zeros((P, 1024), np.float16),
     "expected [*, *] BF16 or F32, found [3, 1024] F16"),
    ("linear_parts", "x", f32(P, 1280),
     "expected a multiple of 256 columns in each of 2 parts, found 1280 in all"),
    ("linear_parts", "x", f32(P, 100),
     "expected a multiple of 256 columns in each of 2 parts, found 100 in all"),
    ("linear_parts", "w__0", f32(5, 512), "expected [*, 1024] of a weight type, found [5, 512] F32"),
    ("linear_parts", "w__3", f32(5, 1024),
     "expected segments without a gap, found none before this one"),
    ("linear_parts", "y__0", f32(P, 5), "expected [*, 3, *] F32, found [3, 5] F32"),
    ("linear_parts", "y__0", f32(2, P, 6), "expected [2, 3, 5] F32, found [2, 3, 6] F32"),
    ("linear_parts", "y__0", b16(2, P, 5), "expected [*, 3, *] F32, found [2, 3, 5] BF16"),
    ("linear_parts", "y__0", f32(33, P, 5), "expected 1 .. 32 parts, found 33"),
    ("linear_parts", "y__1", f32(4, P, 7), "expected [2, 3, 7] F32, found [4, 3, 7] F32"),
    ("linear_parts", "y__1", None, "expected a view, as w[1] is present"),
    ("linear_parts", "y__2", f32(2, P, 7), "expected no view, as w[2] is absent"),
    ("norm_add", "gain", f32(D + 1), "expected [64] F32, found [65] F32"),
    ("norm_add", "y", f32(P + 1, D), "expected [3, 64] F32, found [4, 64] F32"),
    ("norm_add", "eps", -1.0, "expected a finite number above 0, found -1"),
    ("norm_argmax", "x", b16(P, D), "expected [*, *] F32, found [3, 64] BF16"),
    ("norm_argmax", "w", f32(D, 5), "expected [*, 64] of a weight type, found [64, 5] F32"),
    ("norm_argmax", "bias", f32(6), "expected [5] F32, found [6] F32"),
    ("norm_argmax", "id", i32(P + 1), "expected [3] I32, found [4] I32"),
    ("norm_argmax", "eps", float("nan"), "expected a finite number above 0, found nan"),
    ("norm_argmax", "act", 26, "expected BF16 or F32, found I32 (type id 26)"),
    ("rope_attend", "q", b16(P, 4, 8), "expected [*, *, *] F32, found [3, 4, 8] BF16"),
    ("rope_attend", "k", f32(P, 2, 9), "expected [3, *, 8] F32, found [3, 2, 9] F32"),
    ("rope_attend", "k", f32(P, 3, 8), "expected heads that divide the 4 of q, found 3"),
    ("rope_attend", "v", f32(P, 1, 8), "expected [3, 2, 8] F32, found [3, 1, 8] F32"),
    ("rope_attend", "q_norm", f32(9), "expected [8] F32, found [9] F32"),
    ("rope_attend", "k_norm", f32(7), "expected [8] F32, found [7] F32"),
    ("rope_attend", "freq", f32(5), "expected at most 4 frequencies for heads of 8, found 5"),
    ("rope_attend", "rows", i32(P, 2), "expected [3, 3] I32, found [3, 2] I32"),
    ("rope_attend", "k_cache", b16(B, C, 1, 8),
     "expected [*, *, 2, 8] BF16 or F32, found [2, 10, 1, 8] BF16"),
    ("rope_attend", "v_cache", b16(B, C + 1, 2, 8),
     "expected [2, 10, 2, 8] BF16 or F32, found [2, 11, 2, 8] BF16"),
    ("rope_attend", "v_cache", f32(B, C, 2, 8), "expected BF16 as k_cache, found F32"),
    ("rope_attend", "out", f32(P, 4, 8), "expected BF16 as k_cache, found F32"),
    ("rope_attend", "out", b16(P, 2, 8), "expected [3, 4, 8] BF16 or F32, found [3, 2, 8] BF16"),
    ("rope_attend", "eps", 0.0, "expected a finite number above 0, found 0"),
    ("rope_attend", "scale", float("nan"), "expected a finite number, found nan"),
    ("rope_attend", "window", -1, "expected at least 0, found -1"),
    ("rope_attend", "split", 0, "expected at least 1, found 0"),
    ("rope_attend", "neox", 2, "expected 0 .. 1, found 2"),
    # round ops
    ("ctl_read", "ring", u8(4, 528), "expected [*, 536] U8, found [4, 528] U8"),
    ("ctl_read", "round", i32(1), "expected [1] I64, found [1] I32"),
    ("ctl_read", "ctl", u8(1, 536), "expected [536] U8, found [1, 536] U8"),
    ("commit", "ctl", u8(535), "expected [536] U8, found [535] U8"),
    ("commit", "slots", u8(B, 31), "expected [*, 32] U8, found [2, 31] U8"),
    ("commit", "pending", u8(B + 1, 88), "expected [2, 88] U8, found [3, 88] U8"),
    ("commit", "counters", u8(B, 192), "expected [2, 200] U8, found [2, 192] U8"),
    ("commit", "tokens", i32(B + 1, C), "expected [2, *] I32, found [3, 10] I32"),
    ("commit", "tokens", i32(B, 1), "expected at least 2 positions, found 1"),
    ("commit", "kept", i32(B + 1), "expected [2] I32, found [3] I32"),
    ("draft_none", "drafts", i32(B), "expected [*, *] I32, found [2] I32"),
    ("draft_none", "drafts", i32(B, 16), "expected at most 15 proposals, found 16"),
    ("draft_none", "n_draft", i32(1), "expected [2] I32, found [1] I32"),
    ("draft_planted", "counters", u8(1, 200), "expected [2, 200] U8, found [1, 200] U8"),
    ("draft_planted", "table", i32(1, 9), "expected [2, *] I32, found [1, 9] I32"),
    ("draft_planted", "accept", f32(3), "expected [*] I32, found [3] F32"),
    ("draft_planted", "vocab", 0, "expected at least 1, found 0"),
    ("draft_ngram", "tokens", i32(1, 9), "expected [2, *] I32, found [1, 9] I32"),
    ("draft_ngram", "n_min", 0, "expected at least 1, found 0"),
    ("draft_ngram", "n_max", 0, "expected at least 1, found 0"),
    ("round_rows", "requests", u8(B, 128), "expected [2, 136] U8, found [2, 128] U8"),
    ("round_rows", "drafts", i32(1, K), "expected [2, *] I32, found [1, 4] I32"),
    ("round_rows", "rows", i32(10, 2), "expected [*, 3] I32, found [10, 2] I32"),
    ("round_rows", "ids", i32(9), "expected [10] I32, found [9] I32"),
    ("round_rows", "span", i32(B, 3), "expected [2, 2] I32, found [2, 3] I32"),
    ("round_rows", "width", 0, "expected 1 .. 16, found 0"),
    ("round_rows", "width", 17, "expected 1 .. 16, found 17"),
    ("round_rows", "width", 6, "expected at most 5 with 4 drafts, found 6"),
    ("round_rows", "ctx", 0, "expected at least 1, found 0"),
    ("accept", "requests", u8(B, 8), "expected [2, 136] U8, found [2, 8] U8"),
    ("accept", "span", i32(B), "expected [2, 2] I32, found [2] I32"),
    ("accept", "chosen", i32(P, 1), "expected [*] I32, found [3, 1] I32"),
    ("accept", "pending", u8(1, 88), "expected [2, 88] U8, found [1, 88] U8"),
    ("accept", "ctx", 0, "expected at least 1, found 0"),
    ("publish", "kept", i32(1), "expected [2] I32, found [1] I32"),
    ("publish", "round", np.zeros(2, np.int64), "expected [1] I64, found [2] I64"),
    ("publish", "ring", u8(4, 6160), "expected [*, 6168] U8, found [4, 6160] U8"),
])  # fmt: skip
def test_rule(op, field, value, message):
    name = field.replace("__", "[") + "]" if "__" in field else field
    refuse(op, f"{name}: {message}", **{field: value})


def test_rules_of_two_fields():
    refuse("kv_append", "k: expected F32 as k_cache, found BF16", k=b16(P, 2, 8),
           k_cache=f32(B, C, 2, 8), v_cache=f32(B, C, 2, 8))  # fmt: skip
    refuse("kv_append", "v: expected F32 as v_cache, found BF16", v=b16(P, 2, 8),
           k_cache=f32(B, C, 2, 8), v_cache=f32(B, C, 2, 8))  # fmt: skip
    refuse("round_rows", "rows: expected room for a width of 5, found 4 rows", rows=i32(4, 3),
           ids=i32(4))  # fmt: skip
    refuse(
        "index_append", "pooled: expected [2, 2, 64] BF16 or F32, found [2, 3, 64] BF16", ratio=5
    )
    refuse_any("index_append", {"ratio": 5, "pooled": b16(B, 2, D)})
    refuse_any("index_append", {"ratio": 2**31 - 1, "pooled": b16(B, 1, D)})
    refuse(
        "route_topk", "ids: expected at most the 1 of logits in a row, found 2", logits=f32(P, 1)
    )
    refuse("commit", "slots: expected at most 64 slots, found 65", slots=u8(65, 32))
    refuse("rms_norm", "out: expected [3, 2, 64] BF16 or F32, found [3, 64] F32", x=f32(P, 2, D))


def test_rules_of_rows_that_meet_a_matrix():
    for op in ("gdn_step", "gdn_scan"):
        refuse(op, "q: expected [*, *, *] F32, found [3, 16] F32", q=f32(P, 16))
        refuse(op, "m: expected [*, *, 8, *] F32, found [2, 4, 5, 8] F32", m=f32(B, 4, 5, 8))
        refuse(op, "m: expected [*, *, 8, *] F32, found [2, 4, 8, 5] BF16", m=b16(B, 4, 8, 5))
        refuse(op, "in: expected [3, 44] F32, found [3, 43] F32", **{"in": f32(P, 43)})
        refuse(op, "key: expected [4] I32, found [2] I32", key=i32(2))
        refuse(op, "rows: expected [3, 3] I32, found [2, 3] I32", rows=i32(2, 3))
        refuse(op, "count: expected [1] I32, found [3] I32", count=i32(3))
        refuse(op, "out: expected [3, 4, 5] F32, found [3, 5, 4] F32", out=f32(P, 5, 4))


def test_rules_of_fused_ops():
    scaled = {"scale_n": 2, "scale_k": 32}
    for op, at, part in (("norm_linear", "__0", "[0]"), ("norm_glu", "__1", "[1]"),
                         ("linear_add", "", ""), ("norm_argmax", "", ""),
                         ("linear_argmax", "", "")):  # fmt: skip
        given = {f"{k}{at}": v for k, v in scaled.items()}
        refuse(op, f"scale{part}: expected a view, as scale_n and scale_k are given, found none",
               **given)  # fmt: skip
        refuse(op, f"scale{part}: expected [3, 2] F32, found [3, 3] F32", **given,
               **{f"scale{at}": f32(3, 3)})  # fmt: skip
        refuse(op, f"scale_n{part}: expected at least 1, found 0", **{f"scale{at}": f32(3, 2)})
        q4 = ("Q4_1", u8(5, 40), (5, D))
        refuse(op, f"scale_k{part}: expected a multiple of the group of 32, or at least 64, found 5",
               **given | {f"scale{at}": f32(3, 2), f"scale_k{at}": 5, f"w{at}": q4})  # fmt: skip
        refuse_any(op, given | {f"scale{at}": f32(3, 2)})
    refuse_any("rope_attend", {"q_norm": f32(8), "k_norm": f32(8)})
    args = {k: v for k, v in good("rope_attend").items() if k not in ("q_norm", "k_norm")}
    _native.run_op("rope_attend", args | {"eps": 0.0}, "definition", 1)  # no norm: nobody asks
    del args["eps"]
    with pytest.raises(InvalidArgumentError, match="eps: expected a finite number above 0"):
        _native.run_op("rope_attend", args | {"k_norm": f32(8)}, "definition", 1)
    both = f32(P, D)
    refuse("linear_add", "y: expected no overlap with x, found both in buffer 0", x=both, y=both,
           w=f32(D, D), bias=None)  # fmt: skip


def test_strides_and_offsets():
    wide = f32(P, 2 * D)
    packed = f32(P, 4, 8)
    refuse("add", "x: expected an array with dense rows of the shape, found another",
           x=wide[:, ::2])  # fmt: skip
    refuse("rope", "x: expected a stride of dimension 1 of exactly 32 bytes, found 64",
           x=packed[:, ::2])  # fmt: skip
    refuse("rms_norm", "out: expected a stride of dimension 1 of exactly 32 bytes, found 64",
           x=packed[:, ::2], gain=f32(8), out=f32(P, 4, 8)[:, ::2])  # fmt: skip
    refuse("add", "x: expected a stride of dimension 0 of at least 256 bytes, found 0",
           x=np.broadcast_to(f32(D), (P, D)))  # fmt: skip
    odd = np.zeros(P * D * 4 + 1, U8)
    refuse("add", "x: expected an array with dense rows of the shape, found another",
           x=("F32", odd[1:-1], (P, D)))  # fmt: skip
    address = odd.ctypes.data + 1
    refuse("add", f"x: expected an offset that is a multiple of 4, found {address}",
           x=("F32", odd[1:], (P, D)))  # fmt: skip
    slots = np.zeros((B, 33), U8)[:, :32]
    refuse("accept", "slots: expected structures aligned to 4 bytes, found offset "
           f"{slots.ctypes.data}, stride 33", slots=slots)  # fmt: skip
    entries = np.zeros((2 * P, 36), U8)[:, 2:34]
    refuse("route_list", "list: expected structures aligned to 4 bytes, found offset "
           f"{entries.ctypes.data}, stride 36", list=entries)  # fmt: skip
    spread = f32(4, 10, D)[:, ::2]
    refuse("expert_linear", "w: expected a stride of dimension 1 of exactly 256 bytes, found 512",
           w=spread)  # fmt: skip
    refuse("gather_rows", "table: expected rows of whole blocks, found 65 of Q4_1",
           table=("Q4_1", u8(5, 40), (5, 65)))  # fmt: skip
    refuse("add", "x: expected a known type and rank 1 .. 4, found ? and rank 2",
           x=("Q9_9", u8(5, 40), (5, 65)))  # fmt: skip


def test_slices_of_packed_rows_may_lie_side_by_side():
    packed = f32(P, 12)
    refuse("linear", "y[0]: expected no overlap with y[1], found both in buffer 0",
           y__0=packed[:, :5], y__1=packed[:, 4:11])  # fmt: skip
    refuse_any("linear", {"y__0": packed[:, :5], "y__1": packed[:, 5:]})
    refuse_any("linear", {"y__0": packed[:, 7:], "y__1": packed[:, :7]})
    refuse("linear", "y[1]: expected no overlap with x, found both in buffer 0", x=wide_x(),
           y__1=WIDE[:, 60:67])  # fmt: skip


WIDE = f32(P, 2 * D)


def wide_x():
    return WIDE[:, :D]


def test_the_call_itself():
    args = good("add")
    for bad, error in ((("nope", args, "fast", 1), ValueError), (("add", args, "slow", 1), ValueError),
                       (("add", args | {"z": f32(1)}, "fast", 1), TypeError),
                       (("add", args | {"x": [1.0]}, "fast", 1), TypeError),
                       (("add", args | {"x": ("F32", f32(1))}, "fast", 1), TypeError),
                       (("rms_norm", good("rms_norm") | {"eps": "1"}, "fast", 1), TypeError),
                       (("attend", good("attend") | {"split": 2**40}, "fast", 1), OverflowError),
                       (("add", args, "fast", 0), InvalidArgumentError),
                       (("add", args, "fast"), TypeError)):  # fmt: skip
        with pytest.raises(error):
            _native.run_op(*bad)


@pytest.mark.parametrize("table", ISAS)
def test_tables_that_this_processor_lacks(table):
    """They are refused by name; the tests of their arithmetic did not run, which this skip counts."""
    if table in TABLES:
        assert _native.cpu_isa() in ISAS[ISAS.index(table) :]
        return
    with pytest.raises(ValueError, match=f"table: expected .* found '{table}'"):
        _native.run_op("add", good("add"), table, 1)
    pytest.skip(f"this processor has no {table}: its kernels were not tested")


@pytest.mark.parametrize("tool", ["gen_ops_md.py", "gen_errors_md.py"])
def test_generated_documentation_is_current(tool):
    script = Path(__file__).resolve().parents[2] / "tools" / tool
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
