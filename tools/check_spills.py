"""Register spills of the kernels, from what `ptxas -v` said in the last build: fails when a kernel
that kernels/spill_allow.txt does not name spills or uses local memory, and when a name there
matches nothing any more. `python tools/check_spills.py [build/compile_commands.json]`."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def parse(log):
    """[(mangled name, arch, frame, stores, loads, registers)] of one ptxas log."""
    found = []
    entry = None
    for line in log.splitlines():
        if m := ENTRY.search(line):
            entry = [*m.groups(), 0, 0, 0, 0]
            found.append(entry)
        elif entry and (m := FRAME.search(line)):
            entry[2:5] = map(int, m.groups())
        elif entry and (m := USED.search(line)):
            entry[5] = int(m[1])
    return [tuple(e) for e in found]


def demangle(names):
    try:
        out = subprocess.run(
            ["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except OSError:
        return names
    return out if len(out) == len(names) else names


def allowed(text):
    """Name prefixes; the rest of a line is the reason, which has to be there."""
    rules = {}
    for line in text.splitlines():
        name, _, why = line.split("#")[0].strip().partition(" ")
        if name:
            rules[name] = why.strip()
    return rules


def main(commands):
    logs = [
        Path(f"{c['output']}.log")
        for c in json.loads(commands.read_text())
        if c["file"].endswith(".cu")
    ]
    kernels = [k for log in logs for k in parse(log.read_text())]
    rules = allowed((ROOT / "kernels/spill_allow.txt").read_text())
    unused, bad = set(rules), 0
    for name, (_, arch, frame, stores, loads, _) in zip(
        demangle([k[0] for k in kernels]), kernels, strict=True
    ):
        rule = next((r for r in rules if name.startswith(r)), None)
        if not (frame or stores or loads):
            continue
        unused.discard(rule)
        if rule is None:
            print(
                f"{name} ({arch}): stack frame {frame}, spill stores {stores}, loads {loads} bytes"
            )
            bad += 1
    for rule in sorted(unused):
        print(f"kernels/spill_allow.txt: {rule} spills nowhere any more")
    for rule in sorted(r for r in rules if not rules[r]):
        print(f"kernels/spill_allow.txt: {rule} has no reason")
        bad += 1
    most = max((k[5] for k in kernels), default=0)
    print(f"spills: {len(kernels)} kernels in {len(logs)} files, {bad + len(unused)} problems, "
          f"at most {most} registers")  # fmt: skip
    return 1 if bad or unused or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/compile_commands.json")))
