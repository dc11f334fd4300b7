"""torchvision beside a torch that it was not built for, and its own operators."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

import warnings  # noqa: E402

from torch import nn  # noqa: E402

from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.frontends.torch.torchvision_ops import import_torchvision_ops  # noqa: E402
from dippm.graph import Dim, OpKind  # noqa: E402


@pytest.fixture(autouse=True)
def torchvision_imported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_torchvision_ops()


def test_importing_twice_is_harmless() -> None:
    import_torchvision_ops()
    import torchvision

    assert torchvision.ops.nms


def test_roi_align() -> None:
    class Crops(nn.Module):
        def forward(self, x: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
            from torchvision.ops import roi_align

            return roi_align(x, boxes, output_size=(7, 7), spatial_scale=0.25)

    graph = read_module(Crops(), input=parse_input_shapes(["16,32,32", "5"]))
    (gather,) = (node for node in graph.nodes if node.kind is OpKind.GATHER)
    assert graph.tensors[gather.outputs[0]].shape == (Dim(1, 0), Dim(0, 16), Dim(0, 7), Dim(0, 7))


def test_deformable_convolution() -> None:
    class Deforms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            from torchvision.ops import DeformConv2d

            self.offset = nn.Conv2d(8, 18, 3, padding=1)
            self.conv = DeformConv2d(8, 16, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x, self.offset(x))

    graph = read_module(Deforms(), input=parse_input_shapes("8,10,10"))
    convs = [node for node in graph.nodes if node.kind is OpKind.CONV]
    assert [node.source_op for node in convs] == ["aten.convolution", "torchvision.deform_conv2d"]
    assert convs[1].attributes["kernel"] == (3, 3)
    assert graph.tensors[convs[1].outputs[0]].shape == (Dim(1, 0), Dim(0, 16), Dim(0, 10), Dim(0, 10))


def test_stochastic_depth_leaves_no_node() -> None:
    from torchvision.ops import StochasticDepth

    graph = read_module(nn.Sequential(nn.ReLU(), StochasticDepth(0.5, "row")), input=parse_input_shapes("8"))
    assert [node.kind for node in graph.nodes] == [OpKind.RELU]


def test_suppression_of_boxes_depends_on_their_values() -> None:
    class Boxes(nn.Module):
        def forward(self, boxes: torch.Tensor) -> torch.Tensor:
            from torchvision.ops import nms

            return nms(boxes, boxes[:, 0], 0.5)

    with pytest.raises(UnsupportedError) as caught:
        read_module(Boxes(), input=parse_input_shapes("4"))
    assert caught.value.code == "torch.data_dependent"
