"""The build as a product: what the extension exports and needs, that its stub tells the truth, and
that the compile step rebuilds what an edit affects, and nothing else."""

import ast
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from stoker import _native

ROOT = Path(__file__).resolve().parents[2]
SO = Path(_native.__file__)
UNDER_ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


wheel = load(ROOT / "tests/wheel/check_wheel.py")
layers = load(ROOT / "tools/check_layers.py")
spills = load(ROOT / "tools/check_spills.py")
edges = load(ROOT / "tools/check_edges.py")


# The extension


def test_exports_only_its_init_function():
    assert wheel.exported(SO) == {"PyInit__native"}


def test_needs_only_the_c_library():
    sanitized = any(n.startswith("libasan") for n in wheel.needed(SO))
    assert {
        n for n in wheel.needed(SO) - wheel.NEEDED if not n.startswith(("libasan", "libubsan"))
    } == set()
    assert sanitized == ("address" in _native.build_info()["sanitizers"])


def test_carries_no_path_of_the_build_machine():
    assert wheel.run_paths(SO) == []
    if not _native.build_info()["sanitizers"]:  # those name modules by their path
        assert os.fsencode(ROOT) not in SO.read_bytes()


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="no stable ABI")
def test_is_a_stable_abi_extension():
    assert SO.name == "_native.abi3.so"


def test_resolves_every_symbol_when_it_is_loaded():
    assert re.search(r"FLAGS.*\bNOW\b", wheel.tool("readelf", "-dW", str(SO)))
    assert "GNU_RELRO" in wheel.tool("readelf", "-lW", str(SO))


def test_build_info_is_plain_data():
    info = _native.build_info()
    assert info["version"] == _native.__version__
    assert info["cuda"] == bool(info["archs"]) == bool(info["nvcc"])
    assert "-ffp-contract=off" in info["flags"] and "fast-math" not in info["flags"]
    info["cuda"] = "changed"
    assert _native.build_info()["cuda"] != "changed"


def test_import_is_light():
    code = "import sys, stoker; print(sorted({'numpy', 'stoker._native', 'jinja2', 'rich'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_second_module_object_has_its_own_state():
    spec = importlib.util.spec_from_file_location("stoker._native", SO)
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    assert other is not _native and other.Error is not _native.Error
    assert issubclass(other.FormatError, other.Error)
    with pytest.raises(other.Error):
        other.device_need(-1)


def test_exceptions_have_their_attributes_wherever_they_are_raised():
    for name in dir(_native):
        kind = getattr(_native, name)
        if not (isinstance(kind, type) and issubclass(kind, _native.Error)):
            continue
        error = kind("text")  # as Python code raises it
        assert (error.native, error.where, error.step, error.check) == (0, 0, None, None), name
        assert bool(error.code) == (kind is not _native.Error), name
    with pytest.raises(_native.InvalidArgumentError) as raised:
        _native.run_op("add", {}, "fast", 0)
    assert raised.value.code == "INVALID" == _native.InvalidArgumentError.code


# The stub file


def parameters(node):
    """[(name, kind)] of a function in the stub, without self."""
    a = node.args
    kinds = inspect.Parameter
    out = [(p.arg, kinds.POSITIONAL_ONLY) for p in a.posonlyargs]
    out += [(p.arg, kinds.POSITIONAL_OR_KEYWORD) for p in a.args]
    out += [(a.vararg.arg, kinds.VAR_POSITIONAL)] if a.vararg else []
    out += [(p.arg, kinds.KEYWORD_ONLY) for p in a.kwonlyargs]
    out += [(a.kwarg.arg, kinds.VAR_KEYWORD)] if a.kwarg else []
    return out


def compare_function(where, node, func, method):
    try:
        real = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):
        return  # without a signature in its docstring there is nothing to compare
    decorators = {getattr(d, "id", "") for d in node.decorator_list}
    if decorators & {"property"}:
        return
    stub = parameters(node)
    if method and "staticmethod" not in decorators:
        stub = stub[1:]
        real = real[1:] if real and real[0].name in ("self", "type") else real
    assert [n for n, _ in stub] == [p.name for p in real], where
    assert [k for _, k in stub] == [p.kind for p in real], where


