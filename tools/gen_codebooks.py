"""Writes csrc/base/codebook_numbers.h, and csrc/base/codebooks.[ch] and kernels/linear/codebooks.cuh
which make tables of it: the numbers of the codebook formats, for the definition and the kernels.

The tables are facts of the file format. They are taken at run time from the packed form in the
`gguf` package, unpacked, and compared with the fingerprints below (SHA-256 of the whole table as
little-endian bytes) before anything is written. `python tools/gen_codebooks.py` writes the files,
`--check` only compares them with what is in the tree and fails when they differ."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import numpy as np
from gguf import quants

ROOT = Path(__file__).resolve().parent.parent

# class of the package: (our name, entries, components of one, values, SHA-256 packed, unpacked)
GRIDS = {
    "IQ2_XXS": (
        "iq2xxs", 256, 8, (8, 25, 43),
        "915952ebc4af8ddba8113583ca1316fc818843f7b825bbf1a25ae1c39bf0e16d",
        "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54",
    ),
    "IQ2_XS": (
        "iq2xs", 512, 8, (8, 25, 43),
        "f66435966ca8d64e9e4a6e3c91e64afcf9015e700ec85962f527283ebae207b9",
        "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de",
    ),
    "IQ2_S": (
        "iq2s", 1024, 8, (8, 25, 43),
        "e6e75e121b65e8afa5c1f92b71463cfbe217b83893f438acde22fd5db06a43f7",
        "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88",
    ),
    "IQ3_XXS": (
        "iq3xxs", 256, 4, (4, 12, 20, 28, 36, 44, 52, 62),
        "15d5c59616fa93701383d1d45da633a378dab68ea2a7dce31b772c604e14dd7c",
        "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d",
    ),
    "IQ3_S": (
        "iq3s", 512, 4, (1, 3, 5, 7, 9, 11, 13, 15),
        "881df6ab9508749ca9827814e44a01a4ab8fe8a4ae8d038d5b9d55d864ae135b",
        "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f",
    ),
    "IQ1_S": (
        "iq1s", 2048, 8, (-1, 0, 1),
        "e9ffebfc997ad6023063a667c0bf4eedd8ebf7f56b3da399cbc7d1b1f7ea52c6",
        "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a",
    ),
}  # fmt: skip
SIGNS = "a76742a603f8beca5212ecce0f1f02f11a4887fd2f7c8b15aca0ea3eb3380c31"
SAME_VALUES = ("IQ2_XS", "IQ2_S")  # as IQ2_XXS
VALUES = {  # class: (our name, comment, SHA-256 of 16 int8)
    "IQ4_NL": (
        "iq4", "IQ4_NL and IQ4_XS",
        "61aa47540aa024b5d6ddaa839b84ffe59f3d5a349af5c6c7ffcb5e0474b46163",
    ),
    "MXFP4": (
        "fp4", "MXFP4 and NVFP4: twice the value of E2M1",
        "adf76b672d47eb7fc0afd4db132d548d59d3190aa0ad118fdbf569d5fd478f97",
    ),
}  # fmt: skip

HEADER = """\
/* Number tables of the codebook formats: facts of the file format, written by
 * tools/gen_codebooks.py and not by hand.
 *
 * A grid entry is a vector of eight or four components. It is packed into 16 bits, component k in
 * bits 2k, 2k+1 (eight components) or 4k .. 4k+2 (four): the number of a value in the table of the
 * same family. Behind the last entry there is a zero, so that four bytes can be read anywhere. */
#ifndef SK_CODEBOOKS_H
#define SK_CODEBOOKS_H

#include "base/sk_base.h"

"""


NUMBERS_HEADER = """\
/* The numbers of the codebook formats, as items of an initialiser: facts of the file format,
 * written by tools/gen_codebooks.py and not by hand. codebooks.c makes the tables of the
 * definition of them, kernels/linear/codebooks.cuh those of the kernels; codebooks.h says what
 * they mean. */
#ifndef SK_CODEBOOK_NUMBERS_H
#define SK_CODEBOOK_NUMBERS_H

/* clang-format off */
"""

CUDA_HEADER = """\
/* Number tables of the codebook formats for the kernels, written by tools/gen_codebooks.py and not
 * by hand. table.cuh makes entries out of them when it is compiled. */
#pragma once

#include <stdint.h>

#include "base/codebook_numbers.h"

