from __future__ import annotations


def test_sequences_reach_from_32_to_4096(collections) -> None:
    for family in ("bert", "gpt2", "llama"):
        lengths = {
            recipe.inputs.named["input_ids"].shape[0]
            for recipe in collections["transformers"]
            if recipe.family == family
        }
        assert (min(lengths), max(lengths)) == (32, 4096), family
