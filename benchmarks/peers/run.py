"""Stoker beside llama.cpp on the CPU: same file, same tokens, same threads, alternating processes."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent


def child(python: str, script: str, *args: str) -> dict[str, Any]:
    command = [python, str(HERE / script), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGILL and "--no-amx" not in args and "llama" in script:
        # Machines exist whose processor names AMX and whose system does not permit it.
        return {**child(python, script, *args, "--no-amx"), "amx": "died of SIGILL; run without"}
    if done.returncode:
        return {"engine": script, "status": "failed", "error": done.stderr.strip()[-500:]}
    return {**json.loads(done.stdout.splitlines()[-1]), "status": "ran"}


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer-python", help="interpreter that has llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=3, help="of each engine, alternating")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = Path(args.model)
    provenance = {
        "kind": "cpu_beside_peer", "date": datetime.date.today().isoformat(), "model": model.name,
        "model_bytes": model.stat().st_size,
        "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "cpu": cpu(), "cores": len(os.sched_getaffinity(0)), "threads": args.threads,
        "python": platform.python_version(), "load_before": os.getloadavg()[0],
    }  # fmt: skip
    engines = [(sys.executable, "stoker_child.py")]
    if args.peer_python:
        engines.append((args.peer_python, "llama_cpp_child.py"))
    common = ["--model", str(model), "--threads", str(args.threads), "--repeats", str(args.repeats)]
    best: dict[str, dict[str, list[float]]] = {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a") as out:
        if not args.peer_python:
            out.write(json.dumps({**provenance, "engine": "llama.cpp", "status": "not run"}) + "\n")
        for context, only in ((1024, None), (512, "decode")):
            for n in range(args.processes if only is None else 1):
                for python, script in engines:
                    extra = ["--context", str(context), *(["--only", only] if only else [])]
                    r = child(python, script, *common, *extra)
                    line = {**provenance, "context": context, "process": n, **r, "complete": True}
                    out.write(json.dumps(line) + "\n")
                    out.flush()
                    into = best.setdefault(r["engine"], {})
                    if only is None:
                        for key in ("decode_tokens_per_s", "prefill_tokens_per_s"):
                            into.setdefault(key, []).extend(r.get(key, []))
                    else:
                        into["peak MiB at context 512"] = [r.get("peak_bytes", 0) / 2**20]
    for engine, values in best.items():
        for key, x in values.items():
            spread = f"{min(x):.1f} .. {max(x):.1f}" if x else "none"
            print(
                f"{engine:12} {key:26} {median(x) if x else 0:9.1f}  ({spread}, {len(x)} samples)"
            )
    if len(best) == 2 and all("decode_tokens_per_s" in v for v in best.values()):
        ours, theirs = best["stoker"], best.get("llama.cpp", {})
        for key in ("decode_tokens_per_s", "prefill_tokens_per_s"):
            if theirs.get(key):
                print(f"ratio        {key:26} {median(ours[key]) / median(theirs[key]):9.3f}")


if __name__ == "__main__":
    main()
