"""Which models of the libraries become a graph: every one is built without weights, read, and noted.

The notes are one JSON object a line and are added to, so that a run that was ended goes on where it stopped.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dippm.costs import Workload
from dippm.errors import DippmError
from dippm.frontends import zoo
from dippm.frontends.torch import read_module
from dippm.frontends.zoo_building import META

__all__ = [
    "HF_ARCHITECTURES",
    "ReadingNote",
    "add_counted_macs",
    "choose_one_of_each_family",
    "library_models",
    "load_notes",
    "read_models",
]

_logger = logging.getLogger(__name__)

#: Architectures of transformers by kind, as they are named behind ``hf:``.
HF_ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "encoders": (
        "BertForMaskedLM", "RobertaForMaskedLM", "DistilBertForSequenceClassification", "AlbertModel", "ElectraModel",
        "DebertaV2Model", "ModernBertForMaskedLM", "MPNetModel", "XLMRobertaModel", "LongformerModel", "FNetModel",
        "ErnieForMaskedLM", "EuroBertForMaskedLM", "GteForMaskedLM", "IBertForMaskedLM", "NystromformerForMaskedLM",
        "RoFormerForMaskedLM", "MegatronBertModel", "XLNetModel", "SplinterModel", "TapasModel",
        "BigBirdModel", "LayoutLMModel", "BrosModel",
    ),
    "decoders": (
        "GPT2LMHeadModel", "GPTNeoForCausalLM", "GPTNeoXForCausalLM", "GPTJForCausalLM", "OPTForCausalLM",
        "BloomForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
        "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM",
        "FalconForCausalLM", "Starcoder2ForCausalLM", "CohereForCausalLM", "Olmo2ForCausalLM", "GraniteForCausalLM",
        "Lfm2ForCausalLM", "SmolLM3ForCausalLM", "SeedOssForCausalLM", "Ernie4_5ForCausalLM", "DiffLlamaForCausalLM",
        "HeliumForCausalLM", "Ministral3ForCausalLM", "MptModel", "XGLMForCausalLM", "PersimmonForCausalLM",
        "ApertusModel", "Exaone4Model", "Glm4Model", "Olmo3Model", "OpenAIGPTModel", "Gemma3nForCausalLM",
        "Qwen3_5ForCausalLM",
    ),
    "encoders with decoders": (
        "T5ForConditionalGeneration", "BartForConditionalGeneration", "PegasusForConditionalGeneration",
        "MBartForConditionalGeneration", "MarianMTModel", "M2M100Model", "PegasusXModel", "BigBirdPegasusModel",
    ),
    "vision": (
        "ViTForImageClassification", "DeiTForImageClassification", "BeitForImageClassification",
        "SwinForImageClassification", "ConvNextForImageClassification", "Dinov2Model",
        "SegformerForSemanticSegmentation", "ResNetForImageClassification", "MobileViTForImageClassification",
        "YolosForObjectDetection", "DPTForDepthEstimation", "CvtForImageClassification",
        "ConvNextV2ForImageClassification", "Dinov2WithRegistersForImageClassification", "EfficientNetModel",
        "FocalNetModel", "PoolFormerModel", "PvtModel", "MobileViTForSemanticSegmentation", "DetrModel",
        "TableTransformerForObjectDetection", "DFineModel", "MaskFormerModel", "TimmWrapperModel",
        "Qwen3VLVisionModel", "Kimi_K25VisionModel", "SamModel", "Sam2Model", "DepthAnythingForDepthEstimation",
        "DepthProForDepthEstimation", "DINOv3ViTModel", "SiglipVisionModel", "Swinv2ForImageClassification",
        "Mask2FormerForUniversalSegmentation", "RTDetrForObjectDetection", "RfDetrForObjectDetection",
        "GroundingDinoForObjectDetection", "VitPoseForPoseEstimation", "EfficientLoFTRModel",
    ),
    "videos": (
        "VideoMAEForVideoClassification", "VivitForVideoClassification", "TimesformerForVideoClassification",
        "VJEPA2Model", "XCLIPModel",
    ),
    "audio": (
        "Wav2Vec2ForCTC", "HubertModel", "WhisperForConditionalGeneration", "ASTForAudioClassification",
        "Speech2TextForConditionalGeneration", "SeamlessM4TForSpeechToText", "Wav2Vec2BertModel", "MoonshineModel",
        "LasrForCTC", "NemotronAsrStreamingForRNNT", "Data2VecAudioModel", "MusicgenMelodyForCausalLM",
        "ClapModel", "EncodecModel", "MimiModel", "DacModel", "CsmForConditionalGeneration",
        "GlmAsrForConditionalGeneration", "AudioFlamingo3ForConditionalGeneration", "Qwen3ASREncoder",
    ),
    "images with text": (
        "CLIPModel", "SiglipModel", "BlipForConditionalGeneration", "ViltModel", "LlavaForConditionalGeneration",
        "gemma-3-4b-it", "Qwen2.5-VL-3B-Instruct", "Qwen3-VL-8B-Instruct", "LlavaNextForConditionalGeneration",
        "Mistral3ForConditionalGeneration", "InternVLForConditionalGeneration", "Cohere2VisionModel",
        "PaddleOCRVLForConditionalGeneration", "Lfm2VlModel", "LlavaOnevisionModel", "VipLlavaModel",
        "DeepseekVLModel", "Florence2Model", "Siglip2Model", "AltCLIPModel", "ChineseCLIPModel", "Owlv2Model",
        "LayoutLMv3Model", "MllamaForConditionalGeneration", "Gemma4ForConditionalGeneration",
    ),
    "mixtures of experts": (
        "MixtralForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM", "OlmoeForCausalLM",
        "Ernie4_5_MoeModel", "FlexOlmoModel", "PhimoeForCausalLM", "MiniMaxM2Model",
        "Llama4ForCausalLM", "Qwen3NextForCausalLM", "DeepseekV32ForCausalLM",
    ),
    "time series": ("PatchTSMixerModel", "PatchTSTModel"),
    "state spaces": ("MambaForCausalLM", "Mamba2ForCausalLM", "RwkvForCausalLM", "FalconMambaForCausalLM",
                     "xLSTMForCausalLM", "JambaForCausalLM"),
    "steps of generation": (
        *(f"{name}#{step}=512" for name in ("LlamaForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel")
          for step in ("prefill", "decode")),
        "Qwen3ForCausalLM#decode=512", "Gemma2ForCausalLM#decode=512", "FalconForCausalLM#decode=512",
        "OPTForCausalLM#decode=512", "MambaForCausalLM#decode=128",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingNote:
    """What became of one model.

    Args:
        name: The model, as ``timm:resnet50``.
        family: Module of the library that defines it; ``""`` where it could not be built.
        build_s: Seconds that the library took to build it.
        read_s: Seconds that reading it took.
        nodes: Operators of its graph; 0 where there is none.
        parameters: Trained weights.
        macs: Multiply-accumulates of one sample, or of the one batch that it can be read for.
        counted_macs: The same by PyTorch's own counter; None where it was not asked, 0 where it cannot tell.
        fixed_batch_reason: Why it cannot be read for every batch size; ``""`` where it can.
        unsupported_ops: Operators without a cost rule of their own, and how often they are there.
        code: Code of the error that kept it from being read; ``""`` where it was.
        message: That error's message.
    """

    name: str
    family: str = ""
    build_s: float = 0.0
    read_s: float = 0.0
    nodes: int = 0
    parameters: int = 0
    macs: int = 0
    counted_macs: int | None = None
    fixed_batch_reason: str = ""
    unsupported_ops: dict[str, int] = field(default_factory=dict)
    code: str = ""
    message: str = ""

    @property
    def is_read(self) -> bool:
        """Whether there is a graph of it."""
        return not self.code

    @property
    def library(self) -> str:
        """The prefix of its name."""
        return self.name.partition(":")[0]


def load_notes(path: Path) -> dict[str, ReadingNote]:
    """Notes by the models' names; the last one of a model counts, and a line cut short is left out."""
    notes: dict[str, ReadingNote] = {}
    if not path.exists():
        return notes
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            note = ReadingNote(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        notes[note.name] = note
    return notes


def read_models(
    names: Sequence[str],
    path: Path,
    *,
    is_wanted: Callable[[ReadingNote], bool],
    progress: Callable[[ReadingNote], None],
) -> dict[str, ReadingNote]:
    """Read models and note each in a file as soon as it is done.

    Args:
        names: Models, as ``timm:resnet50``.
        path: File of the notes.
        is_wanted: Whether a model with this note is to be read again.
        progress: Called with each new note.

    Returns:
        The notes of these models, old and new.
    """
    notes = load_notes(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        for name in names:
            if name in notes and not is_wanted(notes[name]):
                continue
            note = _read_model(name)
            stream.write(json.dumps(asdict(note)) + "\n")
            stream.flush()
            notes[name] = note
            progress(note)
    return {name: notes[name] for name in names}


def _read_model(name: str) -> ReadingNote:
    started = time.perf_counter()
    family = ""
    built = started
    try:
        module, inputs = zoo.build(name)
        built = time.perf_counter()
        family = type(module).__module__
        graph = read_module(module, input=inputs, source=name)
    except DippmError as exc:
        return ReadingNote(
            name=name,
            family=family,
            build_s=built - started,
            read_s=time.perf_counter() - built,
            code=exc.code,
            message=str(exc),
        )
    read = time.perf_counter()
    work = Workload.from_graph(graph)
    return ReadingNote(
        name=name,
        family=family,
        build_s=built - started,
        read_s=read - built,
        nodes=len(graph.nodes),
        parameters=graph.parameter_count,
        macs=int(work.at(graph.fixed_batch or 1).macs.sum()),
        fixed_batch_reason=graph.fixed_batch_reason,
        unsupported_ops=dict(graph.unsupported_ops),
    )


def add_counted_macs(
    names: Iterable[str], path: Path, *, progress: Callable[[ReadingNote], None]
) -> dict[str, ReadingNote]:
    """Have PyTorch count the multiply-accumulates of models that were read, and note them.

    Args:
        names: Models with notes.
        path: File of the notes.
        progress: Called with each new note.

    Returns:
        The notes of these models.
    """
    notes = load_notes(path)
    with path.open("a", encoding="utf-8") as stream:
        for name in names:
            if notes[name].counted_macs is None:
                notes[name] = replace(notes[name], counted_macs=_count_macs(name))
                stream.write(json.dumps(asdict(notes[name])) + "\n")
                stream.flush()
                progress(notes[name])
    return {name: notes[name] for name in names}


def _count_macs(name: str) -> int:
    """Multiply-accumulates of one sample by PyTorch's own counter; 0 where the model does not run under it.

    The counter sees the operators that run on tensors without data. It knows convolutions, matrix products and
    attention.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from dippm.frontends.torch.call_inputs import default_dtype, structure_of
    from dippm.frontends.torch.dtypes import to_torch_dtype

    module, inputs = zoo.build(name)
    default = default_dtype(module)
    tensors = [
        torch.zeros(entry.at(1), dtype=default if entry.dtype is None else to_torch_dtype(entry.dtype), device=META)
        for entry in inputs.entries
    ]
    positional, named = structure_of(inputs).fill(tensors)
    try:
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            # Some constructors only work with values.
            module.to(META)(*positional, **named)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError, AttributeError) as exc:
        _logger.debug("%s does not run under the counter: %s", name, exc)
        return 0
    return int(counter.get_total_flops()) // 2


def choose_one_of_each_family(notes: Iterable[ReadingNote]) -> list[str]:
    """The model with the fewest operators of each family that has been read."""
    smallest: dict[tuple[str, str], ReadingNote] = {}
    for note in notes:
        key = (note.library, note.family)
        if note.is_read and (key not in smallest or note.nodes < smallest[key].nodes):
            smallest[key] = note
    return sorted(note.name for note in smallest.values())


def library_models(library: str) -> list[str]:
    """Names of all models of a library; for transformers, :data:`HF_ARCHITECTURES`."""
    if library == "hf":
        return [f"hf:{name}" for names in HF_ARCHITECTURES.values() for name in names]
    from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

    import_torchvision_ops()
    if library == "timm":
        import timm

        names: list[str] = timm.list_models()
    else:
        from torchvision import models

        names = models.list_models()
    return [f"{library}:{name}" for name in names]
