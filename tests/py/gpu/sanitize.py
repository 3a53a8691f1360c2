"""Every kernel once or twice, and a recorded round, for compute-sanitizer: it looks at how memory is
used and not at results, which the tests have. One process for one tool:

    compute-sanitizer --tool racecheck python tests/py/gpu/sanitize.py [PART...] [--types Q4_K,...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FLASH = HERE.parent.parent / "data" / "flash_tiny"
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent / "oracle")]

import numpy as np  # noqa: E402
import test_gpu_attend as attend  # noqa: E402
import test_gpu_engine as engines  # noqa: E402
import test_gpu_experts as experts  # noqa: E402
import test_gpu_hybrid as hybrids  # noqa: E402
import test_gpu_ops as ops  # noqa: E402
import test_gpu_sparse as sparse  # noqa: E402
import tiny  # noqa: E402
from gpu_tools import block  # noqa: E402
from op_tools import ints, run  # noqa: E402


def products() -> None:
    rng = np.random.default_rng(0)
    for kind in ops.TYPES:
        k = 192 if block(kind) <= 64 else 256
        for name, op in ops.products(kind, 70, k, rng).items():
            for rows in (5, 20, 33, 41):
                x, _ = ops.stream(rng, rows, k)
                op(x, "cuda", min(rows, 17))
            print(kind, name, flush=True)


def teams() -> None:
    """Parts of so many outputs that four warps multiply together at 20 rows too."""
    rng = np.random.default_rng(4)
    n, k, s = 2568, 2048, 8
    for kind in ops.PART_TYPES:
        w, _ = ops.weights(kind, n, k, rng)
        for rows in (5, 20, 40):
            x, _ = ops.stream(rng, rows, k)
            ops.linear_parts(x, w, n, s, "cuda", rows - 1)
        print("teams", kind, flush=True)


def vocabulary() -> None:
    """Enough tiles to be streamed, and more than there are multiprocessors."""
    rng = np.random.default_rng(1)
    one, _, _ = ops.segments(("Q4_1",), (17000,), 192, rng, index=False)
    x, _ = ops.stream(rng, 3, 192)
    out = np.zeros(3, np.int32)
    run("norm_argmax", "cuda", 1, x=x, gain=np.ones(192, np.float32), count=ints(3), id=out,
        eps=1e-5, act=30, **one)  # fmt: skip


def mixtures() -> None:
    for kind in experts.TYPES:
        rng = np.random.default_rng(3)
        e, t, n, k = experts.shapes(kind)[0]
        m = experts.Mixture(kind, e, n, k, rng)
        for p in (1, 5, 40):
            ids = experts.routing(rng, p, t, e)
            experts.route_list(ids, "cuda")
            m.glu(experts.rows(rng, p, k), ids)
            y = m.linear(experts.rows(rng, p * t, k), ids)
            experts.expert_sum(y, rng.random((p, t)).astype(np.float32), "cuda")
        print("mixtures", kind, flush=True)


def attention() -> None:
    for dim, group in ((64, 3), (32, 1), (128, 7), (256, 4), (64, 9)):
        rng = np.random.default_rng(2)
        f = attend.Fresh(rng, [(0, 130, 3), (1, 520, 5)], dim, group)
        f.run()
        f.run("cuda-2048", window=77)
        f.parts()
        attend.Fresh(rng, [(1, 30, 41)], dim, group).run()
        print("attention", dim, group, flush=True)


def hybrid() -> None:
    for kind in hybrids.ACTS:
        hybrids.test_rows_that_are_kept(kind)
        hybrids.test_windows(kind, False)
        hybrids.test_conv(4, 3, kind)
        hybrids.test_gated_norm((6, 3, 7), kind)
        hybrids.test_mtp_join(kind, 1)
        for weight in hybrids.TABLES:
            hybrids.test_gather_heads(weight, kind)
    hybrids.test_row_tables_and_ids()
    hybrids.test_rows_of_ngrams()
    hybrids.test_copy_add_inject()
    hybrids.test_ple_gate((2, 3, 333))
    for shape in hybrids.SHAPES:
        hybrids.test_gdn_inputs(shape)
        hybrids.test_step_and_scan(shape, "grouped")
        hybrids.test_fold_is_a_scan(shape, "tiled")
    print("hybrid", flush=True)


def routing() -> None:
    for normed in (0, 1):
        sparse.test_route_topk(normed)
        sparse.test_route_topk_of_uneven_rows(normed)
    sparse.test_route_force()
    sparse.test_gate_add()
    print("routing", flush=True)


def blocks() -> None:
    for ratio in sparse.RATIOS[:2]:
        sparse.test_index_append(28, ratio)
        sparse.test_block_topk(3, 7, ratio)
        sparse.test_attend_blocks(True, 4, 2, 32, ratio)
    print("blocks", flush=True)


def connections() -> None:
    for kind in ("F16", "Q8_0", "Q4_K"):
        sparse.test_hyper_down(kind, "F32")
        sparse.test_hyper_mix(kind)
        print("connections", kind, flush=True)
    sparse.test_hyper_mix_in_one_launch("F16")
    print("connections, mixed in one launch", flush=True)


def flash() -> None:
    """The stored model: rounds that draft and rounds that do not, both forms of hyper-connections,
    the table in either memory."""
    for drafter, options in (("none", {}), ("mtp:3", {"fused": False}),
                             ("mtp:3", {"embedding_table": "ram"})):  # fmt: skip
        with engines.engine(FLASH, drafter, slots=2, **options) as e:
            engines.trace(e, range(10, 40), 6)
        print("flash", drafter, options, flush=True)


def rounds(folder: Path) -> None:
    for name in ("llama", "gemma3"):
        path = tiny.write(folder / f"{name}.gguf", engines.SHAPES[name], seed=1)
        for drafter in ("planted:4", "ngram:3", "none"):
            with engines.engine(path, drafter, slots=2) as e:
                for full in (True, False):
                    e._session.reset(0)
                    engines.trace(e, range(10, 40), 6, full=full, ahead=0 if full else 2)
            print("rounds", name, drafter, flush=True)


PARTS = {
    f.__name__: f
    for f in (products, teams, vocabulary, mixtures, attention, hybrid, blocks, routing,
              connections, flash)
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join([*PARTS, "rounds"]))
    parser.add_argument("--types", help="of weights, for products, teams and mixtures")
    args = parser.parse_args()
    if unknown := set(args.parts) - {*PARTS, "rounds"}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if args.types:
        only = args.types.split(",")
        for module, name in ((ops, "TYPES"), (ops, "PART_TYPES"), (experts, "TYPES")):
            setattr(module, name, [kind for kind in getattr(module, name) if kind in only])
    for name, part in PARTS.items():
        if not args.parts or name in args.parts:
            part()
    if not args.parts or "rounds" in args.parts:
        with tempfile.TemporaryDirectory() as folder:
            rounds(Path(folder))
    print("done")


if __name__ == "__main__":
    main()
