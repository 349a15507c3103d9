"""``python -m tools.site``: builds the site into build/site; a warning or a broken link is an error.

The pages are docs/ as it is, copied to build/site-source, where links that leave docs/ are pointed to
copies under ``repository/`` and pages made from code are added (`tools.site.pages`). Sphinx then
builds with warnings as errors, and every link and picture of the HTML is looked up.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build

from tools.site import links, pages

BUILD = pages.ROOT / "build"


def main(arguments: list[str]) -> int:
    """Builds the site; returns 1 if anything is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BUILD / "site", help="where the HTML goes")
    parser.add_argument("--repository", default="", help="address of the repository's files")
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    source = BUILD / "site-source"
    for folder in (source, options.out):
        shutil.rmtree(folder, ignore_errors=True)
    wrong = pages.write(source, options.repository)
    for problem in wrong:
        print(problem, file=sys.stderr)
    if wrong:
        return 1
    strict = ["-q", "-W", "--keep-going", "-n", "-c", str(Path(__file__).parent)]
    code = sphinx_build([*strict, "-b", "html", str(source), str(options.out)])
    broken, number = links.broken(options.out)
    for problem in broken:
        print(problem, file=sys.stderr)
    length = sum(len(path.read_text().split()) for path in source.rglob("*.md"))
    print(
        f"{len(list(source.rglob('*.md')))} pages, {length:,} words, {number:,} links,"
        f" {time.perf_counter() - begin:.0f} s: {options.out / 'index.html'}"
    )
    return code or bool(broken)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
