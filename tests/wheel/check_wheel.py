"""Checks a built wheel from the outside, then installs and runs it under every Python it is for.

    python tests/wheel/check_wheel.py dist/stoker-*.whl

Tag, contents, exported symbols and needed libraries are read from the file. The smoke test runs in
an empty environment and an empty folder, so that the source tree cannot stand in for the wheel."""

import glob
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NEEDED = {
    *("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"),
    *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
}
SMOKE = Path(__file__).resolve().with_name("smoke.py")
LIMIT = 64 << 20  # bytes of a wheel


def tool(*cmd):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    return subprocess.run(cmd, check=True, capture_output=True, text=True, env=env).stdout


def needed(so):
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", tool("readelf", "-dW", str(so))))


def run_paths(so):
    return re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", tool("readelf", "-dW", str(so)))


def exported(so):
    return {line.split()[-1] for line in tool("nm", "-D", "--defined-only", str(so)).splitlines()}


def glibc(so):
    """The newest glibc whose symbols are used, as a tuple."""
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", tool("readelf", "-VW", str(so)))
    return max((int(a), int(b)) for a, b in found)


def check_file(wheel, folder):
    """Yields what is wrong with the wheel as a file."""
    name = wheel.name.removesuffix(".whl").split("-")
    if name[2:4] != ["cp311", "abi3"]:
        yield f"tag: expected cp311-abi3, found {'-'.join(name[2:4])}"
    if wheel.stat().st_size > LIMIT:
        yield f"size: {wheel.stat().st_size} bytes, the limit is {LIMIT}"
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        z.extractall(folder)
    for must in ("stoker/__init__.py", "stoker/py.typed", "stoker/_native.pyi"):
        if must not in names:
            yield f"contents: {must} is missing"
    for n in names:
        if not re.match(r"stoker/|stoker-[^/]+\.dist-info/", n):
            yield f"contents: {n} does not belong into the wheel"
    objects = [n for n in names if ".so" in n]
    if objects != ["stoker/_native.abi3.so"]:
        yield f"contents: expected one extension, stoker/_native.abi3.so, found {objects}"
        return
    so = folder / objects[0]
    if exported(so) != {"PyInit__native"}:
        yield f"exports: expected PyInit__native alone, found {sorted(exported(so))}"
    if needed(so) - NEEDED:
        yield f"needs: {sorted(needed(so) - NEEDED)} may not be needed"
    if run_paths(so):
        yield f"run path: {run_paths(so)} must not be there"
    print(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB, needs {', '.join(sorted(needed(so)))} "
          f"up to glibc {'.'.join(map(str, glibc(so)))}")  # fmt: skip


def pythons():
    """One interpreter for each version from 3.11 on that is installed: {(3, 12): path}."""
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    paths = [sys.executable, *glob.glob(f"{root}/versions/3.*/bin/python3")]
    for folder in os.get_exec_path():
        paths += glob.glob(f"{folder}/python3.[1-9][0-9]")
    found = {}
    code = "import sys, sysconfig, venv, ensurepip; print(*sys.version_info[:2], sys._base_executable, sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
    for path in paths:
        try:
            major, minor, real, free = tool(path, "-c", code).split()
        except (OSError, ValueError, subprocess.CalledProcessError):
            continue  # not installed after all, or without venv
        if (int(major), int(minor)) >= (3, 11) and free == "0":
            found.setdefault((int(major), int(minor)), real)
    return dict(sorted(found.items()))


def smoke(python, wheel, folder):
    """None, or what went wrong."""
    venv = folder / "venv"
    home = folder / "elsewhere"
    home.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    steps = [
        [python, "-m", "venv", str(venv)],
        [str(venv / "bin/pip"), "install", "-q", "--disable-pip-version-check", str(wheel)],
        [str(venv / "bin/python"), str(SMOKE)],
    ]
    for cmd in steps:
        done = subprocess.run(
            cmd, cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            return f"{' '.join(cmd)}\n{done.stdout}"
    print(done.stdout, end="")
    return None


def main(wheel):
    failed = 0
    with tempfile.TemporaryDirectory() as tmp:
        for problem in check_file(wheel, Path(tmp)):
            print(f"FAILED {problem}")
            failed += 1
    for version in pythons().items():
        with tempfile.TemporaryDirectory() as tmp:
            problem = smoke(version[1], wheel, Path(tmp))
        if problem:
            print(f"FAILED Python {version[0]}: {problem}")
            failed += 1
    print(f"wheel: {'ok' if not failed else f'{failed} problems'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
