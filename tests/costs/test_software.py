"""How software is written, and what follows from its release."""

from __future__ import annotations

import pytest

from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.errors import UsageError


@pytest.mark.parametrize(
    ("given", "torch", "cuda"),
    [
        ("torch 1.12+cu113", (1, 12), (11, 3)),
        ("1.12.1+cu113", (1, 12), (11, 3)),
        ("1.4.0+cu92", (1, 4), (9, 2)),
        ("pytorch 2.4", (2, 4), None),
        ("PyTorch 2.4, CUDA 12.4", (2, 4), (12, 4)),
        ("torch==1.13.1 cuda 11.7.1", (1, 13), (11, 7)),
        ("torch 2.4.0", (2, 4), None),
        ("2.6.0.dev20241112+cu124", (2, 6), (12, 4)),
        ("2.1.0a0+cu121", (2, 1), (12, 1)),
        ("torch 2.10+cu130", (2, 10), (13, 0)),
        (" Torch-2.0/cu12 ", (2, 0), (12, 0)),
        ("1.13.0.post200", (1, 13), None),
        ("2.6.0a0+df5bbc09d1.nv24.11", (2, 6), None),
        ("2.1.0+gitabcdef1", (2, 1), None),
        ("2.13.0a0+git123", (2, 13), None),
        ("2.6.0+cu126.post2", (2, 6), (12, 6)),
        ("2.0.1+cu117.with.pypi.cudnn", (2, 0), (11, 7)),
    ],
)
def test_the_ways_to_write_it(given, torch, cuda):
    assert Software.parse(given) == Software(torch=torch, cuda=cuda)


@pytest.mark.parametrize(
    "given",
    ["", "torch", "torch 2", "torch latest", "torch 0.4", "tensorflow 2.4", "cuda 11.3", "2.13.0+cpu, cuda 12",
     "torch 2.4 2.5", "torch 2.4+cuX"],
)  # fmt: skip
def test_anything_else_is_refused_with_the_form(given):
    with pytest.raises(UsageError, match=r"torch 1\.12\+cu113") as caught:
        Software.parse(given)
    assert caught.value.code == "software.unknown"
    assert f"'{given}'" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("cuda 12", ", which names no PyTorch."),
        ("cu126", ", which names no PyTorch."),
        ("torch 3", ", which lacks the second number of PyTorch's release."),
        ("torch 2+cu126", ", which lacks the second number of PyTorch's release."),
        ("2", ", which lacks the second number of PyTorch's release."),
        ("tensorflow 2.4", "Got 'tensorflow 2.4' instead. Write"),
    ],
)
def test_a_part_that_is_not_there_is_named(given, says):
    with pytest.raises(UsageError) as caught:
        Software.parse(given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "kind"),
    [("2.13.0+cpu", "for CPUs"), ("torch 2.4+rocm5.6", "for ROCm"), ("2.8.0+XPU", "for XPU")],
)
def test_a_build_without_cuda_is_refused_as_that(given, kind):
    with pytest.raises(UsageError, match=kind) as caught:
        Software.parse(given)
    assert caught.value.code == "software.unknown"
    assert caught.value.cure == f"Leave the build out: '{given.partition('+')[0]}'."


def test_a_commit_that_begins_like_a_build_is_none():
    assert Software.parse("2.6.0a0+c0ffee1").torch == (2, 6)


@pytest.mark.parametrize(
    "given",
    [
        "1.1" + "a" * 20_000 + "!",
        "1.1" + ".1" * 20_000 + "!",
        "torch" + " " * 20_000,
        "2.6+cu126" + ".a" * 20_000 + "!",
    ],
)
def test_a_long_text_is_refused_at_once(given):
    with pytest.raises(UsageError):
        Software.parse(given)


@pytest.mark.parametrize("software", [DEFAULT_SOFTWARE, Software(torch=(1, 12), cuda=(11, 3)), Software(torch=(2, 4))])
def test_what_is_printed_is_read_again(software):
    assert Software.parse(str(software)) == software


@pytest.mark.parametrize(
    ("given", "lazily"),
    [
        ("torch 1.12+cu113", False),
        ("torch 1.12+cu116", False),
        ("torch 1.13", True),
        ("torch 1.13+cu116", False),
        ("torch 1.13+cu117", True),
        ("torch 2.4+cu124", True),
    ],
)
def test_kernels_are_loaded_lazily_where_both_releases_can(given, lazily):
    assert Software.parse(given).loads_lazily is lazily


@pytest.mark.parametrize(("given", "is_new"), [("torch 1.13", False), ("torch 2.0", True), ("torch 2.13", True)])
def test_attention_and_gradients_changed_with_two(given, is_new):
    software = Software.parse(given)
    assert (software.fuses_attention, software.keeps_gradients) == (is_new, not is_new)
    assert software.searches_convolutions is not is_new


@pytest.mark.parametrize(
    ("given", "slowly"),
    [
        ("torch 1.12+cu116", True),
        ("torch 1.13+cu118", False),
        # NVIDIA's alone.
        ("torch 1.14", False),
        ("torch 2.0", True),
        ("torch 2.0+cu118", False),
        ("torch 2.1", False),
        ("torch 2.1+cu118", False),
        # CUDA without its second number.
        ("torch 2.2, CUDA 11", False),
    ],
)
def test_libraries_feed_tensor_cores_slowly_before_cuda_11_8(given, slowly):
    assert Software.parse(given).feeds_slowly is slowly


@pytest.mark.parametrize(
    ("given", "turns", "reach", "remakes", "scatters"),
    [
        ("torch 2.0", False, 3, False, True),
        ("torch 2.1", True, 3, False, True),
        ("torch 2.4", True, None, True, True),
        ("torch 2.5", True, None, True, False),
    ],
)
def test_what_a_compiler_does_changed_with_releases(given, turns, reach, remakes, scatters):
    software = Software.parse(given)
    assert (software.turns_images, software.recomputation_reach) == (turns, reach)
    assert (software.remakes_softmax, software.scatters_losses) == (remakes, scatters)


@pytest.mark.parametrize(("given", "in_vectors"), [("torch 2.4", False), ("torch 2.9", False), ("torch 2.11", True)])
def test_concatenations_write_several_elements_at_once_since(given, in_vectors):
    assert Software.parse(given).joins_in_vectors is in_vectors


@pytest.mark.parametrize(("given", "has"), [("torch 1.12", False), ("torch 1.13", True)])
def test_the_workspace_of_cublas_comes_from_the_allocator_since(given, has):
    assert Software.parse(given).has_blas_workspace is has


@pytest.mark.parametrize(("given", "keeps"), [("torch 1.12", True), ("torch 2.10", True), ("torch 2.11", False)])
def test_autocast_keeps_no_copies_of_weights_under_inference_mode_since(given, keeps):
    assert Software.parse(given).keeps_casts is keeps


@pytest.mark.parametrize(("given", "is_unknown"), [("torch 2.13", False), ("torch 2.14", True), ("torch 9.9", True)])
def test_a_release_that_is_still_to_come_is_told(given, is_unknown):
    assert Software.parse(given).is_unknown is is_unknown
