"""Arrays in one file."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.datasets.array_file import read_arrays, write_arrays
from dippm.errors import UsageError


def test_what_was_written_is_read_back(tmp_path) -> None:
    arrays = {"numbers": np.arange(6, dtype=np.int16).reshape(2, 3), "text": np.array("ä"), "none": np.zeros((0, 4))}
    path = tmp_path / "new" / "arrays.npz"
    write_arrays(path, arrays)
    found = read_arrays(path)
    assert found is not None
    assert list(found) == list(arrays)
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == values.dtype
    assert [file.name for file in path.parent.iterdir()] == ["arrays.npz"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
def test_a_file_that_is_missing_or_cut_off_counts_as_none(share: float, tmp_path) -> None:
    path = tmp_path / "arrays.npz"
    assert read_arrays(path) is None
    write_arrays(path, {"numbers": np.arange(1000)})
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert read_arrays(path) is None


def test_a_place_that_cannot_be_written_to_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/arrays\.npz") as caught:
        write_arrays(tmp_path / "file" / "arrays.npz", {"numbers": np.arange(3)})
    assert caught.value.code == "samples.unwritable"
