"""Whether a wheel is what its tag says: manylinux_2_28, and nothing else is needed. Exit status 1, with a line for each fault.

    check.py WHEEL      with a table of sizes by part
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

from old_libraries import OLDEST, number

MOST_BYTES = 25 << 20
SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|libutil|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so\.\d+")
TORCH = re.compile(r"lib(torch_python|torch_cpu|c10)\.so")  # which an adapter's importer has loaded
HERE = re.compile(r"\$ORIGIN(/[a-z./]+)?")


def faults(file: Path, inside: set[str]) -> list[str]:
    dynamic = subprocess.run(["readelf", "--wide", "--dynamic", "--version-info", "--sections", file], capture_output=True, text=True,
                             check=True).stdout
    found = []
    for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if not SYSTEM.fullmatch(needed) and needed not in inside and not (file.parent.name == "ahead" and TORCH.fullmatch(needed)):
            found.append(f"needs {needed}")
    for path in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic):
        found += [f"looks for libraries in {folder}" for folder in path.split(":") if not HERE.fullmatch(folder)]
    needs = dynamic.partition("Version needs section")[2]
    for version in sorted(set(re.findall(r"Name: (\w+[0-9.]+)  Flags", needs))):
        family = version.partition("_")[0]
        if family in OLDEST and number(version) is None:
            found.append(f"needs {version}, newer than {'.'.join(map(str, OLDEST[family]))}")
        elif family not in OLDEST and not version.startswith("LIBDDP_"):
            found.append(f"needs {version}")
    return found + [f"has {section}" for section in (".debug_info",) if section in dynamic]


def part(name: str) -> str:
    words = name.split("/")
    if words[0] != "libddp":
        return "metadata"
    if len(words) > 2 and (words[1] in ("bin", "lib", "libexec")):
        return "/".join(words[1:])
    return re.sub(r".*\.so", "Python modules", words[1]) if len(words) == 2 and ".so" in words[1] else words[1] if len(words) > 2 else "Python"


def main() -> int:
    wheel, bad = Path(sys.argv[1]), []
    packed, whole = Counter(), Counter()
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        inside = {Path(name).name for name in archive.namelist()}
        for entry in archive.infolist():
            packed[part(entry.filename)] += entry.compress_size
            whole[part(entry.filename)] += entry.file_size
            file = Path(archive.extract(entry, folder))
            if file.is_file() and file.read_bytes()[:4] == b"\x7fELF":
                bad += [f"{entry.filename} {fault}" for fault in faults(file, inside)]
    for name, size in packed.most_common():
        print(f"{size / 1024:8.0f} KiB  {whole[name] / 1024:8.0f} KiB  {name}")
    print(f"{wheel.stat().st_size / 1024:8.0f} KiB  {sum(whole.values()) / 1024:8.0f} KiB  {wheel.name}")
    if wheel.stat().st_size > MOST_BYTES:
        bad.append(f"the wheel has {wheel.stat().st_size} bytes, more than {MOST_BYTES}")
    for fault in bad:
        print(f"check.py: {fault}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
