"""torchvision beside a torch that it was not built for, and its own operators."""

from __future__ import annotations

from importlib.util import find_spec
from math import prod

import pytest

torch = pytest.importorskip("torch")
if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

import warnings  # noqa: E402

from torch import nn  # noqa: E402

from dippm.costs.conditions import Mode  # noqa: E402
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


class Deforms(nn.Module):
    def __init__(self, groups: int, offset_groups: int) -> None:
        super().__init__()
        from torchvision.ops import DeformConv2d

        self.offset = nn.Conv2d(8, 18 * offset_groups, 3, padding=1)
        self.conv = DeformConv2d(8, 16, 3, padding=1, groups=groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x, self.offset(x))


@pytest.mark.parametrize(("groups", "offset_groups"), [(1, 1), (2, 1), (1, 4)])
def test_deformable_convolution_samples_into_columns(groups: int, offset_groups: int) -> None:
    graph = read_module(Deforms(groups, offset_groups), input=parse_input_shapes("8,10,12"))
    columns = next(node for node in graph.nodes if node.kind is OpKind.GRID_SAMPLE)
    product = next(node for node in graph.nodes if node.kind is OpKind.MATMUL)
    assert not any(node.attributes.get("function") == "new_empty" for node in graph.nodes)
    assert prod(dim.at(3) for dim in graph.tensors[columns.outputs[0]].shape) == 3 * 8 * 9 * 120
    assert prod(dim.at(3) for dim in graph.tensors[product.outputs[0]].shape) == 3 * 16 * 120
    assert graph.tensors[product.inputs[0]].shape[-1] == Dim(0, 8 // groups * 9)
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), Dim(0, 16), Dim(0, 10), Dim(0, 12))


def test_deformable_convolution_keeps_no_columns_for_its_gradient() -> None:
    graph = read_module(Deforms(1, 1), input=parse_input_shapes("8,10,10"), mode=Mode.TRAINING)
    convs = [node for node in graph.nodes if node.kind is OpKind.CONV]
    assert [node.source_op for node in convs] == ["aten.convolution", "torchvision.deform_conv2d"]
    assert convs[1].attributes["kernel"] == (3, 3)


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
