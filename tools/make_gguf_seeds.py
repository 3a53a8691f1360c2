"""Writes small valid GGUF files, the seeds of the fuzz target: `make_gguf_seeds.py FOLDER`.

They cover every value type, every tensor type, both versions, several alignments and the optional
padding. The files are made by the writer of the tests, so nothing has to be installed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "py"))

from gguf_bytes import (
    ARRAY,
    BLOCKS,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    T,
    array,
    build,
    header,
    kv,
    minimal,
)  # fmt: skip

NUMBERS = (U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64)


def seeds() -> dict[str, bytes]:
    scalars = [kv(f"s.{k}", k, 1) for k in NUMBERS] + [kv("s.text", STRING, "text")]
    arrays = [kv(f"a.{k}", ARRAY, raw=array(k, [0, 1, 1])) for k in NUMBERS]
    arrays += [kv("a.text", ARRAY, raw=array(STRING, ["a", "", "bc"])), kv("a.none", ARRAY,
               raw=array(F32))]  # fmt: skip
    ranks = [T("r0", ()), T("r1", (3,)), T("r2", (3, 2)), T("r3", (2, 3, 2)), T("r4", (2, 1, 2, 2))]
    out = {
        "empty": header(),
        "version-2": build(version=2),
        "minimal": minimal(),
        "scalars": build(scalars),
        "arrays": build(arrays),
        "ranks": build([], ranks),
        "no-end-padding": build([], ranks, end_pad=False),
        "gap": build([], [T("a"), T("b", offset=64)], tail=bytes(32)),
        "shuffled": build([], [T("a", offset=32), T("b", offset=0)]),
        "split": build([kv("split.no", U16, 0), kv("split.count", U16, 2)]),
    }
    for a in (8, 64, 256):
        kvs = [kv("x", U8, 1), kv("general.alignment", U32, a)]
        out[f"alignment-{a}"] = build(kvs, [T("a", (5,)), T("b", (5,))], alignment=a)
    for k, (elems, _) in BLOCKS.items():
        out[f"type-{k}"] = build([], [T("w", (elems, 2), k)])
    return out


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: make_gguf_seeds.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    files = seeds()
    for name, data in files.items():
        (folder / f"{name}.gguf").write_bytes(data)
    print(f"{len(files)} seeds, {sum(map(len, files.values()))} bytes")


if __name__ == "__main__":
    main()
