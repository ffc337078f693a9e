"""The examples of a documentation page, as tests run them.

    page.py write PAGE        write the page's named blocks and the script commands.sh into the current folder
    page.py check PAGE LOG    fail unless each line of the page's outputs is in LOG, in which commands.sh has written
    page.py links PAGE...     fail unless the pages' links lead to files, and to headings in them

A fenced block is ```LANGUAGE FILE: the contents of FILE; ```sh: commands, run in the order of the page; ```text: output. Behind
<!-- fails --> a block of commands must end with another status than 0. In outputs, numbers stand for any number, blanks for
any blanks, and ... for anything. <!-- not run: REASON --> excludes the block that follows.
"""

import re
import sys
from pathlib import Path

BLOCK = re.compile(r"(?:<!-- (fails|not run: [^>]+) -->\n)?^```(\w*) ?([^\n`]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page):
    """(remark, language, file, text) of each block that is run."""
    found = [match.groups() for match in BLOCK.finditer(Path(page).read_text())]
    return [block for block in found if not (block[0] or "").startswith("not run")]


def write(page):
    script = ["set -eE", "trap 'echo \"failed: $BASH_COMMAND\"' ERR"]
    for remark, language, file, text in blocks(page):
        if file:
            Path(file).write_text(text)
        elif language == "sh" and remark == "fails":
            script.append(f"trap - ERR; set +e\n(set -e\n{text})\n[ $? != 0 ] || {{ echo 'must fail, but did not'; exit 1; }}\n"
                          "set -eE; trap 'echo \"failed: $BASH_COMMAND\"' ERR")
        elif language == "sh":
            script.append(text)
    if len(script) == 2:
        sys.exit(f"{page} has no commands")
    Path("commands.sh").write_text("\n".join([*script, "trap - ERR", ""]))


def check(page, log):
    said = re.sub(r"[ \t]+", " ", Path(log).read_text(errors="replace"))
    for _, language, file, text in blocks(page):
        if language != "text" or file:
            continue
        for line in text.splitlines():
            words = re.escape(" ".join(line.split()))
            pattern = re.sub(r"\d+", r"\\d+", words).replace(r"\.\.\.", ".*").replace(r"\ ", " ")
            if line.strip("=- .") and not re.search(pattern, said):
                sys.exit(f"{page} shows a line that was not printed: {line}\nprinted was:\n{said}")


def without_code(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def headings(page):
    """The anchors that GitHub gives them."""
    found = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", name).lower()).replace(" ", "-") for name in found}


def links(pages):
    wrong = []
    for page in map(Path, pages):
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", without_code(page))):
            path, _, heading = link.partition("#")
            to = page.parent / path if path else page
            if "://" in link:
                continue
            if not to.exists():
                wrong.append(f"{page}: {link}: no such file")
            elif heading and heading not in headings(to):
                wrong.append(f"{page}: {link}: no such heading")
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    elif sys.argv[1] == "links":
        links(sys.argv[2:])
    else:
        check(sys.argv[2], sys.argv[3])
