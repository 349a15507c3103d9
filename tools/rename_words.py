"""``python -m tools.rename_words``: renames files, identifiers, words and variables by tables.

Reads ``tools/rename_words.toml`` and changes tracked files in place; run it from a clean tree with
Python 3.12 or later (its tokenizer sees inside f-strings). It is idempotent: entries whose old name
no longer exists are skipped. The tables:

    [files]         glob of an old path -> new file name (`git mv`; dotted names and paths follow)
    [words]         identifier or word -> new one, in every text file
    [[local]]       the same in the files that match `glob` (`not` excludes): `names` in code,
                    `words` everywhere in the file; `attributes`: names after a dot and definitions
                    `code`: regular expressions
    [[symbols]]     `old` that a module of `glob` defines -> `new`, wherever it is imported
    [[phrases]]     regular expression `old` -> `new`, in comments, docstrings and Markdown, over line
                    ends; `strings = true`: in all strings too; `glob` restricts it

Then variables are renamed scope by scope (`tools.rename_variables`), long prose lines are broken and
ruff sorts imports and formats.
"""

from __future__ import annotations

import ast
import fnmatch
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools import rename_variables

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".py", ".md", ".toml", ".txt", ".cpp", ".c", ".h", ".sh", ".yaml", ".yml", ""}
OURS = re.compile(
    r"^tests/test_words|^tools/(rename_\w+|check_words|words_allowed)\b|LICENSE|^\.git|^CHANGELOG"
)
WIDTH = 100


def tracked() -> list[str]:
    out = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    return [
        path
        for path in out.splitlines()
        if Path(path).suffix in SUFFIXES and not OURS.search(path) and (ROOT / path).is_file()
    ]


# -- files ---------------------------------------------------------------------------------------


def move_files(globs: dict[str, str]) -> list[tuple[str, str]]:
    """Moves files; returns the pairs of old and new path, also of what was moved before."""
    pairs, paths = [], tracked()
    for glob, new_name in globs.items():
        folder, _, old_name = glob.rpartition("/")
        for path in paths:
            at, _, name = path.rpartition("/")
            if not fnmatch.fnmatch(at, folder):
                continue
            old, new = f"{at}/{old_name}", f"{at}/{new_name}"
            if name == old_name and not (ROOT / new).exists():
                subprocess.check_call(["git", "mv", old, new], cwd=ROOT)
            elif name != new_name or (ROOT / old).exists():
                continue
            pairs.append((old, new))
    return pairs


def dotted(path: str) -> str:
    return re.sub(r"^packages/[^/]+/src/", "", path).removesuffix(".py").replace("/", ".")


def path_replacements(pairs: list[tuple[str, str]]) -> list[tuple[str, re.Pattern[str], str]]:
    """What names a moved file in text: dotted names, paths, names of tests in lists, stems."""
    replacements: list[tuple[str, re.Pattern[str], str]] = []
    for old, new in pairs:
        forms = [
            (re.sub(r"^packages/[^/]+/src/", "", old), re.sub(r"^packages/[^/]+/src/", "", new))
        ]
        if old.endswith(".py"):
            forms.append((dotted(old), dotted(new)))
        parts, others = Path(old).parts, Path(new).parts
        short, other = "/".join(parts[-2:]), "/".join(others[-2:])
        forms.append((short, other))
        if parts[0] == "tests":
            forms.append((short.removesuffix(".py"), other.removesuffix(".py")))
        if "_" in parts[-1] or "-" in parts[-1]:
            forms.append((parts[-1], others[-1]))
            stem, renamed = Path(old).stem, Path(new).stem
            forms += [(f"`{stem}`", f"`{renamed}`"), (f"`{stem}.", f"`{renamed}.")]
        replacements += [
            (a, re.compile(rf"(?<![\w.]){re.escape(a)}" + ("" if a[-1] in "`." else r"(?!\w)")), b)
            for a, b in forms
        ]
    return replacements


