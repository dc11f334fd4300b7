from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.errors import UnsupportedError
from dippm.predictors.additive_artefact import REGIMES, AdditiveArtefact, manifest_path, read_tensors
from dippm.training.additive import additive_tensors
from dippm.training.additive_shipped import load_fitted


def test_shipped_networks_are_read_as_they_were_written() -> None:
    artefact, tensors = AdditiveArtefact.read(manifest_path(REGIMES[0])), read_tensors(manifest_path(REGIMES[0]))
    again = additive_tensors(load_fitted(artefact, tensors))
    assert {name: tensors[name].tolist() for name in again} == {name: again[name].tolist() for name in again}
    with pytest.raises(UnsupportedError) as caught:
        load_fitted(replace(artefact, columns=("colour", *artefact.columns[1:])), tensors)
    assert caught.value.code == "artefact.columns"
