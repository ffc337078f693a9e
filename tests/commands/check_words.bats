#!/usr/bin/env bats
# scripts/check-words: silent on a tree that keeps the rules; each place where users read words is looked at, and numbers of known
# findings only shrink.

bats_require_minimum_version 1.5.0

setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  tree=$BATS_TEST_TMPDIR/tree
  git init -q "$tree"
  mkdir -p "$tree"/{scripts,docs,src,libddp/include/ddp}
  cp "$root/scripts/words.toml" "$tree/scripts/"
  plant docs/page.md 'Ranks report the failure.'
}

# plant FILE LINE...: a file with these lines in the tree.
plant() { printf '%s\n' "${@:2}" >"$tree/$1"; }

check() { "$root/scripts/check-words" "$@" "$tree"; }

# refuse FILE NUMBER WORDS LINE...: the file with these lines is reported there, for these words; then it is empty.
refuse() {
  plant "$1" "${@:4}"
  run -1 check
  echo "$output"
  [[ $output == "$1:$2: "*"$3"* ]]
  plant "$1" ''
}

permit() { # FILE LINE...
  plant "$@"
  run -0 check
  [ "$output" = "" ]
}

@test "the tree keeps the rules" {
  run -0 "$root/scripts/check-words"
  [ "$output" = "" ]
}

@test "each pattern finds what it is for, and not its neighbour" {
  local line
  while IFS='|' read -r line good; do
    refuse docs/page.md 3 '"' 'First.' '' "$line"
    permit docs/page.md "$good"
  done <<'END'
Every later operation tells it.|The two cannot be told apart.
It waits for ever.|It waits forever.
Nobody waits for the file.|No process waits for the file.
Of a parameter, the name.|The name of a parameter. Offer it.
It is late. Of a parameter, the name.|The name is that of a parameter.
The job goes on.|The job continues.
All ranks stand still.|All ranks stall.
The value is no number.|There is no number, and it is no longer needed.
Not there: mixtures of devices.|Unsupported: mixtures of devices.
The former ends the job.|The first option ends the job.
It refuses what is no frame.|It refuses malformed frames.
The number of them is 3.|One of them is enough.
An event behind the operation.|A host behind the same switch.
The ranks meet at a store.|The ranks rendezvous at a store.
END
}

@test "a sentence that a line break cuts is one; code in documents is not read" {
  refuse docs/page.md 1 'goes on' 'The job goes' 'on.'
  permit docs/page.md 'Use `nobody`.' '```' 'nobody tells' '```'
}

@test "documents' lines have at most 100 characters, rows of tables 200" {
  local hundred
  hundred=$(printf 'x%.0s' {1..100})
  permit docs/page.md "$hundred" "| $hundred |"
  refuse docs/page.md 1 '101 characters, but 100 at most' "${hundred}x"
  refuse docs/page.md 1 '205 characters, but 200 at most' "| $hundred $hundred |"
  refuse docs/page.md 2 '101 characters' '```' "${hundred}x" '```'
}

@test "strings, headings of files and public comments are read, other comments are not" {
  refuse src/a.cpp 2 'nobody' 'int a;' 'auto text = "nobody waits";'
  refuse src/a.cpp 1 'is no ' 'auto text = "{} is "' '  "no number";'
  refuse src/a.cpp 1 'nobody' 'auto text = R"(a "b" nobody)";'
  refuse src/a.cpp 1 'nobody' '// Waits for nobody.'
  permit src/a.cpp '// Why.' 'int a = f("x//y", '\''"'\'');  // nobody knows'
  refuse libddp/include/ddp/a.hpp 3 'tells' '#pragma once' '' '/// Waits, and' '/// tells.'
  refuse src/a.py 1 'nobody' '"""Waits for nobody."""'
  refuse src/a.py 2 'nobody' 'def wait():' '    """Waits for nobody."""'
  permit src/a.py 'import sys' '# nobody knows'
  refuse src/tool 1 'Whoever' '#!/bin/bash' '# Whoever comes first.'
}

@test "an exception permits its words in its files only" {
  printf '\n[[exception]]\nfile = "docs/*"\ntext = "the nobody user"\n' >>"$tree/scripts/words.toml"
  permit docs/page.md 'It runs as the nobody user.'
  refuse docs/page.md 1 'nobody' 'Then nobody waits.'
  refuse src/a.py 1 'nobody' '"""Runs as the nobody user."""'
  printf '\n[[exception]]\nfile = "docs/*"\nline = "[|] `DDP_"\n' >>"$tree/scripts/words.toml"
  permit docs/page.md '| `DDP_X` | nobody |'
  refuse docs/page.md 1 'nobody' '| `X` | nobody |'
}

@test "known findings may not grow, and their number shrinks with them" {
  plant docs/page.md 'Nobody waits.' '' 'It goes on.'
  printf 'docs/page.md\t2\n' >"$tree/scripts/words-known.tsv"
  run -0 check
  run -0 check --count
  [ "${lines[0]}" = "     2 docs/page.md" ]
  [ "${lines[1]}" = "     2 in all" ]

  plant docs/page.md 'Nobody waits.' '' 'It goes on.' '' 'It tells.'
  run -1 check
  [[ $output == *"docs/page.md: 3 such lines, but 2 at most"* ]]
  run -0 check --shrink
  [ "$(<"$tree/scripts/words-known.tsv")" = $'docs/page.md\t2' ]

  plant docs/page.md 'It tells.'
  run -1 check
  [ "$output" = "docs/page.md: 1 findings are left of 2: lower the number by scripts/check-words --shrink" ]
  run -0 check --shrink
  run -0 check
  rm "$tree/docs/page.md"
  run -1 check
  run -0 check --shrink
  [ ! -s "$tree/scripts/words-known.tsv" ]
}

@test "a folder that git does not know is refused" {
  run -1 "$root/scripts/check-words" "$BATS_TEST_TMPDIR"
  [[ $output == *"check-words: "*"has no files that git knows"* ]]
}