def rename_imported(text: str, pairs: list[tuple[str, str]]) -> str:
    """Renames moved modules that a file imports from their package, and their attributes' owners."""
    names = {dotted(old): Path(new).stem for old, new in pairs}
    packages = {tuple(name.rpartition(".")[::2]) for name in names}
    if not any(
        re.search(rf"from {re.escape(a)} import [^\n]*(\n[^)]*)?\b{b}\b", text) for a, b in packages
    ):
        return text
    file = rename_variables.File(text, "", {}, set(), [])
    edits: list[rename_variables.Edit] = []
    for node in ast.walk(file.tree):
        for each in node.names if isinstance(node, ast.ImportFrom) else ():
            new = names.get(f"{node.module}.{each.name}")  # type: ignore[attr-defined]
            if new is None:
                continue
            edits.append(file.edit(each, each.name, new))
            owner = file.scope(each, each.name)
            edits += [
                file.edit(user, each.name, new)
                for user in ast.walk(file.tree)
                if isinstance(user, ast.Name)
                and user.id == each.name
                and not each.asname
                and file.scope(user, each.name) is owner
            ]
    return rename_variables.apply(text, edits)


def move_folders(folders: dict[str, str]) -> None:
    for old, new in folders.items():
        if (ROOT / old).is_dir() and not (ROOT / new).exists():
            subprocess.check_call(["git", "mv", old, new], cwd=ROOT)


# -- symbols -------------------------------------------------------------------------------------


