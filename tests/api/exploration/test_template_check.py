"""Names in a space of YAML, before any trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.api.exploration.space import load_space
from dippm.errors import UsageError

IMAGE, TEXT = "[3, 64, 64]", "[16]"


def write(folder: Path, architecture: str, arguments: str, inputs: str) -> Path:
    path = folder / "space.yaml"
    path.write_text(
        "choices:\n  size: [128, 256]\n  has_more: [false, true]\n  more: {of: [1, 2], if: {has_more: true}}\n"
        "  kind: [zoo:timm:resnet18, zoo:timm:resnet19]\n"
        f"model:\n  architecture: {architecture}\n  arguments: {arguments}\ninput: {inputs}\n"
    )
    return path


@pytest.mark.parametrize(
    ("architecture", "arguments", "inputs", "words"),
    [
        ("timm:nothing", "{}", IMAGE, r"'timm:nothing' is not known\. A library's own .* zoo:timm:nothing"),
        ("dnnperf:vggg", "{}", IMAGE, r"'dnnperf:vggg' is not known\. The nearest: dnnperf:vgg"),
        ("resnet18", "{}", IMAGE, r"'resnet18' is not known\. The nearest: .*timm:resnet"),
        ("zoo:timm:resnet19", "{}", IMAGE, r"is not known\. The nearest are .*zoo:timm:resnet18"),
        ("zoo:resnet18", "{}", IMAGE, "Write it as one of zoo:timm:NAME"),
        ("$kind", "{}", IMAGE, "'zoo:timm:resnet19' is not known"),
        ("hf:bert", "{hidden_size: $size}", TEXT, r"hidden_size is no argument of hf:bert\. Write zoo:hf:bert"),
        ("hf:bert", "{}", TEXT, r"lack hidden, layers, .*: hf:bert needs them\. Write zoo:hf:bert"),
        ("zoo:hf:bert", "{hiden_size: $size}", TEXT, r"no setting 'hiden_size'\. The nearest: hidden_size"),
        ("dnnperf:vgg", "{convolution: $size}", IMAGE, r"arguments\.convolution is .* The nearest: convolutions"),
        ("zoo:torchvision:vit_b_32", "{hidden: 192}", IMAGE, r"arguments\.hidden is .* The nearest: hidden_dim"),
        ("zoo:timm:vit_tiny_patch16_224", "{deph: $more}", IMAGE, r"arguments\.deph is .* The nearest: depth"),
    ],
)
def test_a_name_that_is_not_known(tmp_path: Path, architecture: str, arguments: str, inputs: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        load_space(write(tmp_path, architecture, arguments, inputs))
    assert (caught.value.code, caught.value.exit_status) == ("space.invalid", 2)


@pytest.mark.parametrize(
    ("architecture", "arguments", "inputs"),
    [
        # 128 over 3 heads is no name that is wrong.
        ("zoo:hf:bert", "{hidden_size: $size, num_hidden_layers: 1, num_attention_heads: 3}", TEXT),
        ("zoo:timm:vit_tiny_patch16_224", "{depth: $more}", IMAGE),
        ("zoo:timm:resnet18", "{}", "[3, $kind, 5]"),
    ],
)
def test_what_is_wrong_for_other_reasons_is_let_pass(
    tmp_path: Path, architecture: str, arguments: str, inputs: str
) -> None:
    load_space(write(tmp_path, architecture, arguments, inputs))
