"""Running the ops of a mixture's experts on arrays; for the tests of both backends."""

from __future__ import annotations

import numpy as np
from op_tools import I32, act_out, ints, run, weights

F = np.float32
ENTRY = 32  # bytes


def expert_weights(kind: str, n_experts: int, n: int, k: int, rng: np.random.Generator):
    """(argument, values) of a random weight [E, N, K]."""
    shape = n_experts, n, k
    arg, values = weights(kind, n_experts * n, k, rng)
    if isinstance(arg, tuple):
        return (arg[0], arg[1].reshape(n_experts, n, -1), shape), values.reshape(shape)
    return arg.reshape(shape), values.reshape(shape)


def expert(arg, e: int):
    """The matrix of one expert, as an argument."""
    if isinstance(arg, tuple):
        return arg[0], arg[1][e], arg[2][1:]
    return arg[e]


def route_list(ids, table="definition", threads=1, count=None):
    """(list, n) as the op leaves them; 0x55 behind what it has written."""
    ids = np.ascontiguousarray(ids, I32)
    entries = np.full((ids.size, ENTRY), 0x55, np.uint8)
    n = ints(-7)
    run("route_list", table, threads, ids=ids, count=ints(len(ids) if count is None else count),
        list=entries, n=n)  # fmt: skip
    return entries, n


def parsed(entries, n):
    """[(expert, routes)]; what is reserved and unused has to be as the contract says."""
    out = []
    for words in entries.view(I32)[: n[0]]:
        expert, used = int(words[0]), int(words[1])
        assert 1 <= used <= 4
        assert (words[2 + used : 6] == -1).all() and (words[6:] == 0).all()
        out.append((expert, words[2 : 2 + used].tolist()))
    return out


def expert_glu(x, ids, gate, up, n, gelu=0, table="definition", threads=2, count=None, listed=None,
               at=(None, None)):  # fmt: skip
    """out as stored [P*T, N], in the type of x; NaN where nothing was written."""
    ids = np.asarray(ids)
    entries, used = listed or route_list(ids, count=count)
    arg, out = act_out((ids.size, n), "F32" if isinstance(x, np.ndarray) else "BF16")
    run("expert_glu", table, threads, x=x, list=entries, n=used, w0=gate, w1=up, at0=at[0],
        at1=at[1], out=arg, gelu=gelu)  # fmt: skip
    return out


def expert_linear(x, ids, w, n, table="definition", threads=2, count=None, listed=None, at=None):
    ids = np.asarray(ids)
    entries, used = listed or route_list(ids, count=count)
    y = np.full((ids.size, n), np.nan, F)
    run("expert_linear", table, threads, x=x, list=entries, n=used, w=w, at=at, y=y)
    return y


def expert_sum(x, weight, table="definition", threads=2, count=None):
    y = np.full((len(weight), x.shape[1]), np.nan, F)
    run("expert_sum", table, threads, x=x, weight=weight, y=y,
        count=ints(len(weight) if count is None else count))  # fmt: skip
    return y


def routing(rng, rows: int, per_row: int, n_experts: int) -> np.ndarray:
    """Different experts for each row, at random."""
    ids = [rng.permutation(n_experts)[:per_row] for _ in range(rows)]
    return np.array(ids, I32).reshape(rows, per_row)
