"""Every kernel once or twice, and a recorded round, for compute-sanitizer: it looks at how memory is
used and not at results, which the tests have. One process for one tool:

    compute-sanitizer --tool racecheck python tests/py/gpu/sanitize.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent / "oracle")]

import numpy as np  # noqa: E402
import test_gpu_attend as attend  # noqa: E402
import test_gpu_engine as engines  # noqa: E402
import test_gpu_experts as experts  # noqa: E402
import test_gpu_ops as ops  # noqa: E402
import tiny  # noqa: E402
from gpu_tools import block  # noqa: E402
from op_tools import ints, run  # noqa: E402


def products() -> None:
    rng = np.random.default_rng(0)
    for kind in ops.TYPES:
        k = 192 if block(kind) <= 64 else 256
        for name, op in ops.products(kind, 70, k, rng).items():
            for rows in (5, 20, 41):
                x, _ = ops.stream(rng, rows, k)
                op(x, "cuda", min(rows, 17))
            print(kind, name, flush=True)


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


def rounds(folder: Path) -> None:
    for name in ("llama", "gemma3"):
        path = tiny.write(folder / f"{name}.gguf", engines.SHAPES[name], seed=1)
        for drafter in ("planted:4", "ngram:3", "none"):
            with engines.engine(path, drafter, slots=2) as e:
                for full in (True, False):
                    e._session.reset(0)
                    engines.trace(e, range(10, 40), 6, full=full, ahead=0 if full else 2)
            print("rounds", name, drafter, flush=True)


if __name__ == "__main__":
    parts = sys.argv[1:] or ["products", "vocabulary", "mixtures", "attention", "rounds"]
    for part in ("products", "vocabulary", "mixtures", "attention"):
        if part in parts:
            globals()[part]()
    if "rounds" in parts:
        with tempfile.TemporaryDirectory() as folder:
            rounds(Path(folder))
    print("done")
