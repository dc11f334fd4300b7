"""Report: does more batch, a larger image or more blocks ever get cheaper, does a better device ever get slower?

    python -m dippm.evaluation.monotonicity --models 500 --cache GRAPHS --out docs/reports/monotonicity.md

Only the names of the models come from measured tables; what is compared are answers of the default predictor.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from dippm.datasets.graph_cache import GraphCache, build_graphs
from dippm.datasets.imports.timm import import_timm_tables
from dippm.datasets.location import data_folder
from dippm.datasets.recipes.recipe import Recipe
from dippm.devices import load_catalog
from dippm.errors import DippmError
from dippm.evaluation.monotone_check import (
    BATCHES,
    FEW_BATCHES,
    Check,
    Fall,
    Figure,
    Tallies,
    Tally,
    Variant,
    check_devices,
    check_work,
    explain_fall,
)
from dippm.evaluation.report_page import Section, Table, render_markdown
from dippm.evaluation.scaled_models import deepen, draw_models, enlarge
from dippm.graph import Graph
from dippm.predictors.physics import PhysicsPredictor

__all__ = ["Drawn", "check_all", "draw", "main", "sections_of"]

_logger = logging.getLogger(__name__)

# Devices are compared on every so many models of the draw: with all cards of the catalogue a model takes seconds.
_DEVICES_EVERY = 10
_LISTED = 10
_TITLE = "More work, better devices: does an answer ever move the wrong way?"
_MEANING = {
    Check.BATCH: "Twice the batch",
    Check.IMAGE: "Twice the side of the image",
    Check.DEPTH: "Twice the blocks in every stage",
    Check.ALL_FIGURES: "A device with every figure better",
    Check.ONE_FIGURE: "A device with one figure better",
    Check.CARD: "Cards of the catalogue",
}
_REMARK = {
    Check.BATCH: (
        "Memory is what the process holds, which PyTorch's allocator takes in segments: requests up to 1 MiB share "
        "segments of 2 MiB, those up to 10 MiB segments of 20 MiB, larger ones have their own. A larger batch moves "
        "tensors from one kind to the other and can need less in all: these are the allocator's rules replayed, and a "
        "card would do the same. The live peak, the tensors alone, has no such steps. Time moves the wrong way where "
        "the host is what counts: what is left on the device behind the last launch hardly depends on the batch, and "
        "what was learned corrects it by a little less."
    ),
    Check.IMAGE: "Memory and time as for the batch.",
    Check.DEPTH: (
        "Memory is that of the allocator again: how well what is free serves the next request depends on all requests "
        "before it, weights included, and more blocks can leave less of it unused (the part called slack)."
    ),
    Check.ONE_FIGURE: (
        "Stricter than a device better in every figure. What answers is made of learned kernel times, whose inputs are "
        "ratios of these figures; no two measured devices differ in one of them alone. The largest rises come from "
        "what a board sustains under its power limit: that was learned from five cards, two of which throttle, and "
        "more clock or more SMs at the same board power turn a GeForce card into one of those in a step."
    ),
    Check.CARD: (
        "All pairs of cards in the catalogue where one is at least as good in every figure that time depends on. The "
        "two may be answered by different means: corrected by a network, learned from the card's own kernel table, or "
        "carried over from others, and most of what is listed lies between such two. Looked at one by one: products "
        "of the backward pass in FP32 at small batches, whose sums are longer than any in the kernel tables, are taken "
        "for slower on A100 than on V100; small kernels of a training step at batch 1, which the network knows from "
        "large batches only, are taken for slower on RTX 3090 than on T4."
    ),
}


@dataclass(kw_only=True, slots=True)
class Drawn:
    """The models of a check.

    Args:
        recipes: For each model its recipes.
        seed: Seed of the draw.
        unread: Names of models that today's library does not have or that cannot be read.
        no_depth: Families of the models whose depth no argument doubles, with their number.
        no_image: The same of those that cannot be read at twice the side.
    """

    recipes: list[dict[Variant, Recipe]] = field(default_factory=list)
    seed: int = 0
    unread: list[str] = field(default_factory=list)
    no_depth: Counter[str] = field(default_factory=Counter)
    no_image: Counter[str] = field(default_factory=Counter)


def draw(recipes: Iterable[Recipe], cache: GraphCache, *, count: int, seed: int = 0) -> Drawn:
    """Draw models and read the graphs that the cache lacks; those that cannot be read are passed over.

    Args:
        recipes: What to draw from.
        cache: Where the graphs lie.
        count: Number of models.
        seed: Decides the draw.
    """
    result, order = Drawn(seed=seed), iter(draw_models(recipes, seed=seed))
    while candidates := [*islice(order, count - len(result.recipes))]:
        found = []
        for recipe in candidates:
            try:
                deeper = deepen(recipe)
            except DippmError as exc:
                _logger.info("%s: %s", _model(recipe), exc)
                result.unread.append(_model(recipe))
                continue
            variants = {Variant.BASE: recipe, Variant.LARGER: enlarge(recipe)}
            found.append(variants if deeper is None else {**variants, Variant.DEEPER: deeper})
        every = [recipe for variants in found for recipe in variants.values()]
        for failure in build_graphs(every, cache, jobs=1, on_progress=_log_progress("read")):
            _logger.info("%s: %s", _model(failure.recipe), failure.reason)
        for variants in found:
            _add(result, variants, read={variant for variant in variants if _read(variants[variant], cache)})
    return result


def _add(drawn: Drawn, variants: Mapping[Variant, Recipe], *, read: Set[Variant]) -> None:
    """Add a model with the graphs that could be read."""
    base = variants[Variant.BASE]
    if Variant.BASE not in read:
        drawn.unread.append(_model(base))
        return
    drawn.recipes.append({variant: variants[variant] for variant in Variant if variant in read})
    drawn.no_depth[base.family] += Variant.DEEPER not in read
    drawn.no_image[base.family] += Variant.LARGER not in read


def check_all(predictor: PhysicsPredictor, drawn: Drawn, cache: GraphCache) -> Tallies:
    """Compare everything on every model."""
    tallies, report = Tallies(), _log_progress("compared")
    for number, recipes in enumerate(drawn.recipes):
        report(number, len(drawn.recipes))
        graphs = _graphs(recipes, cache)
        model = _model(recipes[Variant.BASE])
        check_work(predictor, model, graphs, tallies)
        if number % _DEVICES_EVERY == 0:
            check_devices(predictor, model, graphs[Variant.BASE], tallies, cards=load_catalog())
    return tallies


def sections_of(drawn: Drawn, tallies: Tallies, explain: Callable[[Fall], str], *, command: str) -> list[Section]:
    """The parts of the report.

    Args:
        drawn: The models.
        tallies: The comparisons.
        explain: Says what moved in a fall.
        command: The command that makes it.
    """
    sections = [_section_of_models(drawn, command)]
    for check, meaning in _MEANING.items():
        chosen = {key: tally for key, tally in tallies.items() if key[0] is check}
        if not chosen:
            continue
        falls = [fall for tally in chosen.values() for fall in tally.falls]
        tables = [_summary(chosen)]
        for figure in Figure:
            worst = Tally(falls=[fall for fall in falls if fall.figure is figure]).worst[:_LISTED]
            if worst:
                tables.append(_worst_table(figure, worst, explain))
        remark = _REMARK.get(check)
        sections.append(Section(title=meaning, text=[remark] if remark and falls else [], tables=tables))
    return sections


def _section_of_models(drawn: Drawn, command: str) -> Section:
    count = {variant: sum(variant in each for each in drawn.recipes) for variant in Variant}
    families = {each[Variant.BASE].family for each in drawn.recipes}
    text = [
        f"`{command}`",
        f"{count[Variant.BASE]} models of {len(families)} families, drawn from the names in timm's published tables "
        f"with seed {drawn.seed}: round by round one model of each family, at the smallest image that the tables have "
        f"of it. {count[Variant.LARGER]} of them are compared with themselves on images of twice the side, "
        f"{count[Variant.DEEPER]} with twice the blocks, which an argument of their constructor asks for. Batches "
        f"{', '.join(map(str, BATCHES))}; images, blocks and devices at batches {', '.join(map(str, FEW_BATCHES))}. "
        f"Devices are compared on every {_DEVICES_EVERY}th model.",
        "A pair falls where the answer moves the wrong way by more than rounding. Training is with momentum, NCHW.",
    ]
    if drawn.unread:
        text.append(
            f"Passed over, because today's library does not have them or they cannot be read for every batch: "
            f"{', '.join(drawn.unread)}."
        )
    if drawn.no_depth.total():
        text.append(f"No argument doubles the depth of: {_count(drawn.no_depth)}.")
    if drawn.no_image.total():
        text.append(f"Cannot be read at twice the side: {_count(drawn.no_image)}.")
    return Section(title="What is compared", text=text)


def _summary(tallies: Mapping[tuple[Check, Figure, str], Tally]) -> Table:
    rows = []
    for (_, figure, setting), tally in tallies.items():
        largest = f"{100.0 * tally.worst[0].change:+.2f}" if tally.falls else "-"
        rows.append((setting, figure.value, str(tally.pairs), str(len(tally.falls)), str(tally.clear), largest))
    return Table(header=("on", "figure", "pairs", "falls", "beyond 1 %", "largest %"), rows=rows)


def _worst_table(figure: Figure, worst: Sequence[Fall], explain: Callable[[Fall], str]) -> Table:
    unit = "ms" if figure is Figure.TIME else "MiB"
    rows = [
        (
            fall.model,
            fall.before.device.name if fall.before.device.name not in fall.step else "",
            f"{fall.conditions.precision}, {fall.conditions.mode}",
            str(fall.before.batch),
            fall.step,
            f"{fall.value:.4g}",
            f"{100.0 * fall.change:+.2f}",
            explain(fall),
        )
        for fall in worst
    ]
    header = ("model", "device", "conditions", "batch", "step", f"before, {unit}", "change %", "what moved most")
    return Table(header=header, rows=rows, caption=f"Largest, {figure}")


def _count(families: Counter[str]) -> str:
    return ", ".join(f"{family} ({count})" for family, count in families.most_common() if count)


def _model(recipe: Recipe) -> str:
    return recipe.architecture.removeprefix("zoo:timm:")


def _read(recipe: Recipe, cache: GraphCache) -> Graph | None:
    """The graph that holds for every batch, None where there is none."""
    cached = cache.load(recipe.model_key, batch=recipe.batch)
    return None if cached is None or cached.graph.fixed_batch is not None else cached.graph


def _graphs(recipes: Mapping[Variant, Recipe], cache: GraphCache) -> dict[Variant, Graph]:
    graphs = {variant: _read(recipe, cache) for variant, recipe in recipes.items()}
    return {variant: graph for variant, graph in graphs.items() if graph is not None}


def _log_progress(what: str) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        if done % 20 == 0:
            _logger.info("%s %d of %d", what, done, total)

    return report


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: draw, read, compare, write the report."""
    parser = argparse.ArgumentParser(description="Check that more work never gets cheaper, nor a better device slower.")
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of graphs")
    parser.add_argument("--out", type=Path, required=True, help="Markdown file")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    cache, predictor = GraphCache(options.cache), PhysicsPredictor.load()
    recipes = [label.recipe for label in import_timm_tables(data_folder() / "timm")]
    drawn = draw(recipes, cache, count=options.models)
    tallies = check_all(predictor, drawn, cache)
    of_model = {_model(each[Variant.BASE]): each for each in drawn.recipes}
    command = f"python -m dippm.evaluation.monotonicity --models {options.models} --out {options.out}"
    sections = sections_of(
        drawn,
        tallies,
        lambda fall: explain_fall(predictor, fall, _graphs(of_model[fall.model], cache)),
        command=command,
    )
    options.out.write_text(render_markdown(_TITLE, sections, {}), encoding="utf-8")


if __name__ == "__main__":
    main()
