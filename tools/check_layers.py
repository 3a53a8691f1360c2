"""Who may include whom, and what the host code may call. Reads #include lines only, so it needs no
compiler. `python tools/check_layers.py [ROOT]`; exit status 1 and one line for each breach."""

import re
import sys
from pathlib import Path

# layer: the layers it may include besides itself. Lower never includes higher.
MAY = {
    "base": set(),
    "ckpt": {"base"},
    "op": {"base"},
    "dev": {"base", "kernels/floor/floor.h"},
    "op/cuda": {
        *("base", "op", "dev", "kernels/sk_kernels.h", "kernels/streams/tables.h"),
        "kernels/linear/split.h",
        *(f"kernels/{family}/sizes.h" for family in ("linear", "attend", "sparse", "hyper")),
    },
    "plan": {"base", "op"},
    "model": {"base", "ckpt", "op", "plan"},
    "graph": {"base", "op", "op/cuda", "dev", "plan"},
    "replay": {"base", "dev", "plan", "graph", "op/ctl.h"},
    "engine": {
        *("base", "ckpt", "op", "dev", "op/cuda", "plan", "model", "graph", "replay"),
        "kernels/sk_kernels.h",
    },
    "py": {
        "base",
        "ckpt",
        "op",
        "op/cuda",
        "dev",
        "plan",
        "model",
        "engine",
        "graph/once.h",
        "graph/chain.h",
    },
    "fuzz": {"base", "ckpt", "op", "plan"},
    "kernels": {
        *("op/args.h", "op/args_hybrid.h", "op/ctl.h", "op/ops.def"),
        *("base/codebook_numbers.h", "base/synth.h"),
    },
    "tests/c": {
        *("base", "ckpt", "op", "dev", "op/cuda", "plan", "model", "graph", "replay", "engine"),
        *("kernels/sk_kernels.h", "kernels/common/divide.h", "kernels/experts/schedule.h"),
        *("kernels/attend/sizes.h", "kernels/sparse/sizes.h"),
    },
}
# setup.py puts these in the place of dev_null.c, and they alone of the host code know CUDA.
DEV_CUDA = {f"csrc/dev/dev_cuda{part}.c" for part in ("", "_mem", "_graph", "_floor")}
OP_CUDA = {f"csrc/op/cuda/{part}.c" for part in ("table", "group")}  # likewise, for null.c
UNLISTED = {*DEV_CUDA, *OP_CUDA, "tests/c/main.c"}
CUDA_FILES = {*DEV_CUDA, "csrc/dev/dev_cuda_impl.h", "tests/c/emulated_cuda.h"}
CUDA_HEADER = re.compile(
    r"(cuda|cublas|nccl|cupti|nvtx|cooperative_groups|driver_types|vector_types)"
)
HOST_IO = {"stdio.h", "stdlib.h", "unistd.h", "fcntl.h", "errno.h", "string.h"}
# A library neither ends the process nor prints nor reads the environment; memory comes from mem.h.
CALLS = re.compile(
    r"(?<![\w.>])(exit|_exit|abort|printf|fprintf|puts|fputs|perror|getenv|setenv|sprintf|strcpy|"
    r"strcat|gets|alloca|setjmp|longjmp|malloc|calloc|realloc|aligned_alloc|posix_memalign|free)\s*\("
)
MEMORY = {"malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign", "free"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def layer_of(path):
    """'csrc/op/cuda/table.c' -> 'op/cuda'; None for a path that no layer owns."""
    parts = Path(path).parts
    if parts[0] == "kernels":
        return "kernels"
    if parts[0] == "csrc":
        parts = parts[1:]
    for n in (2, 1):
        name = "/".join(parts[:n])
        if len(parts) > n and name in MAY:
            return name
    return None


def blank(text):
    """Comments and literals replaced by spaces, so that line numbers stay."""
    return TEXT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def breaches(path, text, exists):
    """Yields (line, message) for one file; `exists(path)` says whether a file is in the tree."""
    layer = layer_of(path)
    if layer is None:
        yield 1, "no layer owns this folder (tools/check_layers.py has the list)"
        return
    file = Path(path)
    own = file.with_suffix(".h")
    first = None
    code = blank(text)
    for m in INCLUDE.finditer(text):
        line = text.count("\n", 0, m.start(1)) + 1
        if not code.splitlines()[line - 1].lstrip().startswith("#"):
            continue  # in a comment
        kind, name = m.groups()
        first = first or name
        if kind == '"':
            target = name if name.startswith(("kernels/", "tests/")) else f"csrc/{name}"
            if not exists(target):
                yield (
                    line,
                    f'"{name}": includes are written from csrc/ (or kernels/, tests/); no such file',
                )
                continue
            other = layer_of(target)
            if other != layer and other not in MAY[layer] and name not in MAY[layer]:
                yield line, f'{layer} may not include {other} ("{name}")'
        elif name == "Python.h" or name.startswith("numpy/"):
            if layer != "py":
                yield line, f"<{name}> belongs to csrc/py only"
        elif CUDA_HEADER.match(name):
            if layer != "kernels" and path not in CUDA_FILES:
                yield line, f"<{name}> belongs to csrc/dev/dev_cuda*.c and kernels only"
        elif layer == "kernels" and name in HOST_IO:
            yield line, f"<{name}>: kernels use no libc"
    if file.suffix == ".c" and exists(str(own)):
        want = str(own.relative_to("csrc") if file.parts[0] == "csrc" else own)
        if first != want:
            yield 1, f'the first include is "{first}", not the own header "{want}"'
    if layer in ("fuzz", "tests/c"):
        return
    for m in CALLS.finditer(code):
        name = m[1]
        if name in MEMORY and path == "csrc/base/mem.c":
            continue
        yield (
            code.count("\n", 0, m.start()) + 1,
            f"{name}() is not for library code" + (" (base/mem.h)" if name in MEMORY else ""),
        )


def main(root):
    files = sorted(
        p.relative_to(root)
        for folder in ("csrc", "kernels", "tests/c")
        for p in (root / folder).rglob("*")
        if p.suffix in (".c", ".h", ".cu", ".cuh", ".def") and "lab" not in p.parts
    )
    bad = 0
    for path in files:
        text = (root / path).read_text()
        for line, message in breaches(str(path), text, lambda p: (root / p).is_file()):
            print(f"{path}:{line}: {message}")
            bad += 1
    for listing, found in (
        ("csrc/sources.txt", {f for f in files if f.parts[0] == "csrc" and f.suffix == ".c"}),
        ("kernels/sources.txt", {f for f in files if f.suffix == ".cu"}),
        ("tests/c/sources.txt", {f for f in files if f.parts[0] == "tests" and f.suffix == ".c"}),
    ):
        listed = {Path(word) for word in re.sub("#.*", "", (root / listing).read_text()).split()}
        found = {str(f) for f in found if f.parts[1] != "fuzz"} - UNLISTED
        for path in sorted(found ^ {str(f) for f in listed}):
            print(f"{listing}: {path} {'is not listed' if path in found else 'does not exist'}")
            bad += 1
    print(f"layers: {len(files)} files, {bad} breaches")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
