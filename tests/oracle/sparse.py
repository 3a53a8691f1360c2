"""Block-sparse attention and routing in FP64, in plain loops. Inputs are the represented values (BF16
already widened); caches are arrays by slot and position."""

from __future__ import annotations

import math

import numpy as np

F64 = np.float64


def rounded(x, bf16):
    """x in F32, or in BF16 (to nearest, ties to even)."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    if not bf16:
        return np.asarray(x, np.float32).astype(F64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32).astype(F64)


def pooled_key(keys, gain, eps, freq, at, bf16):
    """The key of one block from its raw keys [ratio, D], turned to position `at`; not rounded."""
    n_keys, dim = np.shape(keys)
    mean = [rounded(sum(float(keys[i][d]) for i in range(n_keys)) / n_keys, bf16)
            for d in range(dim)]  # fmt: skip
    factor = 1 / math.sqrt(sum(m * m for m in mean) / dim + eps)
    y = [m * factor * float(g) for m, g in zip(mean, gain, strict=True)]
    out = list(y)
    n = len(freq)
    for i in range(n):
        angle = at * float(freq[i])
        out[i] = y[i] * math.cos(angle) - y[i + n] * math.sin(angle)
        out[i + n] = y[i] * math.sin(angle) + y[i + n] * math.cos(angle)
    return np.array(out, F64)


def index_append(k, gain, eps, freq, ratio, slots, pos, raw, bf16):
    """(raw with the rows in it, {(slot, block): key} of the blocks that they complete)."""
    raw = np.array(raw, F64)
    for row, b, p in zip(k, slots, pos, strict=True):
        raw[b, p] = rounded(row, bf16)
    keys = {}
    for b, p in zip(slots, pos, strict=True):
        if (p + 1) % ratio == 0:
            first = p + 1 - ratio
            keys[b, p // ratio] = pooled_key(raw[b, first : p + 1], gain, eps, freq, first, bf16)
    return raw, keys


def block_scores(q, keys, scale):
    """q [H, D] of one row, keys [n, D]."""
    scores = []
    for key in np.asarray(keys, F64):
        total = 0.0
        for head in np.asarray(q, F64):
            dot = float(head @ key)
            total += dot if dot > 0 or math.isnan(dot) else 0.0
        scores.append(scale * total)
    return scores


def ranked(values):
    """Indices, the largest value first; NaN last; the lower index in a tie."""
    return sorted(range(len(values)),
                  key=lambda i: (math.isnan(values[i]), 0 if math.isnan(values[i]) else -values[i], i))  # fmt: skip


def block_topk(q, pooled, slots, pos, scale, ratio, k):
    out = np.full((len(q), k), -1, np.int32)
    for r, (b, p) in enumerate(zip(slots, pos, strict=True)):
        n = (p + 1) // ratio
        chosen = sorted(ranked(block_scores(q[r], pooled[b, :n], scale))[:k])
        out[r, : len(chosen)] = chosen
    return out


def seen(blocks, p, ratio):
    """Positions of the row at p with these blocks."""
    whole = (p + 1) // ratio * ratio
    chosen = [b * ratio + i for b in blocks if b >= 0 for i in range(ratio)]
    return chosen + list(range(whole, p + 1))


def attend_blocks(q, gate, k_cache, v_cache, blocks, slots, pos, scale, ratio, split, bf16):
    """Not rounded. P is, relative to the maximum of its split, where the activations are BF16."""
    q, k_cache, v_cache = (np.asarray(t, F64) for t in (q, k_cache, v_cache))
    out = np.zeros_like(q)
    n_heads = q.shape[1]
    for r, (b, p) in enumerate(zip(slots, pos, strict=True)):
        where = seen(blocks[r], p, ratio)
        for h in range(n_heads):
            g = h * k_cache.shape[2] // n_heads
            scores = [scale * float(q[r, h] @ k_cache[b, i, g]) for i in where]
            top = max(scores)
            total, mix = 0.0, np.zeros(q.shape[2])
            for at in range(0, len(where), split):
                part = scores[at : at + split]
                high = max(part)
                for i, s in zip(where[at : at + split], part, strict=True):
                    e = math.exp(s - high)
                    total += e * math.exp(high - top)
                    mix += float(rounded(e, bf16)) * math.exp(high - top) * v_cache[b, i, g]
            out[r, h] = mix / total
            if gate is not None:
                out[r, h] /= 1 + np.exp(-np.asarray(gate[r, h], F64))
    return out


def route_topk(logits, t, normed):
    """(ids, weights) of each row."""
    ids, weights = [], []
    for row in np.asarray(logits, F64):
        best = ranked(row.tolist())[:t]
        e = [math.exp(x - row[best[0]]) for x in row]
        total = sum(e[i] for i in best) if normed else sum(e)
        ids.append(best)
        weights.append([e[i] / total for i in best])
    return np.array(ids, np.int32), np.array(weights, F64)


def route_force(table, rows, stride):
    """Experts of each row, by its slot and position."""
    return np.array([table[(slot * stride + pos) % len(table)] for slot, pos, _ in rows.tolist()])


def gate_add(x, gate, y):
    return np.asarray(x, F64) / (1 + np.exp(-np.asarray(gate, F64))) + np.asarray(y, F64)