def rename_symbols(texts: dict[str, str], rules: list[dict[str, str]]) -> None:
    """Renames what a module defines: there, where it is imported by name (also from a module that
    imports it), as an attribute of the module, and in ``module.py::Name`` of prose."""
    imports: dict[str, list[tuple[str, set[str]]]] = {}
    for path, text in texts.items():
        if path.endswith(".py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = {each.name for each in node.names}
                    imports.setdefault(node.module, []).append((path, names))
    for rule in rules:
        old, new = rule["old"], rule["new"]
        definition = re.compile(
            rf"^(?:class |def |async def ){old}\b|^{old}(?:: [^=\n]+)? = |^{old}, |^[\w, ]+, {old} = ",
            re.M,
        )
        for path in [p for p in texts if p.endswith(".py") and fnmatch.fnmatch(p, rule["glob"])]:
            if not definition.search(texts[path]):
                continue
            stem = Path(path).stem
            todo, done = [path], {path}
            while todo:
                module = dotted(todo.pop()).removesuffix(".__init__")
                for importer, names in imports.get(module, []):
                    if old in names and importer not in done:
                        done.add(importer)
                        todo.append(importer)
            clash = [each for each in done if re.search(rf"(?<![\w.]){new}(?!\w)", texts[each])]
            if clash:
                print(f"{old} -> {new}: skipped, {clash[0]} has a {new}")
                continue
            for each in done:
                text = edit_names(texts[each], {old: new}, after_dot=False)
                text = re.sub(rf"(?<=`){old}(?=[`.(\[])", new, text)
                texts[each] = re.sub(rf'(?<=")({old})(?="[,\]])', new, text)
            parent = dotted(path).rpartition(".")[0]
            users = {importer for importer, names in imports.get(parent, []) if stem in names}
            for each in users:
                texts[each] = re.sub(
                    rf"(?<![\w.]){stem}\.{old}(?!\w)", f"{stem}.{new}", texts[each]
                )
            for each in texts:
                if f"{stem}.py::{old}" in texts[each] or f"{dotted(path)}.{old}" in texts[each]:
                    texts[each] = re.sub(
                        rf"({stem}\.py::|{re.escape(dotted(path))}\.){old}(?!\w)",
                        rf"\g<1>{new}",
                        texts[each],
                    )


# -- words ---------------------------------------------------------------------------------------


def word_pattern(names: dict[str, str]) -> re.Pattern[str]:
    return re.compile(
        r"(?<!\w)(" + "|".join(sorted(map(re.escape, names), key=len)[::-1]) + r")(?!\w)"
    )


def replace_words(text: str, names: dict[str, str]) -> str:
    return word_pattern(names).sub(lambda m: names[m[1]], text) if names else text


def edit_names(
    text: str, names: dict[str, str], *, after_dot: bool | None = None, prefixes: bool = False
) -> str:
    """Renames NAME tokens: all, those after a dot (and definitions), or those that are not."""
    edits = []
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for before, token in zip([tokens[0], *tokens], tokens, strict=False):
        if token.type != tokenize.NAME or token.string not in names:
            continue
        dot = before.string == "." or (after_dot and before.string in ("def", "class"))
        if after_dot is None or bool(dot) is after_dot:
            edits.append((token.start, token.end, names[token.string]))
    return rename_variables.apply(text, edits)


def replace_local(path: str, text: str, rules: list[dict[str, Any]]) -> str:
    for rule in rules:
        globs = rule["glob"] if isinstance(rule["glob"], list) else [rule["glob"]]
        if not any(fnmatch.fnmatch(path, glob) for glob in globs):
            continue
        if any(fnmatch.fnmatch(path, glob) for glob in rule.get("not", ())):
            continue
        text = replace_words(text, rule.get("words", {}))
        for old, new in rule.get("code", {}).items():
            text = re.sub(old, new, text, flags=re.M)
        if path.endswith(".py"):
            if rule.get("names"):
                text = edit_names(text, rule["names"])
            if rule.get("attributes"):
                text = edit_names(text, rule["attributes"], after_dot=True)
    return text


# -- prose ---------------------------------------------------------------------------------------


def prose_spans(path: str, text: str, strings: bool) -> list[tuple[int, int]]:
    """Where comments and docstrings (and all strings) of a file stand; all of a Markdown file."""
    if path.endswith(".md"):
        return [(0, len(text))]
    if path.endswith((".cpp", ".c", ".h")):
        return [
            m.span() for m in re.finditer(r"//[^\n]*(?:\n\s*//[^\n]*)*|/\*.*?\*/", text, re.DOTALL)
        ]
    if not path.endswith(".py"):
        return [(0, len(text))] if path.endswith(".txt") and strings else []
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans: list[tuple[int, int]] = []
    last = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        begin = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        if token.type == tokenize.COMMENT:
            if spans and re.fullmatch(r"\n[ \t]*", text[spans[-1][1] : begin]) and last == "c":
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((begin, end))
            last = "c"
        elif (
            token.type == tokenize.STRING
            and (strings or token.string.lstrip("rRbBuUfF")[:3] == '"""')
        ) or (strings and token.type == getattr(tokenize, "FSTRING_MIDDLE", -1)):
            spans.append((begin, end))
            last = "s"
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            last = None
    return spans


#: What may stand between two words of a phrase: blanks, or a line end with what begins a comment.
GAP = r"(?:[ \t]+|[ \t]*\n[ \t]*(?:#:?[ \t]*|//[ \t]*)?)"


def phrase_pattern(old: str) -> re.Pattern[str]:
    return re.compile(old.replace(" ", GAP))


def replace_phrases(path: str, text: str, rules: list[dict[str, Any]]) -> str:
    for strings in (False, True):
        chosen = []
        for rule in rules:
            pattern = rule.setdefault("pattern", phrase_pattern(rule["old"]))
            if (
                rule.get("strings", False) is strings
                and fnmatch.fnmatch(path, rule.get("glob", "*"))
                and not any(fnmatch.fnmatch(path, glob) for glob in rule.get("not", ()))
                and pattern.search(text)
            ):
                chosen.append((pattern, keep_gaps(rule["new"])))
        spans = prose_spans(path, text, strings) if chosen else []
        for begin, end in reversed(spans):
            part = text[begin:end]
            for pattern, new in chosen:
                part = pattern.sub(new, part)
            text = text[:begin] + part + text[end:]
    return text


def keep_gaps(new: str) -> Callable[[re.Match[str]], str]:
    """A replacement that keeps the line end inside a phrase (the first, at the first blank)."""

    def replaced(match: re.Match[str]) -> str:
        text = match.expand(new)
        gap = re.search(r"[ \t]*\n[ \t]*(?:#:?[ \t]*|//[ \t]*)?", match[0])
        if gap is None or "\n" in text:
            return text
        head, blank, tail = text.partition(" ")
        return (
            head + gap[0] + tail
            if blank
            else gap[0] + text
            if match[0][0].isspace()
            else text + gap[0]
        )

    return replaced


def break_lines(path: str, text: str, before: str) -> str:
    """Breaks lines of prose that became longer than the limit; words move to the next line."""
    if not path.endswith((".py", ".md", ".cpp", ".c", ".h")):
        return text
    old = set(before.splitlines())
    lines, fence = text.split("\n"), False
    prose = line_numbers(path, text)
    for i, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            fence = not fence
        if len(line) <= WIDTH or line in old or i not in prose or fence:
            continue
        if path.endswith(".md") and line.startswith(("|", "    ", "#")):
            continue
        lead = re.match(r"\s*(?:#:?\s+|//\s+|[-*]\s+)?", line)[0]  # type: ignore[index]
        cut = line.rfind(" ", len(lead) + 10, WIDTH + 1)
        if cut < 0 or line.count('"""') > 1:
            continue
        indent = re.sub(r"[-*](?=\s)", " ", lead) if path.endswith(".md") else lead
        head, rest = line[:cut].rstrip(), line[cut + 1 :]
        following = lines[i + 1] if i + 1 < len(lines) else ""
        bare = following.strip().lstrip("#/").strip()
        same = following.startswith(indent) and re.match(
            r"[\w`(\"']", following[len(indent) :] or "-"
        )
        if (
            same
            and i + 1 in prose
            and bare
            and not rest.endswith(('"""', ":"))
            and not re.match(r"\w+(, \w+)*: |\w+:$|\d+\.", bare)
        ):
            lines[i : i + 2] = [head, f"{indent}{rest} {following[len(indent) :]}"]
        else:
            lines[i] = f"{head}\n{indent}{rest}"
            lines[i : i + 1] = lines[i].split("\n")
            prose = {n + (n > i) for n in prose} | {i + 1}
            return break_lines(path, "\n".join(lines), before)
    return "\n".join(lines)


def line_numbers(path: str, text: str) -> set[int]:
    """The lines (from 0) on which nothing but prose stands."""
    numbers: set[int] = set()
    for begin, end in prose_spans(path, text, False):
        first = text.count("\n", 0, begin)
        start = text.rfind("\n", 0, begin) + 1
        if not text[start:begin].strip():
            numbers |= set(range(first, first + text.count("\n", begin, end) + 1))
    return numbers


# -- all -----------------------------------------------------------------------------------------


def main() -> None:
    if sys.version_info < (3, 12):
        raise SystemExit("run this with Python 3.12 or later")
    skipped = set(sys.argv[1:])  # files words local variables phrases
    rules = tomllib.loads((ROOT / "tools" / "rename_words.toml").read_text())
    if "files" not in skipped:
        move_folders(rules.get("folders", {}))
    pairs = [] if "files" in skipped else move_files(rules.get("files", {}))
    paths = path_replacements(pairs)
    originals = {path: (ROOT / path).read_text() for path in tracked()}
    texts = dict(originals)
    for path, text in texts.items():
        if path.endswith(".py"):
            text = rename_imported(text, pairs)
        for old, pattern, new in paths:
            if old in text:
                text = pattern.sub(new, text)
        if "words" not in skipped:
            text = replace_words(text, rules.get("words", {}))
        if "local" not in skipped:
            text = replace_local(path, text, rules.get("local", []))
        texts[path] = text
    stems = {Path(path).stem for path in texts if path.endswith(".py")}
    for name in sorted(stems & set(rules.get("words", {}))):
        print(f"{name} is a module, too: add it to [files]")
    if "symbols" not in skipped:
        rename_symbols(texts, rules.get("symbols", []))
    if "variables" not in skipped:
        rename_variables.rename_all(texts, rules.get("variables", {}))
    if "phrases" not in skipped:
        for path, text in texts.items():
            texts[path] = replace_phrases(path, text, rules.get("phrases", []))
    changed = 0
    for path, text in texts.items():
        if text != originals[path]:
            (ROOT / path).write_text(break_lines(path, text, originals[path]))
            changed += 1
    print(f"{len(pairs)} files moved, {changed} files changed")
    print(
        "then, with torch: write breaks_page() of tracer_core.fx_capture.graph_breaks into docs/graph_breaks.md and"
    )
    print("page() of tracer_core.registry.limits into docs/limits_table.md")
    for command in (
        ["ruff", "check", "-q", "--fix", "--select", "I", "."],
        ["ruff", "format", "-q", "."],
    ):
        subprocess.check_call(command, cwd=ROOT)


if __name__ == "__main__":
    main()
