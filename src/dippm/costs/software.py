"""The software that a model runs with, and what follows from its release."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dippm.errors import UsageError, quote

__all__ = ["DEFAULT_SOFTWARE", "Release", "Software"]

Release = tuple[int, int]

# What torch.__version__ prints, labels say and people write: "1.12.1+cu113", "torch 1.12", "PyTorch 2.4, CUDA 12.4";
# NVIDIA's containers print the commit and their own release, "2.6.0a0+df5bbc09d1.nv24.11", conda ".post200", who builds
# it "2.13.0a0+git1a2b3c4", and some wheels say more behind CUDA, "2.0.1+cu117.with.pypi.cudnn".
_PATTERN = re.compile(
    r"(?:(?:py)?torch[\s=_-]*v?)?(?P<torch>[1-9]\d?\.\d+)(?:\.\d+)*(?:\.?(?:a|b|rc|dev|post)\d*)?"
    r"(?:\+(?:git[0-9a-f]{1,40}|[0-9a-f]{7,40})(?:\.nv\d\d\.\d\d)?)?"
    r"(?:[\s+,;/]+cu(?:da)?[\s=_-]*(?P<cuda>\d+(?:\.\d+)*)(?:\.[a-z][a-z0-9]*)*)?",
    re.IGNORECASE,
)
# "2.13.0+cpu", "2.9.1+rocm6.4", "2.8.0+xpu"; a commit behind the + may begin with letters too, but has seven.
_NO_CUDA = re.compile(r"\+(cpu|rocm|xpu)[\d.]*$", re.IGNORECASE)
_CUDA_ALONE = re.compile(r"cu(da)?[\s=_-]*\d[\d.]*", re.IGNORECASE)
_MAJOR_ALONE = re.compile(r"((py)?torch[\s=_-]*v?)?\d+(?=$|[\s+,;/])", re.IGNORECASE)
_NO_CUDA_NAMES = {"cpu": "CPUs", "rocm": "ROCm", "xpu": "XPUs"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """A release of PyTorch and the CUDA that it was built with.

    Args:
        torch: Release of PyTorch, 1.0 or later.
        cuda: Release of CUDA; None for the one that the release of PyTorch is shipped with.
    """

    torch: Release
    cuda: Release | None = None

    @classmethod
    def parse(cls, given: str) -> Software:
        """Read what users write.

        Args:
            given: ``"torch 1.12+cu113"``, ``"pytorch 2.4"``, ``"2.4.1+cu124"`` as ``torch.__version__`` says it, or
                ``"PyTorch 2.4, CUDA 12.4"``.

        Raises:
            UsageError: ``software.unknown`` where it is none of these.
        """
        text = given.strip() if isinstance(given, str) else quote(given)
        other = _NO_CUDA.search(text)
        if other is not None:
            raise UsageError(
                f"Predictions are of PyTorch with CUDA. Got a build for {_NO_CUDA_NAMES[other[1].lower()]}, '{given}', "
                "instead.",
                code="software.unknown",
                cure=f"Leave the build out: '{text[: other.start()]}'.",
            )
        found = _PATTERN.fullmatch(text)
        if found is None:
            raise UsageError(
                f"The software must be a release of PyTorch, with that of CUDA if it is known. Got '{text}' "
                f"instead{_what_lacks(text)}.",
                code="software.unknown",
                cure="Write it as 'torch 1.12+cu113' or 'pytorch 2.4'.",
            )
        cuda = None if found["cuda"] is None else _cuda_release(found["cuda"])
        return cls(torch=_release(found["torch"]), cuda=cuda)

    @property
    def loads_lazily(self) -> bool:
        """Whether a kernel takes device memory only once it is used.

        CUDA can since 11.7 (CUDA programming guide, "Lazy Loading"), and PyTorch asks for it since 1.13
        (github.com/pytorch/pytorch, pull request 86509), which is shipped with 11.7. Before, all kernels of PyTorch and
        of its libraries are loaded when the process begins.
        """
        return self.torch >= (1, 13) and (self.cuda is None or self.cuda >= (11, 7))

    @property
    def has_blas_workspace(self) -> bool:
        """Whether PyTorch gives cuBLAS its workspace from the caching allocator.

        Since 1.13 (github.com/pytorch/pytorch, pull request 83461); before, cuBLAS took memory of its own.
        """
        return self.torch >= (1, 13)

    @property
    def has_lt_workspace(self) -> bool:
        """Whether cuBLASLt, which runs linear layers with a bias, has a workspace of its own, of 1 MiB.

        Since 1.12 (github.com/pytorch/pytorch, pull request 73439); it shares that of cuBLAS since 2.12 (pull request
        175879). 2.11 was measured (`data/labels/h200`): models without such layers hold 1 MiB less.
        """
        return (1, 12) <= self.torch < (2, 12)

    @property
    def fuses_attention(self) -> bool:
        """Whether attention is one kernel, which writes no scores to memory.

        ``scaled_dot_product_attention`` came with PyTorch 2.0; models wrote their scores to memory before.
        """
        return self.torch >= (2, 0)

    @property
    def raises_attention(self) -> bool:
        """Whether attention that no fused kernel takes computes in FP32 where its operands have 16 bits.

        Since 2.5 (github.com/pytorch/pytorch, pull request 128922), which also looks for queries that may look at no
        key; before, such attention ran in 16 bits.
        """
        return self.torch >= (2, 5)

    @property
    def searches_convolutions(self) -> bool:
        """Whether each call of a convolution asks cuDNN for a kernel anew.

        Until cuDNN's eighth interface became the default with 2.0 (github.com/pytorch/pytorch, pull request 91117), of
        which PyTorch keeps the plans.
        """
        return self.torch < (2, 0)

    @property
    def feeds_slowly(self) -> bool:
        """Whether cuBLAS and cuDNN are of before CUDA 11.8, whose products in 16 bits keep tensor cores waiting longer.

        PyTorch is shipped with a later one since 2.1. That it makes a difference, and from which release, is what
        published times say (data/published/README.md).
        """
        if self.torch >= (2, 1):
            return False
        # 1.14 was NVIDIA's alone, with 11.8 as a rule.
        return self.torch != (1, 14) if self.cuda is None else self.cuda < (11, 8)

    @property
    def has_cudnn_9(self) -> bool:
        """Whether convolutions are cuDNN 9's, which PyTorch is shipped with since 2.4.

        That rates which were measured with PyTorch 2.11 hold from here on is assumed; steps of ResNet-50 on an H100
        with cuDNN 8.6 (data/published, lambda-ngc2209) contradict them.
        """
        return self.torch >= (2, 4)

    @property
    def joins_in_vectors(self) -> bool:
        """Whether concatenations write several elements at once where their rows are aligned to that.

        Since 2.10 (github.com/pytorch/pytorch, pull request 162440, merged while 2.9 was being cut); 2.11 was measured.
        """
        return self.torch >= (2, 10)

    @property
    def turns_images(self) -> bool:
        """Whether ``torch.compile`` may run convolutions with channels last that are called with channels first.

        Since 2.1 (github.com/pytorch/pytorch, pull request 99773).
        """
        return self.torch >= (2, 1)

    @property
    def recomputation_reach(self) -> int | None:
        """How many operators before the backward pass a compiled step makes a value again at most, None for any number.

        The limit of 3 fell with 2.4 (github.com/pytorch/pytorch, pull request 121692).
        """
        return None if self.torch >= (2, 4) else 3

    @property
    def remakes_softmax(self) -> bool:
        """Whether a compiled backward pass makes a softmax again from scores that are less to keep.

        From 2.4 on, when the partitioner's limit fell (see above); that releases before did not is assumed. 2.8 does:
        data/published/README.md, gpt2-runpod-cards.
        """
        return self.torch >= (2, 4)

    @property
    def scatters_losses(self) -> bool:
        """Whether a compiled step writes the gradient of a cross-entropy to memory, nearly all of it zeros.

        No more since 2.5 (github.com/pytorch/pytorch, pull request 129043).
        """
        return self.torch < (2, 5)

    @property
    def keeps_gradients(self) -> bool:
        """Whether ``zero_grad()`` fills gradients with zeros and keeps their memory.

        Since 2.0 it gives them back (``set_to_none=True`` became the default).
        """
        return self.torch < (2, 0)

    @property
    def keeps_casts(self) -> bool:
        """Whether autocast keeps its 16-bit copies of weights until a pass under ``torch.inference_mode`` ends.

        Not since 2.11 (github.com/pytorch/pytorch, pull request 165068): each operator has its weights cast anew. Under
        ``torch.no_grad``, and in training, they are kept in any release.
        """
        return self.torch < (2, 11)

    @property
    def is_unknown(self) -> bool:
        """Whether PyTorch is newer than any release that is known here; it is then taken for the newest."""
        return self.torch > DEFAULT_SOFTWARE.torch

    def __str__(self) -> str:
        torch = f"torch {self.torch[0]}.{self.torch[1]}"
        return torch if self.cuda is None else f"{torch}+cu{self.cuda[0]}{self.cuda[1]}"


def _what_lacks(text: str) -> str:
    if _CUDA_ALONE.fullmatch(text):
        return ", which names no PyTorch"
    if _MAJOR_ALONE.match(text):
        return ", which lacks the second number of PyTorch's release"
    return ""


_MAJORS = range(10, 20)

#: What is assumed where nothing is said: the newest releases that the memory beside tensors is known of.
DEFAULT_SOFTWARE = Software(torch=(2, 13), cuda=(13, 0))


def _release(text: str) -> Release:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _cuda_release(text: str) -> Release:
    """``12.4`` and ``124`` are the same: builds leave the dot out."""
    if "." in text:
        return _release(text)
    if len(text) < 3:
        # "92" is 9.2, "12" is 12.0: releases before 10 were always written with their second number.
        return (int(text), 0) if int(text) in _MAJORS else (int(text[0]), int(text[1:] or 0))
    return int(text[:-1]), int(text[-1])
