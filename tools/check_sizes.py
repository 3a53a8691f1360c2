"""File sizes: more than 1,000 lines fail, more than 600 are reported. Counts every text file that
people read and edit; generated records and data are not among them."""

import sys
from pathlib import Path

REPORT, FAIL = 600, 1000
FOLDERS = ("csrc", "kernels", "python", "tests", "tools", "benchmarks", "docs", ".ci")
SUFFIXES = {".c", ".h", ".def", ".cu", ".cuh", ".py", ".pyi", ".md", ".sh", ""}


def main(root):
    files = [p for p in root.iterdir() if p.suffix in SUFFIXES and p.is_file()]
    for folder in FOLDERS:
        files += [p for p in (root / folder).rglob("*") if p.suffix in SUFFIXES and p.is_file()]
    sizes = []
    for p in files:
        rel = p.relative_to(root)
        if p.name == "LICENSE" or "data" in rel.parts or "__pycache__" in rel.parts:
            continue
        try:
            sizes.append((len(p.read_text().splitlines()), str(rel)))
        except UnicodeDecodeError:
            pass  # not text
    sizes.sort(reverse=True)
    for n, name in sizes:
        if n > REPORT:
            print(f"{name}: {n} lines{' (limit 1,000)' if n > FAIL else ''}")
    total = sum(n for n, _ in sizes)
    print(f"sizes: {len(sizes)} files, {total} lines, largest {sizes[0][1]} with {sizes[0][0]}")
    return 1 if sizes[0][0] > FAIL else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
