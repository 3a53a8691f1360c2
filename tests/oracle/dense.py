"""Ops that compute on rows, in FP64. Inputs are the represented values (BF16 already widened)."""

from __future__ import annotations

import numpy as np

F64 = np.float64


def linear(x, w, bias=None):
    y = np.asarray(x, F64) @ np.asarray(w, F64).T
    return y if bias is None else y + np.asarray(bias, F64)


def rms_norm(x, gain, eps):
    x = np.asarray(x, F64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * np.asarray(gain, F64)


def silu_mul(gate, up):
    gate = np.asarray(gate, F64)
    return gate / (1 + np.exp(-gate)) * np.asarray(up, F64)


def gelu_mul(gate, up):
    """The tanh form of GELU, times up."""
    gate = np.asarray(gate, F64)
    inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    return gate / 2 * (1 + np.tanh(inner)) * np.asarray(up, F64)


def argmax(x):
    """Lowest index of the largest element; NaN never wins; nothing but NaN: 0."""
    out = []
    for row in x:
        best = None
        for i, v in enumerate(row):
            if not np.isnan(v) and (best is None or v > row[best]):
                best = i
        out.append(0 if best is None else best)
    return np.array(out, np.int32)


def rope(x, freq, pos, neox):
    """x [P, H, D]; angle pos * freq[i] for pair i; elements past the pairs pass through."""
    x = np.asarray(x, F64)
    out = x.copy()
    n = len(freq)
    for r, p in enumerate(pos):
        for i, f in enumerate(np.asarray(freq, F64)):
            a, b = (i, i + n) if neox else (2 * i, 2 * i + 1)
            rot = np.exp(1j * float(p) * f)
            z = (x[r, :, a] + 1j * x[r, :, b]) * rot
            out[r, :, a], out[r, :, b] = z.real, z.imag
    return out


def bf16_round(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(F64)


def norm_linear(x, gain, eps, w, bias, bf16):
    """One segment. `a` is formed in FP32 and rounded to the activation type; the rest is exact."""
    a = np.asarray(x, np.float32) * np.asarray(gain, np.float32)
    a = bf16_round(a) if bf16 else np.asarray(a, F64)
    x = np.asarray(x, F64)
    n = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    y = n * (a @ np.asarray(w, F64).T)
    return y if bias is None else y + np.asarray(bias, F64)


def glu(gate, up, gelu):
    return gelu_mul(gate, up) if gelu else silu_mul(gate, up)


def route_list(ids):
    """The work list [(expert, routes)] of ids [rows, T]: at most four routes an entry."""
    flat = np.asarray(ids).ravel()
    entries = []
    for expert in np.unique(flat):
        routes = np.flatnonzero(flat == expert)
        entries += [(int(expert), routes[i : i + 4].tolist()) for i in range(0, len(routes), 4)]
    return entries


def expert_linear(x, ids, w):
    """Row i of x goes to expert ids[i] of w [E, N, K]."""
    return np.stack([linear(row, w[e]) for row, e in zip(x, np.ravel(ids), strict=True)])


def expert_glu(x, ids, gate, up, gelu):
    """Row i of x goes to the experts ids[i]: one output row for each."""
    x = np.repeat(np.asarray(x, F64), np.shape(ids)[1], axis=0)
    return glu(expert_linear(x, ids, gate), expert_linear(x, ids, up), gelu)


def expert_sum(x, weight):
    """x [P*T, N], weight [P, T]."""
    x = np.asarray(x, F64).reshape(*np.shape(weight), -1)
    return np.einsum("pt,ptn->pn", np.asarray(weight, F64), x)


def rope_attend(q, k, v, norms, freq, k_cache, v_cache, slots, pos, *, eps, scale, window, split,
                neox, bf16):  # fmt: skip
    """(out, k_cache, v_cache) with the rows appended; norms = gains of q and of k, or None."""
    kept = bf16_round if bf16 else (lambda x: np.asarray(x, np.float32).astype(F64))
    q, k = (
        kept(rope(x if g is None else rms_norm(x, g, eps), freq, pos, neox))
        for x, g in zip((q, k), norms, strict=True)
    )
    caches = [np.array(c, F64) for c in (k_cache, v_cache)]
    for cache, fresh in zip(caches, (k, kept(v)), strict=True):
        cache[slots, pos] = fresh
    return attend(q, *caches, slots, pos, scale, window, split, bf16), *caches


def attend(q, k_cache, v_cache, slots, pos, scale, window, split, round_p):
    """q [P, H, D], caches [B, C, Hkv, D]. P is rounded (relative to its split's maximum) where the
    activations are BF16; the sum of P is not."""
    q, k_cache, v_cache = (np.asarray(t, F64) for t in (q, k_cache, v_cache))
    out = np.zeros_like(q)
    per = q.shape[1] // k_cache.shape[2]
    for r, (b, p) in enumerate(zip(slots, pos, strict=True)):
        first = max(0, p - window + 1) if window else 0
        for h in range(q.shape[1]):
            k = k_cache[b, first : p + 1, h // per]
            v = v_cache[b, first : p + 1, h // per]
            s = k @ q[r, h] * scale
            top = s.max()
            total, mix = 0.0, np.zeros(q.shape[2])
            for i in range(0, len(s), split):
                part = s[i : i + split]
                e = np.exp(part - part.max())
                w = np.exp(part.max() - top)
                total += w * e.sum()
                mix += w * ((bf16_round(e) if round_p else e) @ v[i : i + split])
            out[r, h] = mix / total
    return out
