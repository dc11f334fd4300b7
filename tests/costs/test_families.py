from __future__ import annotations

from dippm.costs.families import FAMILY_OF_KIND, WorkFamily
from dippm.graph import ACTIVATION_KINDS, CONTRACTION_KINDS, RECURRENT_KINDS, OpKind


def test_every_kind_has_a_family():
    assert set(FAMILY_OF_KIND) == set(OpKind)
    assert set(FAMILY_OF_KIND.values()) == set(WorkFamily)


def test_contractions_have_families_with_multiply_accumulates():
    with_macs = {WorkFamily.GEMM, WorkFamily.CONVOLUTION, WorkFamily.ATTENTION, WorkFamily.RECURRENT}
    assert {kind for kind, family in FAMILY_OF_KIND.items() if family in with_macs} == (
        CONTRACTION_KINDS | RECURRENT_KINDS | {OpKind.CONV_WEIGHT_GRAD, OpKind.ATTENTION_GRAD, OpKind.RECURRENT_GRAD}
    )


def test_activations_are_elementwise():
    assert {FAMILY_OF_KIND[kind] for kind in ACTIVATION_KINDS} == {WorkFamily.ELEMENTWISE}
