import os
import threading
from pathlib import Path

import pytest

from dippm.frontends.conversion.cache import CacheEntry, ConversionCache


def entry(model: bytes = b"x", *, converter_s: float = 1.0) -> CacheEntry:
    return CacheEntry(model=model, converter_s=converter_s)


def keys(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.iterdir())


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = ConversionCache(tmp_path, most_entries=3)
    for place, key in enumerate("abc"):
        cache.save(key, entry())
        os.utime(tmp_path / f"{key}.conversion", (place, place))
    assert cache.load("a") is not None  # used: now the youngest
    cache.save("d", entry())
    assert keys(tmp_path) == ["a", "c", "d"]


def test_the_size_is_bounded_and_the_newest_stays(tmp_path: Path) -> None:
    cache = ConversionCache(tmp_path, most_bytes=5000)
    for place, key in enumerate("abc"):
        cache.save(key, entry(bytes(4000)))
        os.utime(tmp_path / f"{key}.conversion", (place, place))
        assert cache.load(key) == entry(bytes(4000))
    assert keys(tmp_path) == ["c"]


def test_what_is_larger_than_all_may_be_is_not_kept_and_drops_nothing(tmp_path: Path) -> None:
    cache = ConversionCache(tmp_path, most_bytes=1000)
    for key in "ab":
        cache.save(key, entry())
    cache.save("large", entry(bytes(1000)))
    assert cache.load("large") is None
    assert keys(tmp_path) == ["a", "b"]


def test_what_another_process_left_unfinished_goes_after_a_day(tmp_path: Path) -> None:
    cache = ConversionCache(tmp_path)
    for name, age in (("unfinished-old", 2 * 24 * 3600), ("unfinished-new", 60)):
        (tmp_path / name).touch()
        then = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (then, then))
    cache.save("a", entry())
    assert keys(tmp_path) == ["a", "unfinished-new"]


def test_what_is_not_the_caches_own_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    os.utime(tmp_path / "notes.txt", (0, 0))
    cache = ConversionCache(tmp_path, most_entries=1)
    for key in "ab":
        cache.save(key, entry())
    assert keys(tmp_path) == ["b", "notes"]


@pytest.mark.parametrize("model", [b"", b"model", b"several\nlines\n", bytes(range(256))])
def test_an_entry_comes_back_with_its_time(tmp_path: Path, model: bytes) -> None:
    cache = ConversionCache(tmp_path / "made" / "later")
    assert cache.load("a") is None
    cache.save("a", entry(model, converter_s=2.5))
    assert cache.load("a") == entry(model, converter_s=2.5)


def test_what_was_said_of_a_result_comes_back_with_it(tmp_path: Path) -> None:
    said = CacheEntry(model=b"x", converter_s=1.0, warnings=("It limps.", "It has\nfive legs."))
    ConversionCache(tmp_path).save("a", said)
    assert ConversionCache(tmp_path).load("a") == said


def test_a_damaged_entry_is_replaced(tmp_path: Path) -> None:
    cache = ConversionCache(tmp_path)
    for damage in (b"", b"{}\nmodel", b"[]", b'{"sha256": "00", "converter_s": 1}\nmodel', b"\xff\xff"):
        (tmp_path / "a.conversion").write_bytes(damage)
        assert cache.load("a") is None
        cache.save("a", entry())
        assert cache.load("a") == entry()


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        ConversionCache(tmp_path / "file" / "folder").save("a", entry())


def test_many_at_once_get_what_was_kept_or_nothing(tmp_path: Path) -> None:
    """Two of the entries fit: each that is kept drops another, which somebody may be loading or keeping just then."""
    models = {key: key.encode() * 5000 for key in "abcdef"}
    wrong: list[str] = []

    def use(place: int) -> None:
        cache = ConversionCache(tmp_path, most_bytes=11_000)
        for turn in range(150):
            key = "abcdef"[(turn * (place + 1)) % 6]
            try:
                found = cache.load(key)
                if found is None:
                    cache.save(key, entry(models[key]))
                elif found.model != models[key]:
                    wrong.append(key)
            except Exception as exc:  # noqa: BLE001 - whatever it is, it is wrong
                wrong.append(repr(exc))

    threads = [threading.Thread(target=use, args=(place,)) for place in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("unfinished-")]
