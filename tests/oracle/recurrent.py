"""Rows that are kept, windows and recurrences, in FP64 and plain loops. Inputs are the represented
values (BF16 already widened); a slot's rows are taken in the order of the row table."""

from __future__ import annotations

import numpy as np

F64 = np.float64


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, F64)))


def rows_by_slot(rows, count):
    """{slot: indices of its live rows}, in order."""
    found: dict[int, list[int]] = {}
    for r in range(count):
        found.setdefault(int(rows[r][0]), []).append(r)
    return found


def shifted(window, new):
    """The last len(window) rows of a window with new rows behind it."""
    both = list(window) + list(new)
    return np.array(both[len(both) - len(window) :])


def conv(x, taps, window, rows, count, dilation):
    """x is what the window would keep of it: rounded where the window is BF16."""
    x, taps, window = np.asarray(x, F64), np.asarray(taps, F64), np.asarray(window, F64)
    out = np.zeros_like(x)
    for slot, own in rows_by_slot(rows, count).items():
        stream = list(window[slot]) + [x[r] for r in own]
        for i, r in enumerate(own):
            newest = len(window[slot]) + i
            s = np.zeros(x.shape[1])
            for lag in range(taps.shape[1]):
                s += taps[:, taps.shape[1] - 1 - lag] * stream[newest - lag * dilation]
            out[r] = s * sigmoid(s)
    return out


def gdn_inputs(c, a, b, coef, dt, hk, dk):
    """(q [P, Hk, Dk], in)."""
    c, a, b = np.asarray(c, F64), np.asarray(a, F64), np.asarray(b, F64)
    q_out, in_out = [], []
    for r in range(len(c)):
        q, k, v = np.split(c[r], [hk * dk, 2 * hk * dk])
        q, k = q.reshape(hk, dk), k.reshape(hk, dk)
        q_out.append([y / np.sqrt(y @ y + 1e-6) / np.sqrt(dk) for y in q])
        k = np.concatenate([y / np.sqrt(y @ y + 1e-6) for y in k])
        softplus = np.logaddexp(0, a[r] + np.asarray(dt, F64))
        decay = np.exp(np.asarray(coef, F64) * softplus)
        in_out.append(np.concatenate([k, v, decay, sigmoid(b[r])]))
    return np.array(q_out), np.array(in_out)


def gdn_take(m, entry, h, head, hk):
    """The matrix of value head h, key head `head`, after one entry."""
    hv, dk, dv = m.shape
    entry = np.asarray(entry, F64)
    k = entry[head * dk :][:dk]
    v = entry[hk * dk + h * dv :][:dv]
    decay, beta = entry[hk * dk + hv * dv + h], entry[hk * dk + hv * dv + hv + h]
    after = decay * m[h]
    return after + np.outer(k, beta * (v - after.T @ k))


def gdn(q, entries, key, m, rows, count):
    """(out [P, Hv, Dv], the matrices after the rows)."""
    q, m = np.asarray(q, F64), np.array(m, F64)
    out = np.zeros((len(q), m.shape[1], m.shape[3]))
    for slot, own in rows_by_slot(rows, count).items():
        for r in own:
            for h, head in enumerate(key):
                m[slot, h] = gdn_take(m[slot], entries[r], h, head, q.shape[1])
                out[r, h] = m[slot, h].T @ q[r, head]
    return out, m


def gated_norm(x, gate, gain, eps):
    x = np.asarray(x, F64)
    out = np.zeros((x.shape[0], x.shape[1] * x.shape[2]))
    for r in range(x.shape[0]):
        heads = [y / np.sqrt(np.mean(y * y) + eps) * np.asarray(gain, F64) for y in x[r]]
        out[r] = np.concatenate(heads) * sigmoid(gate[r])
    return out
