from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dippm.datasets.graph_samples import Part
from dippm.errors import DippmError, UsageError
from dippm.evaluation.protocol_run import Run, draw_tested_parts


def test_figures_that_were_not_learned_are_not_predicted(
    make_label: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    samples = make_samples([make_label(number) for number in range(2)])
    parts = np.array([Part.TRAINING, Part.TEST], dtype=np.int8)
    run = Run.of(samples, parts, np.full((2, 3), 2.0), model="mlp", seed=0)
    np.testing.assert_array_equal(np.isfinite(run.predicted[1]), np.isfinite(samples.targets[0]))


def test_predictions_that_are_no_numbers(make_label: Callable[..., Any], make_samples: Callable[..., Any]) -> None:
    samples = make_samples([make_label(0)])
    with pytest.raises(DippmError, match="mlp of seed 3") as caught:
        Run.of(samples, np.array([Part.TRAINING], dtype=np.int8), np.full((1, 3), np.nan), model="mlp", seed=3)
    assert caught.value.code == "evaluation.not_finite"


def test_without_test_rows_there_is_no_protocol(
    make_label: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    with pytest.raises(UsageError) as caught:
        draw_tested_parts(make_samples([make_label(0)]), seed=0)
    assert caught.value.code == "evaluation.too_few"
