"""The cache folder is private, because machine code is loaded from it."""

from __future__ import annotations

import os
import stat

import pytest

from tracer_core.storage.cache_location import CacheLocationError, cache_folder


def test_folders_are_made_private(fresh_cache):
    folder = cache_folder("inductor", "objects")
    assert str(folder) == os.path.join(fresh_cache, "inductor", "objects")
    for path in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert cache_folder("inductor", "objects") == folder


def test_a_folder_that_others_may_write_to_is_refused(fresh_cache):
    folder = cache_folder("inductor")
    folder.chmod(0o777)
    with pytest.raises(CacheLocationError, match="other users may write to it"):
        cache_folder("inductor")
    with pytest.raises(CacheLocationError, match="TRACER_CACHE_DIR"):
        cache_folder("inductor", "objects")


def test_a_file_in_the_way_is_named(fresh_cache):
    cache_folder()
    path = os.path.join(fresh_cache, "inductor")
    with open(path, "w") as file:
        file.write("not a folder")
    with pytest.raises(CacheLocationError, match="inductor"):
        cache_folder("inductor", "objects")


def test_the_default_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.delenv("TRACER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("x") == tmp_path / "tracer" / "x"
