"""Makes libraries to link against, of newer ones: with the same names, and of each symbol the newest version that old systems have.

    old_libraries.py FOLDER LIBRARY...

What is linked against FOLDER's runs where the C library is 2.28 and the C++ library GCC 7's, and newer: symbols keep their
versions forever. They have no code; programs find the system's.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

OLDEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}  # manylinux_2_28
SECTION = {"FUNC": "text", "IFUNC": "text", "NOTYPE": "text", "OBJECT": "data", "TLS": "tdata"}


def number(version: str) -> tuple[int, ...] | None:
    """Digits of a version that may be linked against; nothing for others, as GLIBC_PRIVATE."""
    family, _, rest = version.partition("_")
    if family not in OLDEST or not re.fullmatch(r"[0-9.]+", rest):
        return (0,) if version in ("CXXABI_FLOAT128", "CXXABI_TM_1") else None
    digits = tuple(map(int, rest.split(".")))
    return digits if digits <= OLDEST[family] else None


def symbols(library: str) -> dict[str, tuple[str, str, int]]:
    """Each symbol's version, kind and size."""
    best: dict[str, tuple[tuple[bool, tuple[int, ...]], str, str, int]] = {}
    table = subprocess.run(["readelf", "--wide", "--dyn-syms", library], capture_output=True, text=True, check=True).stdout
    for line in table.splitlines():
        words = line.split()
        if len(words) < 8 or not words[0].rstrip(":").isdigit() or words[6] in ("UND", "ABS") or words[3] not in SECTION:
            continue
        name, _, version = words[7].partition("@")
        default, version = version.startswith("@"), version.lstrip("@")
        digits = number(version)
        if digits is None or (name in best and best[name][0] >= (default, digits)):
            continue
        best[name] = ((default, digits), version, words[3], int(words[2], 0))
    return {name: found[1:] for name, found in best.items()}


def make(folder: Path, library: str) -> None:
    soname = re.search(r"Library soname: \[(.*)\]", subprocess.run(
        ["readelf", "--dynamic", library], capture_output=True, text=True, check=True).stdout)[1]
    nodes = defaultdict(list)
    lines = []
    for name, (version, kind, size) in sorted(symbols(library).items()):
        nodes[version].append(name)
        section = SECTION[kind]
        flags = {"text": '"ax",@progbits', "data": '"aw",@progbits', "tdata": '"awT",@progbits'}[section]
        of_type = {"text": "function", "data": "object", "tdata": "tls_object"}[section]
        lines += [f'.section .{section},{flags}', f'.globl "{name}"', f'.type "{name}",@{of_type}', f'.size "{name}",{size}',
                  ".balign 16", f'"{name}":', f".skip {max(size, 1) if section != 'text' else 1}"]
    source, script = folder / f"{soname}.s", folder / f"{soname}.map"
    source.write_text("\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""]))
    script.write_text("".join(f"{version} {{ global: {' '.join(chr(34) + n + chr(34) + ';' for n in names)} }};\n"
                              for version, names in nodes.items()))
    subprocess.run(["gcc", "-shared", "-nostdlib", "-fuse-ld=bfd", "-o", folder / soname, source, f"-Wl,-soname,{soname}",
                    f"-Wl,--version-script={script}"], check=True)


if __name__ == "__main__":
    for library in sys.argv[2:]:
        make(Path(sys.argv[1]), library)
