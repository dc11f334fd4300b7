"""What became of every model, in tables."""

from __future__ import annotations

from dippm.evaluation.coverage_report import render_coverage
from dippm.evaluation.model_coverage import (
    ReadingNote,
)


def test_the_report_counts_and_names(reading_notes: list[ReadingNote]) -> None:
    text = render_coverage(reading_notes, environment="Somewhere.", command="python scripts/x.py")
    assert "| timm | 3 | 3 | 0 | 2 | 0 |" in text
    assert "| torchvision | 1 | 0 | 0 | 0 | 1 |" in text
    assert "| transformers | 1 | 1 | 1 | 1 | 0 |" in text
    assert "| timm, read | 2.0 | 2.8 | 3.0 |" in text
    assert "| torchvision:d | torch.data_dependent: At y.py:3 |" in text
    assert "| timm:c | It mixes. |" in text
    assert "2 models: 1 equal to the last unit, 1 within 0.1 %" in text
    assert "| timm:b | 0.0 | 0.0 | 1.2500 |" in text
    assert "| hf:MambaForCausalLM | aten.odd (2) |" in text
