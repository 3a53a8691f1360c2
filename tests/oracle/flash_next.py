"""The Flash-Next text model and its draft head in NumPy, from their description alone: no kernel
code, no plan. Float64, or float32 as `dtype` says; nothing is rounded to BF16.

    S = [E[token]] * streams                                      wide state [T, streams * dim]
    per layer:  S += hashed n-grams                               (one layer at most)
                x, inj = mix(S);  S += inj * (delta net or sparse attention)(x)
                x, inj = mix(S);  S += inj * experts(x)
    logits = Wout mix(S)

Weights go by their Hugging Face names, with the prefix `model.` or `model.language_model.`, experts
one by one or fused. They come from a mapping or from a function of the name that raises KeyError;
experts and rows of the hashed table are asked for one at a time, so what is behind a name may be
anything with `shape` and `[i]`.

    model = FlashNext(config, weights)
    state = model.new_state()
    logits, wide = model.extend(state, tokens)    # any number of rows, any number of times
    state.commit(n)                               # keep the first n rows of the last extend

Equal scores of blocks and of experts: the lower index wins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Source = Mapping[str, Any] | Callable[[str], Any]
FORMS = ("whole", "per_stream")  # of the draft head's norm over the target's wide state


@dataclass(frozen=True)
class Config:
    """What the shapes do not say, and some that they do."""

    vocab: int
    dim: int
    sparse: tuple[bool, ...]  # of each layer; else a delta net
    streams: int
    n_head: int
    n_kv: int
    head_dim: int
    base: float
    rotated: int  # leading elements of a head that turn, of an index head too
    index_heads: int
    index_dim: int
    ratio: int  # tokens of a block; 0: dense
    budget: int  # tokens of the chosen blocks
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    experts: int
    top: int
    normalised: bool  # the shares of the chosen experts are scaled to a sum of 1
    hashed: int | None  # layer in front of which the n-grams come, from 0
    orders: int  # longest n-gram
    heads_per_order: int
    table_base: int
    seed: int
    hashed_taps: int
    eos: int  # of the n-grams
    eps: float = 1e-6

    @staticmethod
    def read(d: Mapping[str, Any]) -> Config:
        """From config.json, plain or with a text_config."""
        d = d.get("text_config", d)
        rope = d["rope_parameters"]
        hashed = sorted(i - 1 for i in d.get("ple_layer_ids") or [])
        eos = d["eos_token_id"]
        sparse = tuple(t in ("full_attention", "qwen_sparse_attention") for t in d["layer_types"])
        assert d.get("hidden_act", "silu") == "silu"
        assert d.get("output_gate_type", "sigmoid") == "sigmoid"
        assert rope.get("rope_type", "default") == "default"
        assert len(sparse) == d["num_hidden_layers"] and len(hashed) <= 1
        return Config(
            vocab=d["vocab_size"], dim=d["hidden_size"], sparse=sparse, streams=d["hc_count"],
            n_head=d["num_attention_heads"], n_kv=d["num_key_value_heads"], head_dim=d["head_dim"],
            base=float(rope["rope_theta"]),
            rotated=int(d["head_dim"] * rope.get("partial_rotary_factor", 1.0)),
            index_heads=d["indexer_n_heads"], index_dim=d["indexer_head_dim"],
            ratio=d["indexer_compress_ratio"], budget=d["indexer_budget"],
            key_heads=d["linear_num_key_heads"], value_heads=d["linear_num_value_heads"],
            key_dim=d["linear_key_head_dim"], value_dim=d["linear_value_head_dim"],
            taps=d["linear_conv_kernel_dim"], experts=d["num_experts"],
            top=d["num_experts_per_tok"], normalised=d.get("norm_topk_prob", True),
            hashed=hashed[0] if hashed else None, orders=d.get("ngram_size", 3),
            heads_per_order=d.get("heads_per_ngram", 8),
            table_base=d.get("ngram_vocab_size_base", 0), seed=d.get("seed", 1234),
            hashed_taps=d.get("ple_conv_kernel_size", 4),
            eos=eos[0] if isinstance(eos, list) else eos, eps=d.get("rms_norm_eps", 1e-6),
        )  # fmt: skip


# Small pieces


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms(x: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)


def norm(x: Array, w: Array, eps: float) -> Array:
    """What is stored is the gain less 1."""
    return rms(x, eps) * (1 + w)


def norm_streams(x: Array, w: Array, streams: int, eps: float) -> Array:
    """Each stream by its own root mean square; the gains run over all of them."""
    return rms(x.reshape(len(x), streams, -1), eps).reshape(x.shape) * (1 + w)


def rope(x: Array, pos: Array, n: int, base: float) -> Array:
    """x [T, heads, D]: the pairs (i, i + n/2) of the first n elements turn by pos * base^(-2i/n)."""
    half = n // 2
    angle = np.multiply.outer(pos.astype(np.float64), base ** (-2.0 * np.arange(half) / n))
    cos, sin = (f(angle)[:, None].astype(x.dtype) for f in (np.cos, np.sin))
    a, b = x[..., :half], x[..., half:n]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., n:]], -1)


def causal_conv(rows: Array, w: Array, t: int, dilation: int = 1) -> Array:
    """The last t of the rows, each with those `dilation` apart before it; w [channels, taps]."""
    taps, first = w.shape[1], len(rows) - t
    lags = [(taps - 1 - i) * dilation for i in range(taps)]
    return sum(w[:, i] * rows[first - lag : first - lag + t] for i, lag in enumerate(lags))


def best(score: Array, k: int) -> Array:
    """Indices of the k largest of each row, equal ones in ascending order."""
    return np.argsort(-score, axis=-1, kind="stable")[..., :k]


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


# Hashed n-grams


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def hash_constants(c: Config) -> tuple[Array, Array, Array]:
    """Multipliers [orders], sizes [heads] and first rows [heads]; a checkpoint holds them too."""
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix(v: int) -> int:
        v = (v + golden) & mask
        v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9 & mask
        v = (v ^ (v >> 27)) * 0x94D049BB133111EB & mask
        return v ^ (v >> 31)

    bound = max(1, (2**63 - 1) // c.vocab // 2)
    factors = [2 * (mix(c.seed + golden * (i + 1) & mask) % bound) + 1 for i in range(c.orders)]
    sizes: list[int] = []
    n = c.table_base
    while len(sizes) < (c.orders - 1) * c.heads_per_order:
        if is_prime(n):
            sizes.append(n)
        n += 1
    first = np.cumsum([0, *sizes[:-1]])
    return np.array(factors, np.int64), np.array(sizes, np.int64), first.astype(np.int64)


def hash_rows(before: Array, tokens: Array, constants: Sequence[Array], c: Config) -> Array:
    """Table rows [T, heads] of the tokens; `before` are the orders - 1 tokens in front of them. An
    end-of-text token hides what is before it, but not itself from its own n-grams."""
    factors, sizes, first = constants
    seen = np.concatenate([before, tokens])
    t = len(tokens)
    cut = np.zeros(t, bool)
    x = tokens * factors[0]
    out = []
    for s in range(1, c.orders):  # n-grams of s + 1 tokens
        earlier = seen[len(before) - s : len(before) - s + t]
        cut = cut | (earlier == c.eos)
        x = x ^ np.where(cut, c.eos, earlier) * factors[s]
        heads = slice((s - 1) * c.heads_per_order, s * c.heads_per_order)
        out.append(first[heads] + x[:, None] % sizes[heads])
    return np.concatenate(out, 1)


# What a sequence leaves behind


class Window:
    """The last n rows and the last chunk, which can be taken back row by row."""

    def __init__(self, n: int, row: Array):
        self.n, self.rows = n, np.repeat(row[None], n, 0)

    def push(self, chunk: Array) -> Array:
        self.rows = np.concatenate([self.rows[len(self.rows) - self.n :], chunk])
        return self.rows

    def commit(self, n: int) -> None:
        self.rows = self.rows[: self.n + n]

    def settled(self) -> list[Array]:
        return [self.rows[len(self.rows) - self.n :]]


class DeltaState:
    """A matrix per value head, as it was before the last chunk, and what that chunk did to it."""

    def __init__(self, c: Config, dtype: Any):
        channels = 2 * c.key_heads * c.key_dim + c.value_heads * c.value_dim
        self.conv = Window(c.taps - 1, np.zeros(channels, dtype))
        self.start = np.zeros((c.value_heads, c.key_dim, c.value_dim), dtype)
        self.end = self.start
        self.chunk: tuple[Array, ...] = ()

    def run(self, k: Array, v: Array, beta: Array, decay: Array, q: Array) -> Array:
        """k, q [T, heads, key_dim], v [T, heads, value_dim] -> [T, heads, value_dim]."""
        self.start, self.chunk = self.end, (k, v, beta, decay, q)
        m, out = self.start.copy(), np.empty_like(v)
        for t in range(len(k)):
            m *= decay[t, :, None, None]
            read = (k[t, :, None] @ m)[:, 0]
            m += k[t, :, :, None] * (beta[t, :, None] * (v[t] - read))[:, None]
            out[t] = (q[t, :, None] @ m)[:, 0]
        self.end = m
        return out

    def commit(self, n: int) -> None:
        self.conv.commit(n)
        self.end = self.start
        self.run(*(x[:n] for x in self.chunk))

    def settled(self) -> list[Array]:
        return [*self.conv.settled(), self.end]


class SparseState:
    """Per token: key (normed and turned), value, index key (raw)."""

    def __init__(self, c: Config, dtype: Any):
        self.k = np.zeros((0, c.n_kv, c.head_dim), dtype)
        self.v = self.k
        self.index = np.zeros((0, c.index_dim), dtype)
        self.before = 0

    def push(self, *rows: Array) -> None:
        self.before = len(self.k)
        old = (self.k, self.v, self.index)
        self.k, self.v, self.index = (np.concatenate(p) for p in zip(old, rows, strict=True))

    def cut(self, n: int) -> None:
        self.k, self.v, self.index = self.k[:n], self.v[:n], self.index[:n]

    def commit(self, n: int) -> None:
        self.cut(self.before + n)

    def settled(self) -> list[Array]:
        return [self.k, self.v, self.index]


class HashedState:
    def __init__(self, c: Config, dtype: Any):
        self.tokens = Window(c.orders - 1, np.array(c.eos, np.int64))
        self.conv = Window((c.hashed_taps - 1) * c.orders, np.zeros(c.streams * c.dim, dtype))

    def commit(self, n: int) -> None:
        self.tokens.commit(n)
        self.conv.commit(n)

    def settled(self) -> list[Array]:
        return [*self.tokens.settled(), *self.conv.settled()]


class State:
    """Everything the trunk remembers of one sequence."""

    def __init__(self, c: Config, dtype: Any):
        self.n = self.chunk = 0  # tokens so far, those of the last chunk
        self.layers = [(SparseState if s else DeltaState)(c, dtype) for s in c.sparse]
        self.hashed = None if c.hashed is None else HashedState(c, dtype)

    def parts(self) -> list[Any]:
        return [*self.layers, *([self.hashed] if self.hashed else [])]

    def commit(self, n: int) -> None:
        assert 0 <= n <= self.chunk, "only rows of the last chunk can be taken back"
        for part in self.parts():
            part.commit(n)
        self.n += n - self.chunk
        self.chunk = n

    def settled(self) -> list[Array]:
        """All that a later token can depend on."""
        return [a for part in self.parts() for a in part.settled()]


# The model


class FlashNext:
    """`draft_ratio` replaces the block ratio in the draft head; 0: it attends densely."""

    def __init__(self, config: Config | Mapping[str, Any], weights: Source, dtype: Any = np.float64,
                 form: str = "whole", draft_ratio: int | None = None,
                 kept_experts: int = 64):  # fmt: skip
        self.c = config if isinstance(config, Config) else Config.read(config)
        self.dtype = np.dtype(dtype).type
        self.draft = self.c if draft_ratio is None else replace(self.c, ratio=draft_ratio)
        self.form = form
        self.source = weights if callable(weights) else weights.__getitem__
        self.kept: dict[str, Array] = {}
        self.kept_expert = functools.lru_cache(kept_experts)(self.expert)
        names = [p + "embed_tokens.weight" for p in ("model.language_model.", "model.")]
        self.prefix = next(n for n in names if self.has(n))[: -len("embed_tokens.weight")]
        self.head = "lm_head" if self.has("lm_head.weight") else self.prefix + "embed_tokens"
        self.has_draft = self.has("mtp.pre_fc_norm_hidden.weight")

    # Weights

    def has(self, name: str) -> bool:
        try:
            self.source(name)
        except KeyError:
            return False
        return True

    def w(self, name: str, suffix: str = ".weight") -> Array:
        """A whole tensor, kept."""
        if name + suffix not in self.kept:
            self.kept[name + suffix] = np.asarray(self.source(name + suffix)).astype(self.dtype)
        return self.kept[name + suffix]

    def layer(self, i: int) -> str:
        """Name of layer i; the draft head's comes after the trunk's."""
        return "mtp.layers.0." if i == len(self.c.sparse) else f"{self.prefix}layers.{i}."

    def expert(self, layer: int, e: int) -> tuple[Array, Array, Array]:
        """Gate, up and down of one expert."""
        p = self.layer(layer) + "mlp.experts."
        if not self.has(p + "gate_up_proj"):
            names = (f"{p}{e}.{x}_proj.weight" for x in ("gate", "up", "down"))
            gate, up, down = (np.asarray(self.source(n), self.dtype) for n in names)
            return gate, up, down
        both = np.asarray(self.source(p + "gate_up_proj")[e], self.dtype)
        gate, up = np.split(both, 2)
        return gate, up, np.asarray(self.source(p + "down_proj")[e], self.dtype)

    def constants(self) -> list[Array]:
        """Of the hash, as stored: multipliers, sizes and first rows."""
        p = f"{self.layer(self.c.hashed or 0)}ple.ple_embedding."
        names = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
        return [np.asarray(self.source(p + n), np.int64) for n in names]

    def table(self, rows: Array) -> Array:
        """The table's rows [T, heads], one behind the other [T, heads * width]."""
        p = f"{self.layer(self.c.hashed or 0)}ple.ple_embedding.ngram_embedding.shard_"
        n = self.source(p + "0.weight").shape[0]
        flat = [self.source(f"{p}{r // n}.weight")[int(r % n)] for r in rows.ravel()]
        return np.stack(flat).reshape(len(rows), -1).astype(self.dtype)

    # Parts of a layer

    def mix(self, s: Array, name: str) -> tuple[Array, Array]:
        """One row [T, dim] of the wide state; the normed wide state beside it."""
        c = self.c
        n = norm_streams(s, self.w(name + ".hc_norm"), c.streams, c.eps)
        low = silu(n @ self.w(name + ".input_mix_weight_down").T / c.streams)
        gate = sigmoid(low @ self.w(name + ".input_mix_weight_up").T)
        return (gate * n).reshape(len(s), c.streams, -1).mean(1), n

    def around(self, s: Array, name: str, f: Callable[[Array], Array]) -> Array:
        """What f makes of the mixed row is added to every stream of the raw wide state."""
        x, n = self.mix(s, name)
        inj = 2 * sigmoid(n @ self.w(name + ".block_inject_weight").T / self.c.streams)
        return s + (inj[:, :, None] * f(x)[:, None]).reshape(s.shape)

    def add_hashed(self, s: Array, u: Array, conv: Window) -> Array:
        c, p, t = self.c, self.layer(self.c.hashed or 0) + "ple.", len(s)
        key = norm_streams(u @ self.w(p + "key_proj").T, self.w(p + "norm_key"), c.streams, c.eps)
        query = norm_streams(s, self.w(p + "norm_query"), c.streams, c.eps)
        dot = (key * query).reshape(t, c.streams, -1).sum(-1) / self.dtype(np.sqrt(c.dim))
        gate = sigmoid(np.sign(dot) * np.sqrt(np.maximum(np.abs(dot), self.dtype(1e-6))))
        value = u @ self.w(p + "value_proj").T
        y = (gate[:, :, None] * value[:, None]).reshape(s.shape)
        rows = conv.push(norm_streams(y, self.w(p + "norm_conv"), c.streams, c.eps))
        w = self.w(p + "conv1d").reshape(s.shape[1], -1)
        return s + y + silu(causal_conv(rows, w, t, c.orders))

    def delta_net(self, x: Array, p: str, st: DeltaState) -> Array:
        c, t = self.c, len(x)
        z = (x @ self.w(p + "in_proj_z").T).reshape(t, c.value_heads, -1)
        beta = sigmoid(x @ self.w(p + "in_proj_b").T)
        step = softplus(x @ self.w(p + "in_proj_a").T + self.w(p + "dt_bias", ""))
        decay = np.exp(-np.exp(self.w(p + "A_log", "")) * step)
        rows = st.conv.push(x @ self.w(p + "in_proj_qkv").T)
        y = silu(causal_conv(rows, self.w(p + "conv1d").reshape(rows.shape[1], -1), t))
        n = c.key_heads * c.key_dim
        q, k = (a.reshape(t, c.key_heads, -1) for a in (y[:, :n], y[:, n : 2 * n]))
        q, k = (a / np.sqrt((a * a).sum(-1, keepdims=True) + self.dtype(1e-6)) for a in (q, k))
        q = q / self.dtype(np.sqrt(c.key_dim))
        q, k = (np.repeat(a, c.value_heads // c.key_heads, 1) for a in (q, k))
        o = st.run(k, y[:, 2 * n :].reshape(t, c.value_heads, -1), beta, decay, q)
        o = rms(o, c.eps) * self.w(p + "norm") * sigmoid(z)  # a plain gain here
        return o.reshape(t, -1) @ self.w(p + "out_proj").T

    def visible(self, c: Config, iq: Array, st: SparseState, gain: Array) -> list[Array]:
        """The tokens each row of index queries [T, heads, D] attends to, ascending."""
        last = st.before + np.arange(len(iq))
        if c.ratio == 0:
            return [np.arange(p + 1) for p in last]
        n, r = len(st.index) // c.ratio, c.ratio
        pooled = st.index[: n * r].reshape(n, 1, r, c.index_dim).mean(2)
        keys = rope(norm(pooled, gain, c.eps), np.arange(n) * r, c.rotated, c.base)[:, 0]
        out = []
        for p, q in zip(last, iq, strict=True):
            whole = (p + 1) // r  # blocks that are complete where the row stands
            score = np.maximum(q @ keys[:whole].T, 0).sum(0) / self.dtype(np.sqrt(c.index_dim))
            blocks = np.sort(best(score, c.budget // r))
            chosen = (blocks[:, None] * r + np.arange(r)).ravel()
            out.append(np.concatenate([chosen, np.arange(whole * r, p + 1)]))
        return out

    def attention(self, x: Array, p: str, c: Config, st: SparseState) -> Array:
        t, pos = len(x), len(st.k) + np.arange(len(x))
        q = (x @ self.w(p + "q_proj").T).reshape(t, c.n_head, -1)
        q, gate = np.split(q, 2, -1)  # of each head
        k, v = ((x @ self.w(f"{p}{n}_proj").T).reshape(t, c.n_kv, c.head_dim) for n in "kv")
        q = rope(norm(q, self.w(p + "q_norm"), c.eps), pos, c.rotated, c.base)
        k = rope(norm(k, self.w(p + "k_norm"), c.eps), pos, c.rotated, c.base)
        y = x @ self.w(p + "indexer.index_qk_proj").T
        iq, ik = np.split(y, [c.index_heads * c.index_dim], 1)
        iq = norm(iq.reshape(t, c.index_heads, -1), self.w(p + "indexer.q_layernorm"), c.eps)
        st.push(k, v, ik)
        seen = self.visible(
            c, rope(iq, pos, c.rotated, c.base), st, self.w(p + "indexer.k_layernorm")
        )
        out = np.empty((t, c.n_kv, c.n_head // c.n_kv, c.head_dim), self.dtype)
        for row, at in enumerate(seen):
            keys, values = (a[at].swapaxes(0, 1) for a in (st.k, st.v))  # [n_kv, seen, D]
            score = q[row].reshape(out.shape[1:]) @ keys.swapaxes(1, 2)
            out[row] = softmax(score / self.dtype(np.sqrt(c.head_dim))) @ values
        return (out.reshape(q.shape) * sigmoid(gate)).reshape(t, -1) @ self.w(p + "o_proj").T

    def ffn(self, x: Array, layer: int) -> Array:
        c, p = self.c, self.layer(layer) + "mlp."
        share = softmax(x @ self.w(p + "gate").T)
        chosen = best(share, c.top)
        share = np.take_along_axis(share, chosen, 1)
        if c.normalised:
            share = share / share.sum(1, keepdims=True)
        out = np.zeros_like(x)
        for e in np.unique(chosen):
            row, col = np.nonzero(chosen == e)
            out[row] += share[row, col, None] * swiglu(x[row], *self.kept_expert(layer, int(e)))
        common = swiglu(x, *(self.w(f"{p}shared_expert.{n}_proj") for n in ("gate", "up", "down")))
        return out + sigmoid(x @ self.w(p + "shared_expert_gate").T) * common

    def run_layer(self, s: Array, i: int, st: Any) -> Array:
        p = self.layer(i)
        if isinstance(st, SparseState):
            c = self.draft if i == len(self.c.sparse) else self.c
            f = lambda x: self.attention(x, p + "self_attn.", c, st)  # noqa: E731
        else:
            f = lambda x: self.delta_net(x, p + "linear_attn.", st)  # noqa: E731
        s = self.around(s, p + "attn_hyper_connection", f)
        return self.around(s, p + "mlp_hyper_connection", lambda x: self.ffn(x, i))

    def logits(self, s: Array, mixer: str) -> Array:
        return self.mix(s, mixer + "hyper_connection_mixer")[0] @ self.w(self.head).T

    # Trunk

    def new_state(self) -> State:
        return State(self.c, self.dtype)

    def extend(self, st: State, tokens: Sequence[int] | Array,
               trace: dict[str, Array] | None = None) -> tuple[Array, Array]:  # fmt: skip
        """Logits [T, V] and wide states [T, streams * dim] of the tokens after those `st` has seen.
        `trace` receives `ple_rows` and the wide state after each layer, `layer0` and so on."""
        ids = np.asarray(tokens, np.int64)
        s = np.tile(self.w(self.prefix + "embed_tokens")[ids], (1, self.c.streams))
        trace = {} if trace is None else trace
        for i, part in enumerate(st.layers):
            if i == self.c.hashed:
                seen = st.hashed.tokens.push(ids)
                rows = hash_rows(seen[: self.c.orders - 1], ids, self.constants(), self.c)
                trace["ple_rows"] = rows
                s = self.add_hashed(s, self.table(rows), st.hashed.conv)
            s = trace[f"layer{i}"] = self.run_layer(s, i, part)
        st.n, st.chunk = st.n + len(ids), len(ids)
        return self.logits(s, self.prefix), s

    def full(self, tokens: Sequence[int] | Array, trace: dict[str, Array] | None = None):  # noqa: ANN201
        return self.extend(self.new_state(), tokens, trace)

    def evaluate(
        self, ids: Sequence[int] | Array, outputs: Sequence[str] = ("logits",)
    ) -> dict[str, Array]:
        """The outputs of an engine by their names; row j of `mtp_logits` is of the target's wide
        state at j and token j + 1."""
        found: dict[str, Array] = {}
        found["logits"], wide = self.full(ids, found)
        if "mtp_logits" in outputs:
            found["mtp_logits"] = self.draft_extend(self.new_draft_state(), wide[:-1], ids[1:])[0]
        return {name: found[name] for name in outputs}

    # Draft head

    def new_draft_state(self) -> SparseState:
        """Row j belongs to the wide state at j and token j + 1, and stands at position j."""
        return SparseState(self.c, self.dtype)

    def draft_extend(self, st: SparseState, wide: Array, tokens: Sequence[int] | Array,
                     form: str | None = None) -> tuple[Array, Array]:  # fmt: skip
        """wide [T, streams * dim]: the target's, or the head's own while it drafts; tokens [T]: the
        one after each. Logits of the token after that, and the head's own wide state."""
        c, form = self.c, form or self.form
        assert form in FORMS
        e = self.w(self.prefix + "embed_tokens")[np.asarray(tokens, np.int64)]
        e = norm(e, self.w("mtp.pre_fc_norm_embedding"), c.eps) @ self.w("mtp.fc_embedding").T
        gain = self.w("mtp.pre_fc_norm_hidden")
        n = norm_streams(wide, gain, 1 if form == "whole" else c.streams, c.eps)
        y = n.reshape(len(n), c.streams, -1) @ self.w("mtp.fc_hidden").T + e[:, None]
        s = self.run_layer(y.reshape(n.shape), len(c.sparse), st)
        return self.logits(s, "mtp."), s

    def draft_chain(self, st: SparseState, wide: Array, tokens: Sequence[int] | Array, k: int,
                    form: str | None = None, trace: list[Array] | None = None) -> list[int]:  # fmt: skip
        """Enters the true rows for good, then drafts k tokens from its own wide states; their rows go
        again. `trace` receives the logits of each step."""
        logits, own = self.draft_extend(st, wide, tokens, form)
        keep, out = len(st.k), [int(logits[-1].argmax())]
        steps = [logits[-1]]
        while len(out) < k:
            logits, own = self.draft_extend(st, own[-1:], out[-1:], form)
            out.append(int(logits[-1].argmax()))
            steps.append(logits[-1])
        st.cut(keep)
        if trace is not None:
            trace += steps
        return out

    # Generation

    def generate(self, prompt: Sequence[int] | Array, n: int,
                 trace: list[Array] | None = None) -> list[int]:  # fmt: skip
        """n greedy tokens, one row at a time. `trace` receives the logits of each."""
        st, out, feed = self.new_state(), [], prompt
        for _ in range(n):
            row = self.extend(st, feed)[0][-1]
            out.append(int(row.argmax()))
            feed = out[-1:]
            if trace is not None:
                trace.append(row)
        return out

    def speculate(self, prompt: Sequence[int] | Array, n: int, k: int, form: str | None = None,
                  edit: Callable[[int, list[int]], list[int]] | None = None):  # fmt: skip  # noqa: ANN201
        """The same n tokens in rounds of k drafts, and how many each round accepted.
        `edit(tokens so far, drafts)` may replace the drafts."""
        st, draft_st = self.new_state(), self.new_draft_state()
        logits, wide = self.extend(st, prompt)
        out, accepted = [int(logits[-1].argmax())], []
        following = [*(int(t) for t in prompt[1:]), out[0]]
        while len(out) < n:
            drafts = self.draft_chain(draft_st, wide, following, k, form)
            drafts = edit(len(out), drafts) if edit else drafts
            logits, wide = self.extend(st, [out[-1], *drafts])
            target = [int(t) for t in logits.argmax(1)]
            m = next((i for i in range(k) if drafts[i] != target[i]), k)
            st.commit(m + 1)
            accepted.append(m)
            out += target[: m + 1]
            wide, following = wide[: m + 1], target[: m + 1]
        return out[:n], accepted
