"""What torchvision's detectors are taken to keep of their boxes."""

from __future__ import annotations

from collections import OrderedDict
from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

import warnings  # noqa: E402

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch.detections import boxes_as_counted, find_detectors  # noqa: E402
from dippm.frontends.torch.reader import read_module  # noqa: E402
from dippm.frontends.torch.torchvision_ops import import_torchvision_ops  # noqa: E402
from dippm.graph import Graph, Node  # noqa: E402

_CLASSES = 4


@pytest.fixture(autouse=True)
def torchvision_imported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_torchvision_ops()


class Pyramid(nn.Module):
    """Two levels of features, of an eighth and a sixteenth of the image's sides."""

    out_channels = 8

    def __init__(self) -> None:
        super().__init__()
        self.eighth = nn.Conv2d(3, 8, 8, stride=8)
        self.sixteenth = nn.Conv2d(8, 8, 2, stride=2)

    def forward(self, x: Any) -> Any:
        fine = self.eighth(x)
        return OrderedDict([("0", fine), ("1", self.sixteenth(fine))])


def anchors() -> Any:
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    return AnchorGenerator(sizes=((16,), (32,)), aspect_ratios=((0.5, 1.0, 2.0),) * 2)


def of_two_stages(kind: str = "FasterRCNN", **options: Any) -> Any:
    from torchvision.models import detection
    from torchvision.ops import MultiScaleRoIAlign

    def pool(size: int) -> Any:
        return MultiScaleRoIAlign(featmap_names=["0", "1"], output_size=size, sampling_ratio=2)

    if kind == "MaskRCNN":
        options["mask_roi_pool"] = pool(14)
    if kind == "KeypointRCNN":
        options["keypoint_roi_pool"] = pool(14)
    return getattr(detection, kind)(
        Pyramid(),
        num_classes=_CLASSES,
        min_size=128,
        max_size=128,
        rpn_anchor_generator=anchors(),
        box_roi_pool=pool(7),
        rpn_pre_nms_top_n_test=40,
        rpn_post_nms_top_n_test=30,
        **{"box_detections_per_img": 5, **options},
    ).eval()


def of_one_stage(kind: Any = None) -> Any:
    from torchvision.models.detection import RetinaNet

    return (kind or RetinaNet)(
        Pyramid(),
        num_classes=_CLASSES,
        min_size=128,
        max_size=128,
        anchor_generator=anchors(),
        topk_candidates=7,
        detections_per_img=5,
    ).eval()


def read(module: Any, batch: int = 1, image: str = "3,128,128") -> Graph:
    return read_module(module, input=parse_input_shapes([image]), batches=(batch,))


def run(graph: Graph, source: str) -> list[Node]:
    return [node for node in graph.nodes if node.source_op == source]


def rows(graph: Graph, nodes: list[Node]) -> list[int]:
    """Elements in the first dimension of the first output of each node."""
    return [graph.tensors[node.outputs[0]].shape[0].at(graph.fixed_batch or 1) for node in nodes]


def test_as_many_boxes_go_on_as_the_first_stage_proposes_at_most() -> None:
    graph = read(of_two_stages(), batch=2)
    # 40 of the first level and 40 of the second, of which 30 are kept, and as many of their 90 classes, of each image.
    assert rows(graph, run(graph, "torchvision.nms")) == [80, 80, 30, 30]
    head = [node for node in graph.nodes if "box_head" in node.scope and node.source_op.startswith("aten.addmm")]
    head = head or [node for node in graph.nodes if "box_head" in node.scope and "linear" in node.source_op]
    assert rows(graph, head) == [60, 60]
    told = [text for text in graph.warnings if "goes on with at most" in text]
    assert len(told) == 1
    assert "30 of an image" in told[0]
    assert not [text for text in graph.warnings if "Masks" in text]


def test_boxes_are_spread_over_the_levels() -> None:
    graph = read(of_two_stages())
    assert rows(graph, run(graph, "torchvision.roi_align")) == [15, 15]
    assert "Boxes are taken to be spread evenly over the levels of the detector's pyramid." in graph.warnings
    assert not [text for text in graph.warnings if "mixture" in text]


def test_one_stage_compares_its_candidates_of_each_level() -> None:
    graph = read(of_one_stage())
    # Of 768 anchors and 192, each with so many classes, 7 of each level; in the end one step for all of them.
    assert rows(graph, run(graph, "torchvision.nms")) == [14]
    assert [text for text in graph.warnings if "7 of an image" in text]


def test_a_mask_is_as_large_as_its_image() -> None:
    graph = read(of_two_stages("MaskRCNN"))
    resized = [
        graph.tensors[node.outputs[0]].shape for node in graph.nodes if node.source_op.startswith("aten.upsample")
    ]
    masks = [shape for shape in resized if shape[1].at(1) == 1]
    assert [[size.at(1) for size in shape] for shape in masks] == 5 * [[1, 1, 128, 128]]
    assert "Masks are taken to be as large as their image." in graph.warnings


