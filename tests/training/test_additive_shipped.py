from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.errors import UnsupportedError
from dippm.predictors.additive_artefact import (
    OWN_REGIMES,
    REGIMES,
    AdditiveArtefact,
    Regime,
    manifest_path,
    read_tensors,
)
from dippm.training.additive import additive_tensors
from dippm.training.additive_shipped import load_fitted


@pytest.mark.parametrize("regime", [*REGIMES, *OWN_REGIMES], ids=str)
def test_shipped_networks_are_read_as_they_were_written(regime: Regime) -> None:
    artefact, tensors = AdditiveArtefact.read(manifest_path(regime)), read_tensors(manifest_path(regime))
    again = additive_tensors(load_fitted(artefact, tensors))
    assert {name for name in tensors if not name.startswith("novelty.")} == set(again)
    assert {name: tensors[name].tolist() for name in again} == {name: again[name].tolist() for name in again}
    with pytest.raises(UnsupportedError) as caught:
        load_fitted(replace(artefact, columns=("colour", *artefact.columns[1:])), tensors)
    assert caught.value.code == "artefact.columns"
