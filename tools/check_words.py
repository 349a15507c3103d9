"""``python -m tools.check_words [--update]``: how often the home-made words still stand.

Counts the left column of the vocabulary by kind: identifiers of Python, file names, docstrings and
comments, docs, tests. ``tests/test_words.py`` compares the counts with ``tools/words_allowed.toml``,
which only shrinks: ``--update`` writes what is lower now. A word is a regular expression over whole
identifiers or over parts between underscores and capitals (`_part`).
"""

from __future__ import annotations

import argparse
import keyword
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = ROOT / "tools" / "words_allowed.toml"
KINDS = ("names", "files", "docstrings", "docs", "tests")

#: Variables that say nothing: only whole identifiers count, and only in code.
VARIABLES = ("one", "found", "made", "plain", "whole", "told", "given")

#: word -> the parts of identifiers that are it, and its form in prose.
WORDS = {
    "MOST, LONGEST": (r"^_?(MOST|LONGEST|LARGEST|SHORTEST)$", ""),
    "kept": (r"_part(kept)", r"\bkept\b"),
    "attempt": (r"_part(attempts?)", r"\battempts?\b"),
    "segment": (r"_part(segments?)", r"\bsegments?\b"),
    "drawn again": (r"(?i)drawn_?again|captured_?again|saved_draws", r"\bdrawn again\b"),
    "draws": (r"_part(draws?|drawn)", r"\bdraws\b"),
    "foreseen": (
        r"(?i)forese|foresight|present_?values",
        r"\bfore(seen|sight|sees)\b|\bpresent values\b",
    ),
    "lasting": (r"_part(lasting)", r"\blasting\b"),
    "settled": (r"_part(settled?|settles)", r"\bsettle[ds]?\b"),
    "born": (r"_part(born|births?)", r"\bbirths?\b"),
    "giving way": (r"(?i)giving_?way|^served$", r"\bgiv(ing|es) way\b"),
    "natively": (r"(?i)natively", r"\bnatively\b|\bplain Python\b"),
    "carried": (r"_part(carried|shells?)", r"\bcarried\b"),
    "transition": (r"_part(transitions?|suspended)", r"\btransitions?\b"),
    "words, stamp": (r"_part(words|stamps?)", r"\bstamps?\b|\bwatched words\b"),
    "truth value": (r"_part(truths?)", r"\btruth values?\b"),
    "whole number": (r"(?i)whole_?numbers?", r"\bwhole numbers?\b"),
    "images last": (r"(?i)images?_?last|image_layout", r"\bimages[ -]last\b"),
    "own kernel": (r"(?i)own_?(kernel|call|product|operator|attention)", r"\bown kernels?\b"),
    "posts": (r"^_?(\w+_)?(posts?|POSTS)$", r"\bposts?\b"),
    "products": (r"_part(products|matrices)", r"\bmatrix products?\b"),
    "turned": (r"_part(turned)", r"\bturned\b"),
    "cut": (r"(?i)^cuts?$|^cut_(late|out)|go_on_at|subgraph_cut", ""),
    "alarm": (r"_part(alarms?)|one_node", r"\balarms?\b"),
    "known tensors": (r"(?i)known_tensors?|equal_regions?", r"\bknown tensors\b|\bequal regions\b"),
    "in turn, placed": (r"_part(placed)|in_turn", r"\bplaced views\b"),
    "judge": (r"_part(judged?|judging)", r"\bjudge[ds]?\b"),
    "effect table": (r"effect_table|(?i:stand_?ins?)", r"\beffect tables?\b|\bstand-ins?\b"),
    "refusal": (r"_part(refusals?)", r"\brefusals?\b"),
    "twin": (r"_part(twins?)", r"\btwins?\b"),
    "planted fault": (r"(?i)planted_?faults?", r"\bplanted faults?\b"),
    "is_plain": (r"^_?is_plain", ""),
    **{word: (rf"^{word}$", "") for word in VARIABLES},
}