def test_boxes_of_keypoints_fill_their_image() -> None:
    graph = read(of_two_stages("KeypointRCNN", num_keypoints=3), batch=2, image="3,64,128")
    resized = [graph.tensors[node.outputs[0]].shape for node in run(graph, "aten.upsample_bicubic2d")]
    # Five boxes of each image, each side shorter by the root of that: 28.6 and 57.2.
    assert [[size.at(1) for size in shape] for shape in resized] == 2 * 5 * [[3, 1, 29, 58]]
    assert [text for text in graph.warnings if text.startswith("Boxes of which keypoints are sought")]


def test_no_box_has_no_keypoints() -> None:
    graph = read(of_two_stages("KeypointRCNN", box_detections_per_img=0))
    assert run(graph, "torchvision.nms")
    assert not run(graph, "aten.upsample_bicubic2d")


def test_keypoints_of_images_that_are_not_known_are_refused() -> None:
    from torchvision.models.detection.roi_heads import RoIHeads, heatmaps_to_keypoints

    class Again(RoIHeads):
        def forward(self, *given: Any) -> Any:
            found, losses = super().forward(*given)
            maps = found[0]["keypoints"].new_zeros(5, 3, 14, 14)
            return [{"again": heads.heatmaps_to_keypoints(maps, found[0]["boxes"])[0]}], losses

    from torchvision.models.detection import roi_heads as heads

    assert heads.heatmaps_to_keypoints is heatmaps_to_keypoints
    module = of_two_stages("KeypointRCNN", num_keypoints=3)
    module.roi_heads.__class__ = Again
    with pytest.raises(UnsupportedError, match="decides by the values of its input"):
        read(module)


def test_a_detector_inside_of_another_module_is_found() -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.detector = of_one_stage()

        def forward(self, x: Any) -> Any:
            return self.detector(x)

    found = find_detectors(Holds())
    assert found is not None
    assert found.most == 7
    assert "detector" in found.paths
    assert not found.proposing
    assert run(read(Holds()), "torchvision.nms")
    assert find_detectors(Pyramid()) is None


def test_what_counts_are_is_looked_at() -> None:
    from torchvision.models.detection import RetinaNet

    class Own(RetinaNet):
        pass

    module = of_two_stages(box_detections_per_img=70)
    assert (found := find_detectors(module)) is not None
    assert found.most == 70
    assert "rpn" in found.proposing
    module.rpn._post_nms_top_n = len
    module.roi_heads.detections_per_img = np.int64(9)
    assert (found := find_detectors(module)) is not None
    assert found.most == 9
    own = of_one_stage(Own)
    assert (found := find_detectors(own)) is not None
    assert "" in found.paths
    assert run(read(own), "torchvision.nms")


def test_other_modules_that_choose_by_a_threshold_are_refused() -> None:
    class Chooses(nn.Module):
        def forward(self, x: Any) -> Any:
            scores = x.sigmoid().flatten()
            return scores[scores > 0.5]

    with pytest.raises(UnsupportedError, match="sizes depend on the values of its input"):
        read(Chooses())


def test_what_is_chosen_beside_a_detector_is_refused() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.detector = of_one_stage()

        def forward(self, x: Any) -> Any:
            found = self.detector(x)
            scores = x.sigmoid().flatten()
            return found, scores[(scores > 0.5) & True]

    with pytest.raises(UnsupportedError, match="sizes depend on the values of its input"):
        read(Beside())


def test_torchvision_is_left_as_it_was() -> None:
    from torchvision.models.detection import roi_heads
    from torchvision.ops import boxes

    def patched() -> list[Any]:
        heads = roi_heads.paste_mask_in_image, roi_heads.heatmaps_to_keypoints, roi_heads.RoIHeads.forward
        return [boxes._batched_nms_vanilla, *heads]

    before = patched()
    with boxes_as_counted(find_detectors(of_one_stage()), []):
        assert boxes._batched_nms_vanilla is boxes._batched_nms_coordinate_trick
        assert not any(own is other for own, other in zip(patched(), before, strict=True))
    assert patched() == before
    with pytest.raises(ZeroDivisionError), boxes_as_counted(find_detectors(of_one_stage()), []):
        assert 1 / len([])
    assert patched() == before
    with boxes_as_counted(None, []):
        assert patched() == before


def test_a_torchvision_that_names_things_otherwise_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.models.detection import roi_heads
    from torchvision.ops import boxes

    monkeypatch.delattr(boxes, "_batched_nms_vanilla")
    monkeypatch.delattr(roi_heads, "paste_mask_in_image")
    monkeypatch.delattr(roi_heads, "heatmaps_to_keypoints")
    assert run(read(of_one_stage()), "torchvision.nms")
