from __future__ import annotations

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_a_detector_answers_at_four_levels(block: str) -> None:
    if find_spec("timm") is None or find_spec("torchvision") is None:
        pytest.skip("needs timm and torchvision")
    from dippm.datasets.recipes.architectures.detector import PyramidDetector
    from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

    import_torchvision_ops()

    def make(head_layers: int) -> PyramidDetector:
        return PyramidDetector(
            block=block,
            layers=(1, 1, 1, 1),
            channels=(16, 32, 64, 128),
            pyramid=24,
            head_layers=head_layers,
            anchors=9,
            classes=20,
        )

    image = torch.empty(2, 3, 128, 192)
    sides = [(16, 24), (8, 12), (4, 6), (2, 3)]
    assert [tuple(level.shape) for level in make(0)(image)] == [(2, 24, *side) for side in sides]
    maps = [tuple(level.shape) for level in make(2)(image)]
    assert maps == [(2, 180, *side) for side in sides] + [(2, 36, *side) for side in sides]
