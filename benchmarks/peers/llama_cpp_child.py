"""One process of the comparison: llama.cpp through llama-cpp-python's own C bindings.

Tokens are decoded one pass each with llama_decode and a NumPy argmax, so the Python wrapper's
sampling chain is not in the time."""

from __future__ import annotations

import argparse
from functools import partial

import llama_cpp
import numpy as np
from common import DECODE, PREFILL, PROMPT, report, timed, token_ids


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--only", choices=("decode", "prefill"))
    parser.add_argument("--no-amx", action="store_true", help="keep the weights in plain buffers")
    args = parser.parse_args()
    if args.no_amx:
        defaults = llama_cpp.llama_model_default_params

        def plain() -> object:
            params = defaults()
            params.use_extra_bufts = False
            return params

        llama_cpp.llama_model_default_params = llama_cpp.llama_cpp.llama_model_default_params = (
            plain
        )
    llm = llama_cpp.Llama(
        args.model, n_ctx=args.context, n_batch=PREFILL, n_threads=args.threads,
        n_threads_batch=args.threads, n_gpu_layers=0, verbose=False,
    )  # fmt: skip
    ctx, vocab = llm._ctx.ctx, llm.n_vocab()

    def feed(ids: list[int]) -> int:
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        batch = llama_cpp.llama_batch_get_one(tokens, len(ids))
        if llama_cpp.llama_decode(ctx, batch):
            raise RuntimeError("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(ctx, -1)
        return int(np.ctypeslib.as_array(logits, (vocab,)).argmax())

    def clear() -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)

    def extend(ids: list[int]) -> None:
        while len(ids) <= DECODE:
            ids.append(feed(ids[-1:]))

    decode, prefill, ids = [], [], []
    for i in range(args.repeats + 1):  # the first one warms up
        if args.only != "prefill":
            clear()
            ids = [feed(token_ids(PROMPT, vocab))]
            decode += [DECODE / timed(partial(extend, ids))] * (i > 0)
        if args.only != "decode" and args.context > PREFILL:
            clear()
            s = timed(lambda: feed(token_ids(PREFILL, vocab)))
            prefill += [PREFILL / s] * (i > 0)
    report(
        engine="llama.cpp", version=llama_cpp.__version__, numpy=np.__version__,
        build=llama_cpp.llama_print_system_info().decode(), decode_tokens_per_s=decode,
        prefill_tokens_per_s=prefill, first_ids=ids[:16], extra_buffers=not args.no_amx,
    )  # fmt: skip


if __name__ == "__main__":
    main()
