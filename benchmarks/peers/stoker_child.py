"""One process of the comparison: this project."""

from __future__ import annotations

import argparse

import numpy as np
from common import DECODE, PREFILL, PROMPT, report, timed, token_ids

import stoker
from stoker import Engine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--only", choices=("decode", "prefill"))
    args = parser.parse_args()
    decode, prefill, ids = [], [], []
    with Engine(args.model, context=args.context, threads=args.threads) as e:
        vocab = e.config["vocab"]
        short, whole = token_ids(PROMPT, vocab), token_ids(PREFILL, vocab)
        for i in range(args.repeats + 1):  # the first one warms up
            if args.only != "prefill":
                r = e.generate(short, DECODE, ignore_eos=True)
                ids = r.ids
                decode += [DECODE / r.stats.rounds_s] * (i > 0)
            if args.only != "decode" and args.context > PREFILL:
                # All but the last token are prefill; the last goes through one round.
                s = timed(lambda: e.generate(whole, 1, ignore_eos=True))
                prefill += [PREFILL / s] * (i > 0)
        report(
            engine="stoker", version=stoker.__version__, numpy=np.__version__, config=e.config,
            options=e.options, build=stoker.info()["build"], decode_tokens_per_s=decode,
            prefill_tokens_per_s=prefill, first_ids=ids[:16],
        )  # fmt: skip


if __name__ == "__main__":
    main()
