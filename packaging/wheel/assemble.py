"""Puts one wheel together: what scikit-build-core made for each Python, and an installation of libddp.

    assemble.py INSTALLATION LICENSES ADAPTERS FOLDER WHEEL...

The package's folder becomes an installation as any prefix: bin, lib, include, share. A wheel can hold no links, so libddp.so is a
line for the linker.
"""

import base64
import csv
import hashlib
import io
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

TAG = "py3-none-manylinux_2_28_x86_64"
COMMANDS = "ddp-selftest = libddp._programs:ddp_selftest\nddp-plugin = libddp._programs:ddp_plugin\n"
PROGRAMS = ("bin", "libexec", "share/libddp/scripts")
LEFT_OUT = ("share/doc",)  # is for people who look into a tree
SHARED = re.compile(r"lib.*\.so\.\d+\.\d+$")


def unpack(wheels: list[str], tree: Path) -> None:
    """The first one whole, of the others the module for their Python."""
    for number, wheel in enumerate(wheels):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if number == 0 or re.fullmatch(r"libddp/_core\..*\.so", name):
                    archive.extract(name, tree)


def install(installation: Path, package: Path) -> None:
    for file in sorted(path for path in installation.rglob("*") if path.is_file()):
        name = file.relative_to(installation)
        if file.is_symlink() or any(name.is_relative_to(folder) for folder in LEFT_OUT):
            continue
        target = package / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    library = next(file for file in (package / "lib").iterdir() if SHARED.fullmatch(file.name))
    (package / "lib" / "libddp.so").write_text(f"INPUT({library.name})\n")
    for file in (package / "share" / "modulefiles" / "libddp").iterdir():
        text = re.sub(r"libddp\.so\.[0-9.]+", library.name, file.read_text())
        file.write_text(text.replace(str(installation), "/where/pip/installed/libddp"))
    for conf in package.rglob("ddp.conf"):  # ddp-plugin writes Slurm's; this one says which Slurm it is for
        conf.write_text("".join(line for line in conf.read_text().splitlines(True) if not line.startswith("optional")))


def executable(name: Path) -> bool:
    return any(name.is_relative_to(Path("libddp") / folder) for folder in PROGRAMS)


def pack(tree: Path, target: Path) -> None:
    info = next(tree.glob("*.dist-info"))
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: libddp scripts/wheel\nRoot-Is-Purelib: false\nTag: {TAG}\n")
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        def add(name: Path, content: bytes) -> None:
            entry = zipfile.ZipInfo(str(name), (2026, 1, 1, 0, 0, 0))  # the same wheel from the same parts
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable(name) else 0o100644) << 16
            archive.writestr(entry, content)

        for file in sorted(path for path in tree.rglob("*") if path.is_file() and path.name != "RECORD"):
            name, content = file.relative_to(tree), file.read_bytes()
            add(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.writerow([name, f"sha256={digest}", len(content)])
        rows.writerow([info.relative_to(tree) / "RECORD", "", ""])
        add(info.relative_to(tree) / "RECORD", record.getvalue().encode())


def main() -> None:
    installation, licenses, adapters, folder = map(Path, sys.argv[1:5])
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary)
        unpack(sys.argv[5:], tree)
        install(installation, tree / "libddp")
        shutil.copytree(adapters, tree / "libddp" / "adapter" / "ahead")
        info = next(tree.glob("*.dist-info"))
        commands = info / "entry_points.txt"
        commands.write_text(commands.read_text().replace("[console_scripts]\n", f"[console_scripts]\n{COMMANDS}"))
        for text in licenses.iterdir():
            shutil.copyfile(text, info / "licenses" / text.name)
        version = re.match(r"libddp-(.*)\.dist-info", info.name)[1]
        target = folder / f"libddp-{version}-{TAG}.whl"
        pack(tree, target)
        print(target)


main()
