"""Streams of a wide residual, hashed embeddings and the draft head, in FP64 and exact integers.

Plain loops from the formulas. `kept` rounds to the activation type where the formula does so ahead
of a product; the rounding of a result is left to the comparison."""

from __future__ import annotations

import math

import numpy as np

F64 = np.float64


def factor(x, eps) -> float:
    total = math.fsum(float(v) ** 2 for v in np.ravel(x))
    return 1 / math.sqrt(total / np.size(x) + float(eps))


def factors(s, eps):
    """s [P, S, D]; [P, S]."""
    return np.array([[factor(stream, eps) for stream in row] for row in s])


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, F64)))


def hyper_down(s, gain, w, inject, eps, kept):
    """s [P, S, D]; (low [P, R], factors of injection [P, S] or None)."""
    rows, n_streams, dim = np.shape(s)
    low, factors = [], []
    for r in range(rows):
        for weight, out in ((w, low), (inject, factors)):
            if weight is None:
                continue
            y = np.zeros(len(weight))
            for i in range(n_streams):
                own = slice(i * dim, i * dim + dim)
                a = kept(np.asarray(s[r, i], np.float32) * np.asarray(gain[own], np.float32))
                y += factor(s[r, i], eps) * (np.asarray(weight, F64)[:, own] @ a)
            y /= n_streams
            out.append(y * sigmoid(y) if out is low else 2 * sigmoid(y))
    return np.array(low), np.array(factors) if inject is not None else None


def hyper_mix(low, w, s, gain, eps):
    """low [P, R], w [S*D, R], s [P, S, D]; [P, D]."""
    rows, n_streams, dim = np.shape(s)
    out = np.zeros((rows, dim))
    for r in range(rows):
        gate = sigmoid(np.asarray(w, F64) @ np.asarray(low[r], F64))
        for i in range(n_streams):
            normed = np.asarray(s[r, i], F64) * factor(s[r, i], eps)
            own = slice(i * dim, i * dim + dim)
            out[r] += gate[own] * normed * np.asarray(gain[own], F64)
    return out / n_streams


def hyper_inject(x, inject, s):
    return np.asarray(s, F64) + np.einsum("ps,pd->psd", np.asarray(inject, F64), np.asarray(x, F64))


def ngram_rows(tokens, mult, size, offset, eos):
    """Rows [len, G] for every position of a whole sequence."""
    orders = len(mult) - 1
    per = len(size) // orders
    out = []
    for p in range(len(tokens)):
        row = []
        for n in range(2, len(mult) + 1):
            x = int(tokens[p]) * int(mult[0])
            for i in range(1, n):
                before = [int(t) for t in tokens[max(0, p - i) : p]]
                seen = p - i >= 0 and eos not in before
                x ^= (int(tokens[p - i]) if seen else eos) * int(mult[i])
            for g in range((n - 2) * per, (n - 1) * per):
                row.append(int(offset[g]) + x % int(size[g]))
        out.append(row)
    return out


def ple_gate(key, value, s, key_gain, query_gain, conv_gain, eps):
    """(y, normed), both [P, S*D]."""
    rows, n_streams, dim = np.shape(s)
    y, normed = np.zeros((2, rows, n_streams * dim))
    for r in range(rows):
        for i in range(n_streams):
            own = slice(i * dim, i * dim + dim)
            k = np.asarray(key[r, own], F64) * factor(key[r, own], eps) * key_gain[own]
            q = np.asarray(s[r, i], F64) * factor(s[r, i], eps) * query_gain[own]
            t = math.fsum(k * q) / math.sqrt(dim)
            g = math.copysign(math.sqrt(max(abs(t), 1e-6)), t) if t else 0.0
            y[r, own] = np.asarray(value[r], F64) * sigmoid(g)
            normed[r, own] = y[r, own] * factor(y[r, own], eps) * conv_gain[own]
    return y, normed


def mtp_join(e, x, e_gain, gain, eps, whole):
    """[P, S, 2*D]"""
    rows, n_streams, dim = np.shape(x)
    out = np.zeros((rows, n_streams, 2 * dim))
    for r in range(rows):
        for i in range(n_streams):
            n = factor(x[r] if whole else x[r, i], eps)
            out[r, i, :dim] = np.asarray(e[r], F64) * factor(e[r], eps) * e_gain
            out[r, i, dim:] = np.asarray(x[r, i], F64) * n * gain[i * dim : i * dim + dim]
    return out


def draft_rows(slots, chosen, step):
    """[((slot, position, at), id)]; slots are (active, n, anchor)."""
    rows = []
    for b, (active, n, anchor) in enumerate(slots):
        if active and n >= 1:
            rows.append(((b, n - 1 + step, 0), chosen[len(rows)] if step else anchor))
    return rows


def commit_rows(n, kept):
    return [(b, n[b] - k + i, i) for b, k in enumerate(kept) for i in range(k)]
