"""Build of stoker._native: one stable-ABI extension; C by the host compiler, kernels by nvcc.

setuptools knows neither headers nor nvcc, so the build_ext subclass below compiles and links by
itself. A step is fresh while every file it read (by the compiler's own dependency file) has the
time and size it had then; its command line and compiler version are hashed into the name of its
output. All of it is kept in build/obj, for `pip install -e .` too. Environment: docs/building.md."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, SetupError

ROOT = Path(__file__).resolve().parent
OBJ = ROOT / "build" / "obj"
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")  # no stable ABI there before 3.15
LINK = ["-shared", "-pthread", "-Wl,--exclude-libs,ALL", "-Wl,-z,now", "-Wl,-z,relro"]
# With nvcc these files take the place of those that say that there is no CUDA.
STAND_INS = {
    "csrc/dev/dev_null.c": ["csrc/dev/dev_cuda*.c"],
    "csrc/op/cuda/null.c": ["csrc/op/cuda/group.c", "csrc/op/cuda/table.c"],
}
TOLD = ("csrc/py/module.c", "csrc/dev/dev")  # where the SK_BUILD_ macros are seen


def words(path):
    """A list file's entries: white space separates, '#' starts a comment."""
    return re.sub("#.*", "", (ROOT / path).read_text()).split()


def env(name, default, one, many=False):
    value = os.environ.get(name) or default
    if not re.fullmatch(f"(({one})[ ,;]*)*" if many else one, value):
        raise SetupError(f"{name}={value!r}: expected {one}{' (several with commas)' * many}")
    return re.split("[ ,;]+", value.strip(" ,;")) if many and value else [] if many else value


def run(cmd):
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    try:
        return subprocess.run(cmd, cwd=ROOT, check=False, **both)
    except OSError as e:
        raise CompileError(f"{cmd[0]}: {e.strerror}") from None


def find_nvcc():
    """(nvcc, folder of libcudart_static.a), or (None, None) for a build without CUDA."""
    mode = env("STOKER_CUDA", "auto", "auto|0|1")
    if mode == "0":
        return None, None
    asked = os.environ.get("STOKER_NVCC")  # an explicit wish is not replaced by a guess
    homes = [(name, os.environ.get(name)) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [("STOKER_NVCC", asked), *[(n, home and f"{home}/bin/nvcc") for n, home in homes]]
    places += [("PATH", shutil.which("nvcc")), ("usual place", "/usr/local/cuda/bin/nvcc")]
    tried = []
    for origin, path in places[:1] if asked else places:
        tried.append(f"{origin}: {path or 'none'}")
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            home = Path(path).resolve().parent.parent
            for sub in ("lib64", "lib", "targets/x86_64-linux/lib"):
                if (home / sub / "libcudart_static.a").is_file():
                    return path, home / sub
            tried[-1] += " (without libcudart_static.a)"
    if mode == "1" or asked:
        raise SetupError("no usable nvcc; tried, in this order:\n  " + "\n  ".join(tried))
    print("*** stoker: NO nvcc, BUILDING WITHOUT CUDA (STOKER_CUDA=1 makes this an error; "
          f"tried {', '.join(tried)}) ***", file=sys.stderr, flush=True)  # fmt: skip
    return None, None


def signature(paths):
    return {p: [(ROOT / p).stat().st_mtime_ns, (ROOT / p).stat().st_size] for p in paths}


class Step:
    """One command that makes one file. The output's name carries a hash of `cmd` and `key`; `late`
    options are not hashed. Without `inputs` the compiler reports what it read."""

    def __init__(self, kind, source, suffix, cmd, key, late=(), inputs=None):
        tag = hashlib.sha256("\0".join([*cmd, *key]).encode()).hexdigest()[:12]
        self.kind, self.source, self.inputs = kind, source, inputs
        self.out = OBJ / f"{Path(source).with_suffix('')}.{tag}{suffix}"
        self.sig, self.log = Path(f"{self.out}.sig"), Path(f"{self.out}.log")
        self.tmp, self.dep = (Path(f"{self.out}.{os.getpid()}{x}") for x in ("", ".d"))
        self.cmd = [*cmd, *late, "-o", str(self.tmp)]
        self.cmd += ["-MMD", "-MF", str(self.dep)] if inputs is None else []

    def fresh(self):
        try:
            read = json.loads(self.sig.read_text())
            return self.out.exists() and read == signature(read)
        except (OSError, ValueError):
            return False

    def make(self):
        print(f"  {self.kind:4} {self.source}\n", end="", flush=True)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.sig.unlink(missing_ok=True)
        self.tmp.touch()
        began = self.tmp.stat().st_mtime_ns  # by the clock that also stamps the sources
        done = run(self.cmd)
        if done.returncode:
            self.tmp.unlink(missing_ok=True)
            self.dep.unlink(missing_ok=True)
            raise CompileError(f"{shlex.join(self.cmd)}\n{done.stdout}")
        if "warning" in done.stdout:
            print(done.stdout, file=sys.stderr, flush=True)
        self.log.write_text(done.stdout)
        if self.inputs is None:
            text = self.dep.read_text().replace("\\\n", " ").split(":", 1)[1]
            self.inputs = [p.replace("\\ ", " ") for p in re.split(r"(?<!\\)\s+", text) if p]
            self.dep.unlink()
        sig = signature(self.inputs)
        for stamp in sig.values():  # edited while the compiler ran: never fresh
            stamp[1] = -1 if stamp[0] >= began else stamp[1]
        os.replace(self.tmp, self.out)
        self.sig.write_text(json.dumps(sig))


def update(steps, jobs):
    stale = [s for s in steps if not s.fresh()]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(Step.make, stale))  # the first failure cancels those not yet begun
    return len(stale)


