#!/usr/bin/env python3
"""Checks docs/architecture.md against the source tree.

    check_walks.py ROOT

Every hop of a walk, a list item that begins with `path/to/file.cpp:function` or `...:Type::method`, must name a file that
defines the function. Every other `path/to/file` with a suffix and every [link](path) must exist, relative to the root, one of
the folders of sources, or the page. Prints each offending line; exit code 1 if there is any.
"""

import re
import sys
from pathlib import Path

PAGE = Path("docs/architecture.md")
FOLDERS = ("", "libddp/src", "libddp/src/topology", "libddp/include", "launcher", "srun_plugin", "docs")
HOP = re.compile(r"^\s*(?:\d+\.|-) `([^`\s:]+):([A-Za-z_][\w:~]*)`")
FILE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/[\w-]+\.(?:cpp|hpp|c|h|md|txt|py))`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
# What stands between a definition's parameters and its body, or its constructor's initializers.
REST = r"\s*(?:(?:const|noexcept|override|final|&&?|->\s*[\w:<>,&*\s]+?)\s*)*"
# Text that may hold braces, parentheses and names of its own.
OPAQUE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


def closing(text, start, pair):
    """The position behind the bracket that closes the one at start; the end of the text without one."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == pair[0]) - (text[position] == pair[1])
        if depth == 0:
            return position + 1
    return len(text)


def has_definition(text, name):
    """Whether the text has a function of this name, qualified exactly so, with a body."""
    constructor = name.split("::")[-1] == (name.split("::")[-2:] or [""])[0]
    for found in re.finditer(rf"(?<![\w:.>~]){re.escape(name)}\s*\(", text):
        behind = closing(text, found.end() - 1, "()")
        ends = r"[{]|:(?!:)" if constructor else r"[{]"
        if re.match(REST + rf"(?:{ends})", text[behind:]):
            return True
    return False


def defines(text, name):
    text = OPAQUE.sub(" ", text)
    if has_definition(text, name):
        return True
    if "::" not in name:
        return False
    owner, function = name.rsplit("::", 1)  # defined within its class
    for found in re.finditer(rf"\b(?:class|struct)\s+{re.escape(owner)}\b[^;{{(]*{{", text):
        if has_definition(text[found.end() : closing(text, found.end() - 1, "{}")], function):
            return True
    return False


def defines_in_python(text, name):
    return re.search(rf"^\s*(?:async )?def {re.escape(name)}\(", text, re.MULTILINE) is not None


def exists(root, path):
    return any((root / folder / path).exists() for folder in FOLDERS)


def main():
    root = Path(sys.argv[1])
    hops, wrong = 0, []
    for number, line in enumerate((root / PAGE).read_text().splitlines(), 1):
        hop = HOP.match(line)
        if hop:
            hops += 1
            file, name = hop.groups()
            if not (root / file).is_file():
                wrong.append(f"{PAGE}:{number}: there is no {file}")
            elif not (defines_in_python if file.endswith(".py") else defines)((root / file).read_text(), name):
                wrong.append(f"{PAGE}:{number}: {file} does not define {name}")
            continue
        for path in [*FILE.findall(line), *LINK.findall(line)]:
            if not exists(root, path):
                wrong.append(f"{PAGE}:{number}: there is no {path}")
    print("\n".join(wrong) if wrong else f"{hops} hops are as described")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
