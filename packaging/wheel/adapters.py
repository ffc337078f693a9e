"""Compiles libddp's adapter to PyTorch (libddp/_adapter.py) ahead, for the last releases of PyTorch and each Python.

    adapters.py CACHE INSTALLATION FOLDER

FOLDER gets the libraries. PyTorch's headers come from PyPI, those of Pythons from Debian's archives, and stay in CACHE. A library is
for one commit of PyTorch, in whose builds with and without CUDA the headers are the same. It names PyTorch's libraries as what
it needs, which `import torch` has loaded by then; stand-ins without symbols are enough to link it.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RELEASES = ("2.12.1", "2.13.0", "2.14.1")
PYTHONS = {"3.10": "", "3.11": "bookworm", "3.12": "", "3.13": "trixie", "3.14": "forky"}  # the Debian that has their headers
TORCHS = ("libtorch_python.so", "libtorch_cpu.so", "libc10.so")
ROOT = Path(__file__).resolve().parents[2]
PLATFORM = "x86_64-linux-gnu"


def run(command: list[object]) -> str:
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        first = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no reason")
        sys.exit(f"packaging/wheel/adapters.py: {' '.join(map(str, command[:4]))} ... failed: {first}")
    return done.stdout


def torch_of(release: str, cache: Path) -> tuple[Path, str]:
    """A folder with torch/include, and the commit."""
    folder = cache / f"torch-{release}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            run([cache / "tools/bin/pip", "download", "-q", "--no-input", "--no-deps", "--no-cache-dir", "--only-binary", ":all:",
                 "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "-d", temporary, f"torch=={release}"])
            made = Path(temporary) / "made"
            with zipfile.ZipFile(next(Path(temporary).glob("torch-*.whl"))) as wheel:
                wheel.extractall(made, [name for name in wheel.namelist() if name.startswith("torch/include/") or name == "torch/version.py"])
            made.rename(folder)
    return folder / "torch", re.search(r"git_version = '(\w{10})", (folder / "torch" / "version.py").read_text())[1]


def python_of(version: str, cache: Path) -> list[Path]:
    """Folders of headers: an interpreter's, else Debian's."""
    for python in (f"python{version}", *Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python3")):
        if (found := shutil.which(python)) is not None:  # perhaps pyenv's stand-in for none
            words = subprocess.run([found, "-c", "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_paths()['include'])"],
                                   stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout.split()
            if words[:1] == [version] and (Path(words[1]) / "Python.h").exists():
                return [Path(words[1])]
    folder = cache / f"python-{version}"
    if not folder.exists():
        if not PYTHONS[version]:
            sys.exit(f"packaging/wheel/adapters.py: there is no Python {version} with headers")
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            sources, made = Path(temporary) / "sources.list", Path(temporary) / "made"
            sources.write_text(run([ROOT / "scripts/debian-sources", PYTHONS[version], "deb"]))
            run(["mmdebstrap", "--quiet", "--variant=extract", "--format=directory", f"--include=libpython{version}-dev",
                 "--aptopt=Acquire::Check-Valid-Until \"false\"", PYTHONS[version], made, sources])
            for name in (f"python{version}", f"{PLATFORM}/python{version}"):  # not the C library's, which came along
                shutil.copytree(made / "usr" / "include" / name, Path(temporary) / "kept" / name)
            (Path(temporary) / "kept").rename(folder)
    return [folder / f"python{version}", folder]


def flags() -> tuple[str, ...]:
    tree = ast.parse((ROOT / "bindings/python/libddp/_adapter.py").read_text())
    return next(ast.literal_eval(each.value) for each in tree.body
                if isinstance(each, ast.Assign) and [target.id for target in each.targets if isinstance(target, ast.Name)] == ["_FLAGS"])


def make(release: str, version: str, cache: Path, installation: Path, folder: Path, work: Path) -> None:
    torch, commit = torch_of(release, cache)
    includes = [torch / "include", torch / "include/torch/csrc/api/include", *python_of(version, cache)]
    name = f"torch-{release}-{commit}.cpython-{version.replace('.', '')}-{PLATFORM}"
    parts = cache / "parts"
    run(["ccache", "g++", *flags(), "-D_GLIBCXX_USE_CXX11_ABI=1", *(f"-isystem{path}" for path in includes),
         f"-I{ROOT}/libddp/include", f"-I{ROOT}/bindings/torch/include", "-c", ROOT / "bindings/python/torch_adapter/adapter.cpp",
         "-o", work / f"{name}.o"])
    run(["g++", "-shared", "-s", f"-B{parts}", f"-L{parts}", work / f"{name}.o", "-Wl,--exclude-libs,ALL", "-Wl,--no-as-needed",
         *(work / each for each in TORCHS), next((installation / "lib").glob("libddp.so.?.?")), "-Wl,--as-needed",
         "-o", folder / f"{name}.so"])
    print(f"{name}.so", flush=True)


def main() -> None:
    cache, installation, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for each in TORCHS:
            run(["gcc", "-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,{each}", "-o", f"{temporary}/{each}"])
        for release in RELEASES:
            torch_of(release, cache)
        for version in PYTHONS:
            python_of(version, cache)
        with ThreadPoolExecutor(int(os.environ.get("DDP_JOBS") or os.cpu_count() or 1)) as pool:
            jobs = [pool.submit(make, release, version, cache, installation, folder, Path(temporary))
                    for release in RELEASES for version in PYTHONS]
            for job in jobs:
                job.result()


main()
