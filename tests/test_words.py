"""The home-made words of the vocabulary become fewer: tools/words_allowed.toml only shrinks."""

from __future__ import annotations

from tools import check_words


def test_no_word_stands_more_often_than_allowed():
    counts, allowed = check_words.counted(), check_words.allowed()
    more = {
        f"{word}, {kind}": (number, allowed[word][kind])
        for word, row in counts.items()
        for kind, number in row.items()
        if number > allowed[word][kind]
    }
    assert more == {}, "(now, allowed); architecture.md section 3 has the word to use instead"


def test_parts_of_identifiers_are_counted():
    pattern = check_words.NAMES["kept"]
    assert all(
        pattern.search(name) for name in ("kept", "kept_results", "_kept", "NotKept", "KEPT")
    )
    assert not any(pattern.search(name) for name in ("keep", "skept", "keptable"))