def members(body):
    """name -> node of the names that a module or class body of the stub declares."""
    out = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            out[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            out[node.target.id] = node
        elif isinstance(node, ast.Assign):
            out.update((t.id, node) for t in node.targets)
    return out


def bases(node):
    return [b.id if isinstance(b, ast.Name) else getattr(b, "attr", "") for b in node.bases]


def is_public(name):
    return not name.startswith("_")


def test_stub_names_what_the_module_has():
    stub = members(ast.parse((ROOT / "python/stoker/_native.pyi").read_text()).body)
    only_types = {n for n, node in stub.items()
                  if isinstance(node, ast.ClassDef) and {"TypedDict", "NamedTuple", "Protocol"} & {*bases(node)}}  # fmt: skip
    assert {n for n in stub if is_public(n)} - only_types == {
        n for n in dir(_native) if is_public(n)
    }
    for name, node in stub.items():
        if name in only_types or not is_public(name):
            continue
        real = getattr(_native, name)
        if isinstance(node, ast.FunctionDef):
            compare_function(name, node, real, method=False)
        elif isinstance(node, ast.ClassDef):
            compare_class(name, node, real)


def compare_class(name, node, real):
    assert isinstance(real, type), name
    if issubclass(real, BaseException):
        assert [b.__name__ for b in real.__bases__] == bases(node), name
        return  # attributes are set on the instances
    stub = members(node.body)
    assert {n for n in stub if is_public(n)} == {n for n in vars(real) if is_public(n)}, name
    for member, what in stub.items():
        assert hasattr(real, member), f"{name}.{member}"
        if isinstance(what, ast.FunctionDef) and is_public(member):
            compare_function(f"{name}.{member}", what, vars(real)[member], method=True)


# The compile step, on a tree of three files that is built by the real setup.py


MINI = {
    "pyproject.toml": '[project]\nname = "mini"\nversion = "1"\n[tool.setuptools]\npackages = []\n',
    "csrc/sources.txt": "csrc/base/a.c # a comment\n\ncsrc/base/b.c\ncsrc/py/m.c\n",
    "csrc/flags.txt": "-std=c11 -O0 -fPIC -fvisibility=hidden -Wall\n",
    "csrc/base/status.h": "int a(void);\nint b(void);\n",
    "csrc/base/deep.h": '#include "base/status.h"\n',
    "csrc/base/a.c": '#include "base/deep.h"\nint a(void) { return 1; }\n',
    "csrc/base/b.c": "int b(void);\nint b(void) { return 2; }\n",
    "csrc/py/m.c": """
        #include <Python.h>
        #include "base/status.h"
        static PyObject *f(PyObject *m, PyObject *u) { (void)m; (void)u; return PyLong_FromLong(a() + b()); }
        static PyMethodDef fs[] = {{"f", f, METH_NOARGS, ""}, {0}};
        static struct PyModuleDef d = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_methods = fs};
        PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&d); }
    """,
    "kernels/sources.txt": "kernels/k.cu\n",
    "kernels/flags.txt": "-O0 -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti\n",
    "kernels/k.cuh": "__global__ void k(float *x) { *x = 1; }\n",
    "kernels/k.cu": '#include "kernels/k.cuh"\nextern "C" void go(float *x) { k<<<1, 1>>>(x); }\n',
}


class Mini:
    def __init__(self, root):
        self.root = root
        for name, text in MINI.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        shutil.copy(ROOT / "setup.py", root)

    def run(self, **env):
        keep = {k: v for k, v in os.environ.items()
                if not k.startswith("STOKER_") and k not in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS")}  # fmt: skip
        return subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "out"],
            cwd=self.root, env={**keep, "STOKER_CUDA": "0", **env}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def build(self, **env):
        """The set of sources that were compiled, plus 'LD' when it was linked."""
        done = self.run(**env)
        assert done.returncode == 0, done.stdout
        made = re.findall(r"^  (CC|NVCC|LD) +(\S+)$", done.stdout, re.MULTILINE)
        return {"LD" if kind == "LD" else Path(src).name for kind, src in made}

    @property
    def so(self):
        (so,) = (self.root / "out/stoker").glob("_native*.so")
        return so


@pytest.fixture
def mini(tmp_path):
    if UNDER_ASAN:
        pytest.skip("compilers under a preloaded sanitizer")
    pytest.importorskip("setuptools", "77")
    return Mini(tmp_path)


def edit(path, text="\n"):
    path.write_text(path.read_text() + text)


def test_an_edit_rebuilds_what_it_affects(mini):
    assert mini.build() == {"a.c", "b.c", "m.c", "LD"}
    assert mini.build() == set()
    (mini.root / "csrc/base/status.h").touch()
    assert mini.build() == {"a.c", "m.c", "LD"}  # a.c includes it through deep.h
    assert mini.build() == set()
    edit(mini.root / "csrc/base/b.c")
    assert mini.build() == {"b.c", "LD"}
    edit(mini.root / "csrc/base/deep.h")
    assert mini.build() == {"a.c", "LD"}
    os.utime(mini.root / "csrc/base/deep.h", (1, 1))  # an older file moved into place
    assert mini.build() == {"a.c", "LD"}
    assert mini.build() == set()


def test_flags_and_lists_rebuild(mini):
    mini.build()
    assert mini.build(STOKER_DEBUG="1") == {"a.c", "b.c", "m.c", "LD"}
    assert mini.build() == set()  # both variants are kept
    assert mini.build(CFLAGS="-O1") == {"a.c", "b.c", "m.c", "LD"}
    (mini.root / "csrc/base/c.c").write_text("int c(void);\nint c(void) { return 3; }\n")
    edit(mini.root / "csrc/sources.txt", "csrc/base/c.c\n")
    assert mini.build() == {"c.c", "LD"}
    (mini.root / "csrc/base/deep.h").unlink()
    (mini.root / "csrc/base/a.c").write_text("int a(void);\nint a(void) { return 1; }\n")
    assert mini.build() == {"a.c", "LD"}  # a dependency that is gone is no dependency


def test_an_edit_during_the_build_is_seen_by_the_next(mini):
    wrapper = mini.root / "slow-cc"
    wrapper.write_text('#!/bin/sh\ngcc "$@"; rc=$?\n'
                       'case "$*" in *a.c*) [ -e once ] || { touch once csrc/base/status.h; } ;; esac\n'
                       "exit $rc\n")  # fmt: skip
    wrapper.chmod(0o755)
    env = {"CC": str(wrapper), "STOKER_BUILD_JOBS": "1"}
    assert mini.build(**env) == {"a.c", "b.c", "m.c", "LD"}
    assert "a.c" in mini.build(**env)
    assert mini.build(**env) == set()


def test_a_failed_compile_shows_the_error_and_leaves_nothing_fresh(mini):
    good = (mini.root / "csrc/base/b.c").read_text()
    (mini.root / "csrc/base/b.c").write_text("#error on purpose\n")
    done = mini.run()
    assert done.returncode != 0 and "on purpose" in done.stdout and "csrc/base/b.c:1" in done.stdout
    (mini.root / "csrc/base/b.c").write_text(good)
    assert {"b.c", "LD"} <= mini.build()
    assert not list((mini.root / "build/obj").rglob("*.d"))


def test_warnings_are_errors_only_on_demand(mini):
    edit(mini.root / "csrc/base/b.c", "static int unused;\n")
    assert "b.c" in mini.build()
    done = mini.run(STOKER_WERROR="1")
    assert done.returncode != 0 and "unused" in done.stdout


def test_sanitizers_are_linked(mini):
    mini.build()
    assert not any(n.startswith(("libasan", "libubsan")) for n in wheel.needed(mini.so))
    mini.build(STOKER_SANITIZE="address,undefined")
    needed = wheel.needed(mini.so)
    assert any(n.startswith("libasan") for n in needed)
    assert any(n.startswith("libubsan") for n in needed)
    assert mini.build() == set()  # and back
    assert not any(n.startswith("libasan") for n in wheel.needed(mini.so))


def test_a_typo_in_a_switch_is_an_error(mini):
    for name, value in [("STOKER_CUDA", "yes"), ("STOKER_SANITIZE", "adress"),
                        ("STOKER_WERROR", "true"), ("STOKER_BUILD_JOBS", "0")]:  # fmt: skip
        done = mini.run(**{name: value})
        assert done.returncode != 0 and name in done.stdout and "expected" in done.stdout, name


def test_missing_nvcc_is_told_with_the_places(mini):
    env = {"CUDA_HOME": "/nowhere/cuda", "PATH": "/usr/bin:/bin"}
    if shutil.which("nvcc", path=env["PATH"]) or os.path.exists("/usr/local/cuda/bin/nvcc"):
        env["STOKER_NVCC"] = "/nowhere/nvcc"  # nothing else is tried when this is set
    done = mini.run(STOKER_CUDA="1", **env)
    assert done.returncode != 0 and "/nowhere/" in done.stdout and "STOKER_NVCC" in done.stdout
    env.pop("STOKER_NVCC", None)
    if not os.path.exists("/usr/local/cuda/bin/nvcc"):
        done = mini.run(STOKER_CUDA="auto", **env)
        assert done.returncode == 0 and "WITHOUT CUDA" in done.stdout


@pytest.mark.skipif(not _native.build_info()["cuda"], reason="this build is without CUDA")
def test_kernel_headers_rebuild_their_kernels(mini):
    edit(mini.root / "csrc/sources.txt", "csrc/dev/dev_null.c\n")
    (mini.root / "csrc/dev").mkdir()
    (mini.root / "csrc/dev/dev_cuda.c").write_text(
        "#include <cuda_runtime_api.h>\nint dev(void);\n"
    )
    cuda = {"STOKER_CUDA": "1"}
    (mini.root / "csrc/dev/dev_cuda_mem.c").write_text("int dev_mem(void);\n")
    told = {"dev_cuda.c", "dev_cuda_mem.c", "k.cu", "LD"}  # see the architectures
    assert mini.build(**cuda) == {"a.c", "b.c", "m.c", *told}
    assert mini.build(**cuda) == set()
    (mini.root / "kernels/k.cuh").touch()
    assert mini.build(**cuda) == {"k.cu", "LD"}
    assert mini.build(STOKER_CUDA_ARCHS="80-virtual", **cuda) == told
    assert mini.build(**cuda) == set()
    assert wheel.needed(mini.so) <= wheel.NEEDED
    done = mini.run(STOKER_CUDA_ARCHS="sm_90", **cuda)
    assert done.returncode != 0 and "STOKER_CUDA_ARCHS" in done.stdout


# The checkers


@pytest.mark.parametrize(
    "path, text, expected",
    [
        ("csrc/base/x.c", '#include "ckpt/ckpt.h"\n', "base may not include ckpt"),
        ("csrc/op/x.c", '#include "plan/plan.h"\n', "op may not include plan"),
        ("csrc/op/x.c", '#include "base/status.h"\n', None),
        ("csrc/ckpt/x.c", "#include <Python.h>\n", "belongs to csrc/py only"),
        ("csrc/plan/x.c", "#include <cuda_runtime_api.h>\n", "belongs to csrc/dev/dev_cuda"),
        ("csrc/base/x.c", '#include "y.h"\n', "written from csrc/"),
        ("csrc/base/mem.c", '#include <stdlib.h>\n#include "base/mem.h"\n', "not the own header"),
        ("csrc/base/x.c", 'void f(void) { printf("x"); }\n', "printf() is not for library code"),
        ("csrc/base/x.c", '// printf("x")\n/* exit(1) */ const char *s = "abort()";\n', None),
        ("csrc/plan/x.c", "void f(void *p) { free(p); }\n", "(base/mem.h)"),
        ("csrc/py/x.c", '#include "kernels/sk_kernels.h"\n', "py may not include kernels"),
        ("kernels/x.cu", '#include "op/op.h"\n', "kernels may not include op"),
        ("csrc/new/x.c", "", "no layer owns this folder"),
    ],
)
def test_layer_rules(path, text, expected):
    found = [m for _, m in layers.breaches(path, text, lambda p: (ROOT / p).is_file())]
    assert (expected is None and not found) or any(expected in m for m in found), found


def test_spill_report_reads_what_ptxas_says():
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN2sk3addEPf' for 'sm_90a'
ptxas info    : Function properties for _ZN2sk3addEPf
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
"""
    assert spills.parse(log) == [("_ZN2sk3addEPf", "sm_90a", 16, 8, 4, 255)]
    assert spills.allowed("# comment\nsk::big first version\n") == {"sk::big": "first version"}


SASS = """
arch = sm_90a
		Function : {name}
        /*0000*/                   LDC R1, c[0x0][0x28] ;             /* 0x00000a00ff017b82 */
                                                                     /* 0x000fe20000000a00 */
{body}
        /*0100*/                   STG.E desc[UR6][R2.64], R7 ;       /* 0x0 */
        /*0110*/                   EXIT ;                             /* 0x0 */
        /*0120*/                   BRA 0x120;                         /* 0x0 */
"""


@pytest.mark.parametrize(
    "body, expected",
    [
        ("/*0010*/ ACQBULK ; /* 0x0 */", []),
        ("/*0010*/ STS [R7], R2 ;\n/*0020*/ UBLKCP.S.G [UR10], [UR6], UR4 ;\n"
         "/*0030*/ REDUX.SUM UR12, R2 ;\n/*0040*/ ACQBULK ;", []),
        ("/*0010*/ NOP ;", ["at all"]),
        ("/*0010*/ @!P0 EXIT ;\n/*0020*/ ACQBULK ;", ["EXIT ends a thread at 0x10"]),
        ("/*0010*/ PREEXIT ;\n/*0020*/ ACQBULK ;", ["PREEXIT lets the successor start at 0x10"]),
        ("/*0010*/ REDG.E.ADD desc[UR8][R2.64], R9 ;\n/*0020*/ ACQBULK ;", ["REDG.E.ADD writes"]),
        ("/*0010*/ UBLKCP.G.S [UR4], [UR10], UR12 ;\n/*0020*/ ACQBULK ;", ["UBLKCP.G.S writes"]),
        ("/*0010*/ @P0 BRA 0x30 ;\n/*0020*/ ACQBULK ;\n/*0030*/ NOP ;",
         ["STG.E writes at 0x100", "EXIT ends a thread at 0x110"]),
        ("/*0010*/ @P0 BRA 0x40 ;\n/*0020*/ ACQBULK ;\n/*0030*/ BRA 0x100 ;\n/*0040*/ ACQBULK ;",
         []),
        ("/*0010*/ @P0 ACQBULK ;", ["STG.E writes", "EXIT ends"]),
        ("/*0010*/ BSSY B0, 0x50 ;\n/*0020*/ @P0 BRA 0x40 ;\n/*0030*/ BSYNC B0 ;\n"
         "/*0040*/ BSYNC B0 ;\n/*0050*/ ACQBULK ;", []),
        ("/*0010*/ BRX R2 -0x110 ;\n/*0020*/ ACQBULK ;", ["BRX goes where"]),
    ],
)  # fmt: skip
def test_edges_are_checked_on_every_path(body, expected):
    (kernel,) = edges.parse(SASS.format(name="k", body=body))
    assert (kernel.name, kernel.arch) == ("k", "sm_90a")
    found = edges.breaches(kernel)
    assert len(found) == len(expected)
    assert all(e in f for e, f in zip(expected, found, strict=True)), found


def test_edges_count_early_loads():
    body = ("/*0010*/ LDG.E.128 R4, desc[UR4][R2.64] ;\n/*0020*/ LDS R3, [R2] ;\n"
            "/*0030*/ UBLKCP.S.G [UR10], [UR6], UR4 ;\n/*0040*/ ACQBULK ;\n"
            "/*0050*/ LDG.E.128.CONSTANT R8, desc[UR4][R2.64] ;")  # fmt: skip
    (kernel,) = edges.parse(SASS.format(name="k", body=body))
    assert edges.early_loads(kernel) == 2


def test_edges_are_checked_from_sm_90_on(capsys):
    text = SASS.format(name="old", body="").replace("sm_90a", "sm_80")
    text += SASS.format(name="_ZN2sk4packEv", body="")
    assert edges.report(edges.parse(text), {"sk::pack": "never launched with an edge"}) == 0
    assert edges.report(edges.parse(text), {}) == 1
    assert edges.report(edges.parse(text), {"sk::pack": ""}) == 1
    assert edges.report(edges.parse(text), {"sk::pack": "x", "sk::gone": "x"}) == 1
    assert "old" not in capsys.readouterr().out
