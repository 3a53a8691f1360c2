"""Programmatic edges, on the machine code: a kernel that may start before its predecessor has ended
must wait for it (griddepcontrol.wait) before it exits, writes or lets its own successor start, on
every path. Fails for a kernel of sm_90 or newer that does not. kernels/edge_allow.txt names those
that are never launched with such an edge, and those that may let their successor start first.

    python tools/check_edges.py [--cuobjdump FILE] [OBJECT...]    # else the objects of the last build
    python tools/check_edges.py --self-test                       # finds what is wrong on purpose

cuobjdump and nvdisasm are looked for next to nvcc, in PATH, and in the Python packages
nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm of this environment."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from check_spills import allowed, demangle  # noqa: E402

ALLOW = "kernels/edge_allow.txt"
EARLY = "early"  # first word of the reason: may let its successor start before its own wait
EXPECTED = {"good": (False, False), "early": (True, False), "bad": (True, True)}  # by planted name
WAIT, OPEN = "ACQBULK", "PREEXIT"  # griddepcontrol.wait and .launch_dependents
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
ARCH = re.compile(r"^arch = sm_(\d+)(\w*)", re.MULTILINE)
NAME = re.compile(r"^\s*Function : (\S+)")
TARGET = re.compile(r"(0x[0-9a-f]+)\s*$")
# What other kernels can see. Stores to shared and local memory (STS, STSM, STL, ATOMS) are private,
# and so is UBLKCP.S.G, a bulk load; REDUX is a reduction within a warp.
WRITES = re.compile(r"(ST|STG|STAS|ATOM|ATOMG|RED|REDG|REDAS|SUST|SURED|SUATOM|UTMASTG|UTMAREDG|"
                    r"UBLKRED)(\.|$)|UBLKCP\.G")  # fmt: skip
LOADS = re.compile(r"(LD|LDG|LDGSTS|UTMALDG|UTMAPF|UBLKPF|CCTL\.PF\w*)(\.|$)|UBLKCP\.S")
ENDS = re.compile(r"(EXIT|KILL)(\.|$)")
MOST = 200000  # places on paths, per kernel
BLIND = re.compile(r"(BRX|BRXU|JMX|JMXU|CALL\.ABS)(\.|$)")  # where these go is not in the code


@dataclass
class Op:
    at: int
    guard: str | None
    name: str
    operands: str

    @property
    def target(self):
        found = TARGET.search(self.operands)
        return int(found[1], 16) if found else None


@dataclass
class Kernel:
    name: str  # mangled
    arch: str
    ops: list = field(default_factory=list)

    def count(self, pattern):
        return sum(bool(re.match(pattern, op.name)) for op in self.ops)


def parse(text):
    """The kernels in what `cuobjdump --dump-sass` prints."""
    kernels, arch, kernel = [], "", None
    for line in text.splitlines():
        if m := ARCH.match(line):
            arch, kernel = f"sm_{m[1]}{m[2]}", None
        elif m := NAME.match(line):
            kernel = Kernel(m[1], arch)
            kernels.append(kernel)
        elif kernel and (m := LINE.match(line)):
            kernel.ops.append(Op(int(m[1], 16), m[2], m[3], m[4]))
    return kernels


class Flow:
    """Where control goes in a kernel."""

    def __init__(self, kernel):
        ops = kernel.ops
        self.op = {op.at: op for op in ops}
        self.after = {a.at: b.at for a, b in zip(ops, ops[1:], strict=False)}
        self.moved = {op.target for op in ops if op.name.startswith("MOV") and op.target}
        self.joins = {}  # barrier: where the threads that meet at it go on
        for op in ops:
            if op.name.startswith("BSSY"):
                self.joins.setdefault(barrier(op), set()).add(op.target)

    def successors(self, op, calls, joins):
        """[(address, calls, joins)] that control may reach when `op` is executed, with errors on the
        side of too many. `calls` are return addresses, `joins` {(barrier, where it leads)}."""
        base = op.name.split(".")[0]
        on = [(self.after.get(op.at), calls, joins)]
        if base in ("BRA", "JMP"):
            always = re.fullmatch(r"\s*0x[0-9a-f]+\s*", op.operands)
            plain = always and not re.search(r"\.(DIV|CONV|ANY)", op.name)
            return [(op.target, calls, joins)] + ([] if plain else on)
        if base == "BSSY":
            return [(self.after.get(op.at), calls, without(joins, op) | {(barrier(op), op.target)})]
        if base == "BMOV":  # restored from a register: any of the kernel's
            return [(self.after.get(op.at), calls, without(joins, op))]
        if base == "BSYNC":  # the threads of a warp meet and go on where their BSSY said
            mine = {to for name, to in joins if name == barrier(op)} or self.joins.get(barrier(op))
            return [(to, calls, without(joins, op)) for to in mine] if mine else on
        if base == "CALL" and op.target is not None:
            return [(op.target, (self.after.get(op.at), *calls), joins)]
        if base == "WARPSYNC" and op.target is not None:
            return [(op.target, calls, joins), *on]
        if base == "RET":
            return [(calls[0], calls[1:], joins)] if calls else []
        return [] if base in ("EXIT", "KILL", "BPT") else on

    def lost(self, op, calls):
        """Does it go where this check cannot follow?"""
        if op.name.startswith("CALL"):  # its return address is a constant, that of what follows
            return op.target is None or self.after.get(op.at) not in self.moved or len(calls) > 7
        return bool(BLIND.match(op.name)) or (op.name.startswith("RET") and not calls)


def barrier(op):
    return next((x for x in re.findall(r"\bB\d+\b", op.operands)), "")


def without(joins, op):
    return frozenset(j for j in joins if j[0] != barrier(op))


# Launch constants: what a kernel compares of its arguments is the same for every thread, and stays. A
# kernel that waits in one place or in another by such a comparison is followed with what it has found.


def value(operand, env):
    """A launch constant as text, or None."""
    operand = operand.strip()
    if re.fullmatch(r"U?RZ|-?0x[0-9a-f]+|c\[0x0\]\[0x[0-9a-f]+\]", operand):
        return "0" if operand.endswith("RZ") else operand
    return env.get(operand)


def written(op):
    """Registers and predicates that `op` may write, of those that are followed, and more."""
    operands = [x.strip() for x in op.operands.split(",")]
    if op.name.startswith(("R2P", "UR2UP")):
        return {f"{p}{n}" for p in ("P", "UP") for n in range(8)}
    names = {x for x in operands[:4] if re.fullmatch(r"U?P\d+", x)}
    if m := re.match(r"UR(\d+)", operands[0]):
        names |= {f"UR{int(m[1]) + i}" for i in range(4)}
    return names


def learn(op, env):
    """env behind `op`: {register: constant, predicate: (comparison, is it that or its opposite)}."""
    x = [y.strip() for y in op.operands.split(",")]
    new = {}
    if not op.guard:
        if m := re.fullmatch(r"c\[0x0\]\[0x([0-9a-f]+)\]", x[-1]):
            if op.name in ("ULDC", "ULDC.64") and re.fullmatch(r"UR\d+", x[0]):
                for i in range(2 if op.name == "ULDC.64" else 1):
                    new[f"UR{int(x[0][2:]) + i}"] = f"c[0x0][{int(m[1], 16) + 4 * i:#x}]"
        elif re.match(r"U?ISETP\.\w+(\.U32)?\.AND$", op.name) and len(x) == 5:
            a, b = value(x[2], env), value(x[3], env)
            if x[1] in ("PT", "UPT") and x[4] in ("PT", "UPT") and a and b:
                how = op.name.removeprefix("U").split(".")[1:-1]
                equal = how[0] == "EQ"
                how[0] = "NE" if equal else how[0]
                new[x[0]] = ((*how, *(sorted((a, b)) if how[0] == "NE" else (a, b))), not equal)
        elif op.name == "PLOP3.LUT" and x[1:4] == ["PT"] * 3 and x[5] in ("0x80", "0x40"):
            if x[4] in env:  # a copy of a uniform predicate, or its opposite
                new[x[0]] = (env[x[4]][0], env[x[4]][1] == (x[5] == "0x80"))
    gone = written(op)
    return {**{k: v for k, v in env.items() if k not in gone}, **new}


def decided(kernel, flow):
    """{address: (comparison, its outcome where the guarded instruction there is executed)}."""
    everywhere = frozenset((name, to) for name, tos in flow.joins.items() for to in tos)
    envs, todo, out = {kernel.ops[0].at: {}}, [kernel.ops[0].at], {}
    while todo:
        here = todo.pop()
        op = flow.op[here]
        env = learn(op, envs[here])
        far = op.name.startswith(("CALL", "RET"))
        steps = [(at, {} if far else env) for at, _, _ in flow.successors(op, (), everywhere)]
        if op.guard or op.name.startswith("CALL"):
            steps.append((flow.after.get(here), {} if far else env))
        for at, new in steps:
            if at not in flow.op:
                continue
            old = envs.get(at)
            both = new if old is None else {k: v for k, v in old.items() if new.get(k) == v}
            if both != old:
                envs[at] = both
                todo.append(at)
    for at, env in envs.items():
        guard = flow.op[at].guard
        if guard and guard.lstrip("@!") in env:
            what, so = env[guard.lstrip("@!")]
            out[at] = (what, so != guard.startswith("@!"))
    return out


def fault(op, flow, calls):
    if op.name.startswith(OPEN):
        return f"{op.name} lets the successor start"
    if ENDS.match(op.name):
        return f"{op.name} ends a thread"
    if WRITES.match(op.name):
        return f"{op.name} writes"
    if flow.lost(op, calls):
        return f"{op.name} goes where this check cannot follow"
    return None


def before_wait(kernel):
    """The instructions that some path reaches without having waited: {address: fault or None}. A path
    is followed with the calls and joins that it is in, and with the launch constants that it has
    branched on where a kernel has several waits."""
    flow = Flow(kernel)
    constants = decided(kernel, flow) if kernel.count(WAIT) > 1 else {}
    start = (kernel.ops[0].at, (), frozenset(), frozenset())
    seen, todo, found = {start}, [start], {}
    while todo:
        here, calls, joins, known = todo.pop()
        op = flow.op[here]
        what, outcome = constants.get(here, (None, True))
        ways = [True, False] if op.guard else [True]  # executed or not
        if what and (what, not outcome) in known:
            ways = [False]
        elif what and (what, outcome) in known:
            ways = [True]
        for executed in ways:
            after = [(flow.after.get(here), calls, joins)]
            if executed:
                found[here] = found.get(here) or fault(op, flow, calls)
                if op.name.startswith(WAIT):
                    continue  # everything behind it is safe
                after = flow.successors(op, calls, joins)
            if what and len(ways) > 1 and op.name.startswith(("BRA", "EXIT", WAIT)):
                fact = known | {(what, outcome == executed)}
            else:
                fact = known
            for at, inside, open_joins in after:
                place = (at, inside, open_joins, fact)
                if at in flow.op and place not in seen:
                    seen.add(place)
                    todo.append(place)
        if len(seen) > MOST:
            found[here] = "too many paths to follow"
            break
    return found


def breaches(kernel, early=False):
    """What a kernel must not do before its wait and does, as texts; empty when all is well. With
    `early` it may let its successor start."""
    if not kernel.count(WAIT):
        return [f"no dependency wait ({WAIT}) at all"]
    faults = sorted(before_wait(kernel).items())
    return [
        f"{text} at {at:#x}, before the wait"
        for at, text in faults
        if text and not (early and text.startswith(OPEN))
    ]


def early_loads(kernel):
    """Loads before the wait: what a programmatic edge is for. The compiler moves ld.global.nc behind
    the wait, so a kernel that means to load early and has 0 here wants plain loads."""
    names = {op.at: op.name for op in kernel.ops}
    return sum(bool(LOADS.match(names[at])) for at in before_wait(kernel))


def find_tool(name, asked=None):
    places = [asked] if asked else []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            places.append(f"{os.environ[variable]}/bin/{name}")
    nvcc = os.environ.get("STOKER_NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    places.append(str(Path(nvcc).resolve().parent / name))
    places.append(shutil.which(name) or name)
    packages = Path(sysconfig.get_path("platlib")) / "nvidia"
    places += sorted(map(str, packages.glob(f"*/bin/{name}")), reverse=True)
    for place in places:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    sys.exit(f"check_edges: expected {name}, found none in: {', '.join(places)}")


def disassemble(path, cuobjdump):
    folder = str(Path(find_tool("nvdisasm")).parent)  # cuobjdump calls it
    env = {**os.environ, "PATH": f"{folder}:{os.environ.get('PATH', '')}"}
    done = subprocess.run(
        [cuobjdump, "--dump-sass", path], capture_output=True, text=True, env=env, check=False
    )
    if done.returncode:
        sys.exit(f"check_edges: {path}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def names_of(kernels):
    return [n.removeprefix("void ") for n in demangle([k.name for k in kernels])]


def report(kernels, rules):
    """Prints a line a kernel and returns the number of problems."""
    bad, unused = 0, set(rules)
    kernels = [k for k in kernels if int(re.match(r"sm_(\d+)", k.arch)[1]) >= 90]
    for name, kernel in sorted(zip(names_of(kernels), kernels, strict=True), key=lambda p: p[0]):
        rule = next((r for r in rules if name.startswith(r)), None)
        early = rule is not None and rules[rule].split(" ")[0] == EARLY
        wrong = breaches(kernel, early) if early or rule is None else []
        if rule and (not early or breaches(kernel) != wrong):
            unused.discard(rule)
        print(f"{name} ({kernel.arch}): {kernel.count(WAIT)} waits, {kernel.count(OPEN)} openings, "
              f"{kernel.count(WRITES.pattern)} writes, {kernel.count(ENDS.pattern)} exits, "
              f"{early_loads(kernel) if kernel.count(WAIT) else 0} loads before the wait"
              f"{', may open early' if early else ', allowed without' if rule else ''}")  # fmt: skip
        for text in wrong:
            print(f"  BREACH: {text}")
        bad += bool(wrong)
    for rule in sorted(unused):
        print(f"{ALLOW}: {rule} is no kernel any more, or needs no line")
    for rule in sorted(r for r in rules if rules[r] in ("", EARLY)):
        print(f"{ALLOW}: {rule} has no reason")
        bad += 1
    bad += len(unused)
    print(f"edges: {len(kernels)} kernels of sm_90 or newer, {len(rules)} lines of exceptions, "
          f"{bad} problems")  # fmt: skip
    return bad if kernels else 1


def self_test(cuobjdump):
    """good_ and bad_ as they say; early_: bad, and good when it may open early."""
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/planted.o"
        nvcc = os.environ.get("STOKER_NVCC") or find_tool("nvcc")
        subprocess.run(
            [nvcc, "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-c", "-o", made,
             str(ROOT / "tests/edges/planted.cu")], check=True,
        )  # fmt: skip
        kernels = parse(disassemble(made, cuobjdump))
    wrong = 0
    for kernel in kernels:
        found, early = breaches(kernel), breaches(kernel, early=True)
        kind = kernel.name.split("_")[0]
        if (bool(found), bool(early)) != EXPECTED[kind]:
            print(f"self-test: {kernel.name}: {found or 'nothing found'}; early: {early}")
            wrong += 1
    planted = sum(not k.name.startswith("good_") for k in kernels)
    print(f"edges: self-test, {planted} planted breaches of {len(kernels)} kernels, {wrong} wrong")
    return wrong if planted and planted < len(kernels) else 1


def built():
    """The kernel objects of the last build."""
    commands = json.loads((ROOT / "build/compile_commands.json").read_text())
    return [c["output"] for c in commands if c["file"].endswith(".cu")]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("objects", nargs="*", help="objects, cubins or extensions")
    parser.add_argument("--cuobjdump")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args(argv)
    cuobjdump = find_tool("cuobjdump", args.cuobjdump)
    if args.self_test:
        return 1 if self_test(cuobjdump) else 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = list(pool.map(lambda o: disassemble(o, cuobjdump), args.objects or built()))
    kernels = [k for text in texts for k in parse(text)]
    rules = {} if args.objects else allowed((ROOT / ALLOW).read_text())
    return 1 if report(kernels, rules) else 0


if __name__ == "__main__":
    sys.exit(main())
