from dippm.graph import (
    ACTIVATION_KINDS,
    ARITHMETIC_KINDS,
    CONTRACTION_KINDS,
    NORM_KINDS,
    RECURRENT_KINDS,
    TRAINING_KINDS,
    OpKind,
)


def test_groups_of_kinds_do_not_overlap() -> None:
    groups = [ACTIVATION_KINDS, ARITHMETIC_KINDS, CONTRACTION_KINDS, NORM_KINDS, RECURRENT_KINDS, TRAINING_KINDS]
    assert sum(len(group) for group in groups) == len(frozenset().union(*groups)) < len(OpKind)
