"""Bulk copies into shared memory, on the machine code: a kernel that reads a place and then has a copy
put into it has to wait for the loads first, or have a proxy fence in between. A copy does not go the
way of loads and can overtake one that was issued long before. Looks from every UBLKCP back to where
the warp last waited for a barrier, in the order of the code: a loop's own copies are behind its loads.

    python tools/check_copies.py [--cuobjdump FILE] [OBJECT...]   # else the objects of the last build
    python tools/check_copies.py --self-test                      # finds what is wrong on purpose

Which of the six counters of a warp a load is counted by, and which ones an instruction waits for, is
in bits 46 to 48 and 52 to 57 of the second word of its encoding (sm_70 to sm_90)."""

import argparse
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from check_edges import built, disassemble, find_tool

NAME = re.compile(r"^\s*Function : (\S+)")
OP = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)[^;]*;\s+/\* 0x([0-9a-f]{16})"
)
REST = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/")
BEGINS = re.compile(r"SYNCS\.PHASECHK|BAR\.SYNC")  # nothing before it is still read
FENCE = re.compile(r"FENCE\.VIEW\.ASYNC")
FREE = 7  # counted by none
FARTHEST = 2000  # instructions

# Lines as cuobjdump prints them, encodings but for the fields above made up: a load by counter 2.
LOAD = f"/*0010*/ LDS R1, [R2] ; /* 0x0000000000000000 */\n/* 0x{2 << 46:016x} */\n"
OTHER = "/*0020*/ {} ; /* 0x0000000000000000 */\n/* 0x{:016x} */\n"
COPY = OTHER.format("@P0 UBLKCP.S.G [UR4], [UR6], UR5", FREE << 46)
FENCED = OTHER.format("FENCE.VIEW.ASYNC.S", FREE << 46)
PLANTED = {  # text: loads that a copy may overtake
    LOAD + COPY: 1,
    LOAD + OTHER.format("FADD R1, R1, R1", FREE << 46 | 1 << 54) + COPY: 0,
    LOAD + OTHER.format("FADD R1, R1, R1", FREE << 46 | 1 << 53) + COPY: 1,
    LOAD + FENCED + COPY: 0,
    FENCED + LOAD + COPY: 1,
    LOAD + OTHER.format("SYNCS.PHASECHK.TRANS64 P0, [UR4]", FREE << 46) + COPY: 0,
    LOAD + LOAD + COPY + COPY: 4,
}


@dataclass
class Kernel:
    name: str
    ops: list = field(default_factory=list)  # (name, counter, counters waited for as bits)


def parse(text):
    kernels, name = [Kernel("")], None
    for line in text.splitlines():
        if m := NAME.match(line):
            kernels.append(Kernel(m[1]))
        elif m := OP.match(line):
            name = m[1]
        elif name and (m := REST.match(line)):
            bits = int(m[1], 16)
            kernels[-1].ops.append((name, bits >> 46 & 7, bits >> 52 & 63))
            name = None
    return [k for k in kernels if k.ops]


def overtaken(kernel):
    """How many copies there are, and [(load, copy)] of places in the code."""
    copies, found = 0, []
    for i, (copy, _, waited) in enumerate(kernel.ops):
        if not copy.startswith("UBLKCP.S"):
            continue
        copies += 1
        for j in range(i - 1, max(-1, i - FARTHEST), -1):
            name, counter, waits = kernel.ops[j]
            if BEGINS.match(name) or FENCE.match(name):
                break
            if name.startswith("LDS") and counter != FREE and not waited >> counter & 1:
                found.append((j, i))
            waited |= waits
    return copies, found


def self_test():
    wrong = 0
    for text, want in PLANTED.items():
        got = len(overtaken(parse(text)[0])[1])
        if got != want:
            wrong += 1
            print(f"self-test: found {got} instead of {want} in\n{text}")
    print(f"self-test: {len(PLANTED)} planted, {wrong} wrong")
    return wrong


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("objects", nargs="*", help="objects, cubins or extensions")
    parser.add_argument("--cuobjdump")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args(argv)
    if args.self_test:
        return 1 if self_test() else 0
    cuobjdump = find_tool("cuobjdump", args.cuobjdump)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = pool.map(lambda o: disassemble(o, cuobjdump), args.objects or built())
        kernels = [k for text in texts for k in parse(text)]
    copies = problems = 0
    for kernel in kernels:
        n, found = overtaken(kernel)
        copies += n
        problems += len(found)
        if found:
            far = max(i - j for j, i in found)
            print(f"{kernel.name}: {len(found)} loads that a copy may overtake, the farthest {far} "
                  "instructions ahead")  # fmt: skip
    print(f"copies: {copies} in {len(kernels)} kernels, {problems} problems")
    return 1 if problems or not copies else 0


if __name__ == "__main__":
    sys.exit(main())
