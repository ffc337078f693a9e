"""Leaves in FACTS_DIR/<rank>.json what a launcher has given this process. Needs no torch; runs as script and module."""

import json
import os
import sys
from pathlib import Path

facts = {
    "environment": dict(os.environ),
    "arguments": sys.argv[1:],
    "program": os.path.basename(sys.argv[0]),
    "name": __name__,
    "package": __package__,
    "import folder": sys.path[0],
    "working folder": os.getcwd(),
    "unbuffered": sys.stdout.write_through,
    "session of its own": os.getsid(0) == os.getpid(),
    "standard input": os.readlink("/proc/self/fd/0"),
}
Path(os.environ["FACTS_DIR"], os.environ["RANK"] + ".json").write_text(json.dumps(facts))