def _name_pattern(text: str) -> re.Pattern[str]:
    """`_part(x)`: x between underscores, at an end, or a part of CamelCase."""
    if match := re.search(r"_part\((.*?)\)", text):
        word = match[1]
        camel = "|".join(each.capitalize() for each in re.sub(r"[()?]", "", word).split("|"))
        part = rf"(?:^|_)(?i:{word})(?=_|$)|(?:{camel})(?=[A-Z]|$)"
        text = text.replace(match[0], part)
    return re.compile(text)


NAMES = {word: _name_pattern(name) for word, (name, _) in WORDS.items()}
PROSE = {word: re.compile(prose) for word, (_, prose) in WORDS.items() if prose}

#: Strings, comments, names and numbers of Python: four times as fast as `tokenize`, and the same
#: whether or not f-strings have tokens inside.
TOKEN = re.compile(
    r"""(?P<string>(?i:\b[rbuf]{1,2})?(?P<quotes>\"{3}|'{3}|"|')(?:\\.|(?!(?P=quotes)).)*(?P=quotes))
    |(?P<comment>\#[^\n]*) | (?P<name>[^\W\d]\w*) | \d[\w.]*""",
    re.DOTALL | re.VERBOSE,
)


def tracked() -> list[str]:
    out = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    skipped = ("tools/rename_", "tools/check_words", "tools/words_", "tests/test_words")
    return [path for path in out if not path.startswith(skipped) and (ROOT / path).is_file()]


def counted() -> dict[str, dict[str, int]]:
    """word -> kind -> how often; only what stands somewhere."""
    names: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    prose: dict[str, list[str]] = {"docstrings": [], "docs": [], "tests": []}
    paths = tracked()
    for path in paths:
        in_tests = path.startswith("tests/")
        if path.endswith(".md"):
            prose["docs"].append((ROOT / path).read_text())
        elif path.endswith(".py"):
            for token in TOKEN.finditer((ROOT / path).read_text()):
                if token.lastgroup == "name" and not keyword.iskeyword(token[0]):
                    names[in_tests][token[0]] += 1
                elif token.lastgroup == "comment" or token[0].lstrip("rf")[:3] == '"""':
                    prose["tests" if in_tests else "docstrings"].append(token[0])
    texts = {kind: "\n".join(parts) for kind, parts in prose.items()}
    stems = [Path(path).stem.replace("-", "_") for path in paths]
    counts: dict[str, dict[str, int]] = {}
    for word, pattern in NAMES.items():
        here, tests = (
            sum(n for name, n in names[each].items() if pattern.search(name))
            for each in (False, True)
        )
        in_prose = {
            kind: len(PROSE[word].findall(text)) for kind, text in texts.items() if word in PROSE
        }
        files = sum(bool(pattern.search(stem)) for stem in stems)
        row = {"names": here, "files": files} | in_prose
        row["tests"] = row.get("tests", 0) + tests
        counts[word] = {kind: row.get(kind, 0) for kind in KINDS}
    return counts


def allowed() -> dict[str, dict[str, int]]:
    return tomllib.loads(ALLOWED.read_text()) if ALLOWED.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write what is lower than allowed")
    counts, limits = counted(), allowed()
    if parser.parse_args().update:
        lines = ["# What tools/check_words.py counts at most; it only shrinks.", ""]
        for word, row in counts.items():
            old = limits.get(word, row)
            cells = ", ".join(f"{kind} = {min(row[kind], old[kind])}" for kind in KINDS)
            lines.append(f'"{word}" = {{ {cells} }}')
        ALLOWED.write_text("\n".join(lines) + "\n")
    print(f"{'word':16}" + "".join(f"{kind:>11}" for kind in KINDS))
    for word, row in counts.items():
        print(f"{word:16}" + "".join(f"{row[kind]:11,}" for kind in KINDS))


if __name__ == "__main__":
    main()