class BuildExt(build_ext):
    def build_extension(self, ext):
        import numpy

        nvcc, cuda_lib = find_nvcc()
        archs = env("STOKER_CUDA_ARCHS", "90a", "[0-9]+[af]?(-virtual)?", many=True)
        sanitize = env("STOKER_SANITIZE", "", "address|undefined|thread|leak", many=True)
        debug, faults, werror = (env(f"STOKER_{n}", "0", "0|1") == "1" for n in
                                 ("DEBUG", "FAULTS", "WERROR"))  # fmt: skip
        jobs = env("STOKER_BUILD_JOBS", str(len(os.sched_getaffinity(0))), "[1-9][0-9]*")
        cc = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        cc_id = run([*cc, "--version"]).stdout
        nvcc_id = run([nvcc, "--version"]).stdout if nvcc else ""

        flags = words("csrc/flags.txt") + (["-g", "-O0"] if debug else ["-g1", "-DNDEBUG"])
        flags += ["-Werror"] * werror + ["-DSK_FAULTS"] * faults
        san = [f"-fsanitize={','.join(sanitize)}", "-fno-sanitize-recover=all"] if sanitize else []
        # -w: the flow analysis of instrumented code warns of what cannot happen.
        flags += [*san, "-fno-omit-frame-pointer", "-w"] if sanitize else []
        flags += shlex.split(f"{os.environ.get('CPPFLAGS', '')} {os.environ.get('CFLAGS', '')}")
        told = {
            "VERSION": self.distribution.get_version(),
            "FLAGS": " ".join(f for f in flags if not f.startswith(("-W", "-D"))),
            "SANITIZE": " ".join(sanitize),
            "ARCHS": " ".join(archs) if nvcc else "",
            "NVCC": re.findall(r"\bV([0-9.]+)|$", nvcc_id)[0],
        }
        told = [f'-DSK_BUILD_{name}="{value}"' for name, value in told.items()]
        told += [f"-DSK_BUILD_DEBUG={int(debug)}"] + ["-DSK_WITH_CUDA=1"] * bool(nvcc)
        late = [f"-ffile-prefix-map={ROOT}=.", "-isystem", numpy.get_include()]
        late += ["-isystem", sysconfig.get_path("include")]
        late += ["-isystem", str(cuda_lib.parent / "include")] if nvcc else []

        steps = []
        sources = list(ext.sources)
        for null, real in STAND_INS.items() if nvcc else ():
            if null not in sources:
                continue
            at = sources.index(null)
            found = sorted(p for pattern in real for p in ROOT.glob(pattern))
            sources[at : at + 1] = [str(p.relative_to(ROOT)) for p in found]
        for src in sources:
            binding = src.startswith("csrc/py/")
            own = ["-Wno-pedantic", "-Wno-write-strings"] * binding  # slots: void *, char *
            own += ["-DPy_LIMITED_API=0x030B0000"] * (binding and LIMITED)
            cmd = [*cc, *flags, *own, *told * src.startswith(TOLD), "-Icsrc", "-I.", "-c", src]
            key = [cc_id, nvcc_id, *[numpy.__version__, sys.version] * binding]
            steps.append(Step("CC", src, ".o", cmd, key, late))
        for src in words("kernels/sources.txt") if nvcc else []:
            cmd = [nvcc, *words("kernels/flags.txt"), *["-Werror", "all-warnings"] * werror]
            cmd += ["-lineinfo"] * debug  # names files by their path on this machine
            codes = [(a.split("-")[0], "compute" if "-" in a else "sm") for a in archs]
            cmd += [f"-gencode=arch=compute_{n},code={kind}_{n}" for n, kind in codes]
            steps.append(Step("NVCC", src, ".o", [*cmd, "-Icsrc", "-I.", "-c", src], [nvcc_id]))
        commands = [{"directory": str(ROOT), "file": s.source, "output": str(s.out),
                     "arguments": s.cmd} for s in steps]  # fmt: skip
        OBJ.mkdir(parents=True, exist_ok=True)
        (OBJ.parent / "compile_commands.json").write_text(json.dumps(commands, indent=1))
        compiled = update(steps, int(jobs))
        objects = [str(s.out.relative_to(ROOT)) for s in steps]
        libs = ["-lm"] + ([f"-L{cuda_lib}", "-lcudart_static", "-lrt", "-ldl"] if nvcc else [])
        cmd = [*cc, *LINK, *san, *objects, *shlex.split(os.environ.get("LDFLAGS", "")), *libs]
        link = Step("LD", ext.name, ".so", cmd, [cc_id], inputs=objects)
        print(f"compiled {compiled} of {len(steps)} files, linked {update([link], 1)}", flush=True)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # another process may have the old one mapped
        shutil.copy2(link.out, target)


setup(
    ext_modules=[Extension("stoker._native", words("csrc/sources.txt"), py_limited_api=LIMITED)],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
)