namespace sk
{
"""


def check(what: str, data: bytes, want: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != want:
        sys.exit(f"{what}: expected SHA-256 {want}, found {found}")


def grid(name: str) -> np.ndarray:
    """The packed entries of one grid, checked in both forms."""
    _, n, width, values, packed_sha, whole_sha = GRIDS[name]
    cls = getattr(quants, name)
    packed = bytes.fromhex(cls.grid_hex.decode())
    check(f"{name}, packed", packed, packed_sha)
    entries = np.frombuffer(packed, "<u2")
    bits = 16 // width
    if len(entries) != n or tuple(map(int, cls.grid_map)) != values:
        sys.exit(f"{name}: expected {n} entries of {values}, found {len(entries)}, {cls.grid_map}")
    codes = entries[:, None] >> (bits * np.arange(width, dtype=np.uint16)) & ((1 << bits) - 1)
    if codes.max() >= len(values):
        sys.exit(f"{name}: code {codes.max()} has no value")
    check(name, np.array(values, np.int8)[codes].tobytes(), whole_sha)
    return entries


def signs() -> np.ndarray:
    """Seven signs a number; the eighth makes the count of minus signs even."""
    table = np.array([i | i.bit_count() % 2 << 7 for i in range(128)], np.uint8)
    check("signs", table.tobytes(), SIGNS)
    return table


def numbers(name: str, items: list[str], width: int = 98) -> str:
    """A macro of the items."""
    out, line = [f"#define {name}"], "   "
    for item in items[:-1]:
        if len(line) + len(item) + 2 > width:
            out.append(line)
            line = "   "
        line += f" {item},"
    out.append(f"{line} {items[-1]}")
    return "\n" + " \\\n".join(out) + "\n"


def number_text() -> str:
    out = NUMBERS_HEADER
    for name, (own, _, _, values, _, _) in GRIDS.items():
        out += numbers(f"SK_{own.upper()}_GRID", [f"0x{e:04x}" for e in grid(name)])
        if name not in SAME_VALUES:
            out += numbers(f"SK_{own.upper()}_VALUES", [str(v) for v in values])
    for name, (own, _, sha) in VALUES.items():
        table = np.array(getattr(quants, name).kvalues, np.int8)
        check(name, table.tobytes(), sha)
        out += numbers(f"SK_{own.upper()}_VALUES", [str(v) for v in table])
    out += numbers("SK_IQ_SIGNS", [f"0x{s:02x}" for s in signs()])
    return out + "\n/* clang-format on */\n\n#endif\n"


def cuda_text() -> str:
    out = CUDA_HEADER
    for name, (own, n, _, values, _, _) in GRIDS.items():
        out += f"constexpr uint16_t kGrid{own.capitalize()}[{n}] = {{SK_{own.upper()}_GRID}};\n"
        if name not in SAME_VALUES:
            title = f"kValues{own.capitalize()}[{len(values)}]"
            out += f"constexpr int {title} = {{SK_{own.upper()}_VALUES}};\n"
    for own, _, _ in VALUES.values():
        out += f"constexpr int kValues{own.capitalize()}[16] = {{SK_{own.upper()}_VALUES}};\n"
    return out + "} // namespace sk\n"


def texts() -> dict[str, str]:
    """Path to contents."""
    h, c = HEADER, "/* Written by tools/gen_codebooks.py; see codebooks.h. */\n"
    c += '#include "base/codebooks.h"\n\n#include "base/codebook_numbers.h"\n\n'
    made: list[tuple[str, str, str]] = []  # note, declaration, items
    for name, (own, n, _, _, _, _) in GRIDS.items():
        note = "IQ1_S and IQ1_M" if name == "IQ1_S" else name
        made.append((note, f"uint16_t sk_{own}_grid[{n + 1}]", f"SK_{own.upper()}_GRID, 0"))
    made += [
        (
            "values of the IQ2 grids; the fourth does not occur",
            "float sk_iq2_values[4]",
            "SK_IQ2XXS_VALUES, 0",
        ),
        ("values of the grid of IQ3_XXS", "float sk_iq3xxs_values[8]", "SK_IQ3XXS_VALUES"),
        ("values of the grid of IQ3_S", "float sk_iq3s_values[8]", "SK_IQ3S_VALUES"),
        (
            "signs of IQ2_XXS, IQ2_XS, IQ3_XXS: bit k is set when component k is negative",
            "uint8_t sk_iq_signs[128]",
            "SK_IQ_SIGNS",
        ),
    ]
    for own, note, _ in VALUES.values():
        made.append((note, f"int8_t sk_{own}_values[16]", f"SK_{own.upper()}_VALUES"))
    for note, declaration, items in made:
        h += f"/* {note} */\nextern const {declaration};\n"
        c += f"const {declaration} = {{{items}}};\n"
    return {
        "csrc/base/codebooks.h": h + "\n#endif\n",
        "csrc/base/codebooks.c": c,
        "csrc/base/codebook_numbers.h": number_text(),
        "kernels/linear/codebooks.cuh": cuda_text(),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    only_check = parser.parse_args(arguments).check
    stale = 0
    for name, text in texts().items():
        path = ROOT / name
        if only_check:
            current = path.is_file() and path.read_text() == text
            print(f"{name}: {'current' if current else 'STALE'}")
            stale += not current
        else:
            path.write_text(text)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
