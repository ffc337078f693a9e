"""Where a benchmark ran; without it, its numbers are meaningless."""

import platform
import re
import subprocess
from pathlib import Path

# Debian packages in whose code the measured programs spend their time.
PACKAGES = ("libpmix2", "slurmd", "libopenmpi3", "libmpich12", "libc6", "g++")


def processor():
    """Number and name of the CPUs."""
    text = Path("/proc/cpuinfo").read_text()
    names = re.findall(r"^model name\s*: (.*)$", text, re.MULTILINE)
    virtual = ", virtual" if re.search(r"^flags\s*:.*\bhypervisor\b", text, re.MULTILINE) else ""
    return f"{len(names)} x {names[0] if names else platform.machine()}{virtual}"


def versions():
    """Versions of the packages, where dpkg exists."""
    try:
        line = ["dpkg-query", "-W", "-f", "${Package} ${Version}\\n", *PACKAGES]
        found = subprocess.run(line, capture_output=True, text=True, timeout=30).stdout
    except FileNotFoundError:
        return "unknown"
    return ", ".join(found.splitlines())


def load():
    """One-minute load average before the benchmark adds its own."""
    return Path("/proc/loadavg").read_text().split()[0]


def description():
    return "\n".join([
        f"- Processors: {processor()}",
        f"- Kernel: {platform.system()} {platform.release().split('-')[0]}",
        f"- Versions: {versions()}",
        f"- Load average at start: {load()}",
    ])
