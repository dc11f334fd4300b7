import os
from pathlib import Path

from dippm.frontends.conversion.cache import ConversionCache


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = ConversionCache(tmp_path, most_entries=3)
    for place, key in enumerate("abc"):
        cache.save(key, b"x", converter_s=1.0)
        os.utime(tmp_path / key, (place, place))
    assert cache.load("a") is not None  # used: now the youngest
    cache.save("d", b"x", converter_s=1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "d"]


def test_the_size_is_bounded_and_the_newest_stays(tmp_path: Path) -> None:
    cache = ConversionCache(tmp_path, most_bytes=5000)
    for place, key in enumerate("abc"):
        entry = cache.save(key, bytes(4000), converter_s=1.0)
        os.utime(tmp_path / key, (place, place))
        assert entry.path.read_bytes() == bytes(4000)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_what_another_process_left_unfinished_goes_after_a_day(tmp_path: Path) -> None:
    cache = ConversionCache(tmp_path)
    for name, age in (("unfinished-old", 2 * 24 * 3600), ("unfinished-new", 60)):
        (tmp_path / name).mkdir()
        then = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (then, then))
    cache.save("a", b"x", converter_s=1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "unfinished-new"]


def test_an_entry_comes_back_with_its_time(tmp_path: Path) -> None:
    cache = ConversionCache(tmp_path / "made" / "later")
    assert cache.load("a") is None
    cache.save("a", b"model", converter_s=2.5)
    found = cache.load("a")
    assert found is not None
    assert (found.path.read_bytes(), found.converter_s) == (b"model", 2.5)
