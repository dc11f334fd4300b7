from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from dippm.costs import Workload  # noqa: E402
from dippm.costs.conditions import Mode  # noqa: E402
from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402

EVENLY = "is taken to be spread evenly over all choices"


class Mixture(nn.Module):
    """Four experts, of which two see each token."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Any) -> Any:
        tokens = x.view(-1, 16)
        shares, chosen = self.gate(tokens).softmax(-1).topk(2, -1)
        return self.send(tokens, shares, chosen).view_as(x)


class ByWhere(Mixture):
    def send(self, tokens: Any, shares: Any, chosen: Any) -> Any:
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, which = torch.where(chosen == number)
            out[rows] += shares[rows, which, None] * expert(tokens[rows])
        return out


class ByOneHot(Mixture):
    def send(self, tokens: Any, shares: Any, chosen: Any) -> Any:
        out = torch.zeros_like(tokens)
        mask = functional.one_hot(chosen, 4).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            which, rows = torch.where(mask[number])
            out.index_add_(0, rows, expert(tokens[rows]) * shares[rows, which, None])
        return out


class ByMask(Mixture):
    def send(self, tokens: Any, shares: Any, chosen: Any) -> Any:
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            own = mask.any(-1)
            if own.any():
                rows = own.nonzero(as_tuple=True)[0]
                out.index_add_(0, rows, expert(tokens[own]) * shares[mask].unsqueeze(-1))
        return out


class ByCounts(Mixture):
    def send(self, tokens: Any, shares: Any, chosen: Any) -> Any:
        numbers = chosen.view(-1)
        order = numbers.argsort()
        parts = tokens[order // 2].split(torch.bincount(numbers, minlength=4).tolist())
        done = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        out = torch.empty_like(done)
        out[order] = done
        return (out.view(*chosen.shape, -1) * shares[..., None]).sum(1)


class ByTable(Mixture):
    def send(self, tokens: Any, shares: Any, chosen: Any) -> Any:
        out = torch.zeros_like(tokens)
        masks = (chosen.unsqueeze(-1) == torch.arange(4)).permute(2, 0, 1)
        for mask, expert in zip(masks, self.experts, strict=True):
            rows, which = torch.where(mask)
            out[rows] += shares[rows, which, None] * expert(tokens[rows])
        return out


class BySelection(Mixture):
    def send(self, tokens: Any, shares: Any, chosen: Any) -> Any:
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            mask = (chosen == number).any(-1, keepdim=True)
            own = tokens.masked_select(mask).view(-1, 16)
            out = out.masked_scatter(mask, expert(own))
        return out


@pytest.mark.parametrize("kind", [ByTable, ByWhere, ByOneHot, ByMask, ByCounts, BySelection])
def test_experts_get_even_shares_of_the_tokens(kind) -> None:
    module = kind().eval()
    for mode in (Mode.INFERENCE, Mode.TRAINING):
        graph = read_module(module, input=parse_input_shapes("10,16"), mode=mode)
        assert graph.fixed_batch is None
        assert sum(EVENLY in warning for warning in graph.warnings) == 1
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        module(torch.randn(3, 10, 16))
    graph = read_module(module, input=parse_input_shapes("10,16"))
    assert 2 * Workload.from_graph(graph).at([3]).macs.sum() == counter.get_total_flops()


def test_shares_that_are_not_whole_hold_for_one_batch() -> None:
    graph = read_module(ByCounts(), input=parse_input_shapes("3,16"), batch_hint=5)
    assert graph.fixed_batch == 5
    assert Workload.from_graph(graph).at([5]).macs.sum() == 15 * 16 * 4 + 2 * 15 * 16 * 16


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_other_questions_for_values_are_refused(limit) -> None:
    class Threshold(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[x > limit]

    with pytest.raises(UnsupportedError) as caught:
        read_module(Threshold(), input=parse_input_shapes("10"))
    assert caught.value.code == "torch.data_dependent"


@pytest.mark.parametrize("least", [0, torch.tensor(0)])
def test_an_expert_has_tokens_and_nobody_knows_how_many(least: Any) -> None:
    class Skips(Mixture):
        def __init__(self, least: Any) -> None:
            super().__init__()
            self.least = least

        def send(self, tokens: Any, shares: Any, chosen: Any) -> Any:
            return self.experts[0](tokens) if (chosen == 0).sum() > self.least else tokens

    graph = read_module(Skips(least), input=parse_input_shapes("6x16"))
    assert any(EVENLY in warning for warning in graph.warnings)
    with pytest.raises(UnsupportedError):
        read_module(Skips(least + 5), input=parse_input_shapes("6x16"))


@pytest.mark.parametrize("kind", [ByTable, ByWhere, ByOneHot, ByMask])
@pytest.mark.parametrize("tokens", [1, 3])
def test_few_tokens_go_to_no_more_experts_than_they_choose(kind, tokens: int) -> None:
    graph = read_module(kind(), input=parse_input_shapes(f"{tokens},16"), batch_hint=1)
    # The gate for each token, and two experts.
    assert Workload.from_graph(graph).at([1]).macs.sum() == tokens * (16 * 4 + 2 * 16 * 16)


def test_what_is_never_chosen_is_no_expert() -> None:
    class Never(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[x.argmax(-1) == -1]

    with pytest.raises(UnsupportedError):
        read_module(Never(), input=parse_input_shapes("8"))


class Generator(nn.Module):
    """Four words, or fewer where all texts have come to their end."""

    def __init__(self, pick: Any, is_over: Any) -> None:
        super().__init__()
        self.table, self.scores = nn.Embedding(1000, 16), nn.Linear(16, 1000)
        self.pick, self.is_over = pick, is_over

    def forward(self, words: Any) -> Any:
        over = torch.zeros(len(words), dtype=torch.bool)
        for _ in range(4):
            word = self.pick(self.scores(self.table(words[:, -1])))
            words = torch.cat([words, word], 1)
            over = self.is_over(over, word)
            if over.all():
                break
        return words


@pytest.mark.parametrize(
    "pick", [lambda scores: scores.argmax(-1, keepdim=True), lambda scores: scores.softmax(-1).multinomial(1)]
)
@pytest.mark.parametrize("is_over", [lambda _, word: word == 2, lambda over, word: over | (word.squeeze(1) == 2)])
def test_texts_go_on_to_their_end(pick, is_over) -> None:
    graph = read_module(Generator(pick, is_over), input=parse_input_shapes("5:int64"))
    assert sum(node.kind.value == "linear" for node in graph.nodes) == 4
    assert sum("ends its text" in warning for warning in graph.warnings) == 1


@pytest.mark.parametrize("choices", [8, 1000])
def test_a_choice_that_is_asked_for_is_the_middle_one(choices) -> None:
    class Rolled(nn.Module):
        def forward(self, x: Any) -> Any:
            place = int(x.mean(0).argmax(-1)) if choices > 8 else int(x.mean(0).topk(2)[1][1])
            return x if place == 3 else x[:, place:]

    graph = read_module(Rolled(), input=parse_input_shapes(str(choices)))
    assert [dim.fixed for dim in graph.tensors[graph.outputs[0]].shape[1:]] == [choices // 2]
    assert any("middle one" in warning for warning in graph.warnings)


class ByPeriod(nn.Module):
    """Folds a series by its strongest periods, as TimesNet does."""

    def __init__(self, to_numbers: Any) -> None:
        super().__init__()
        self.convolution, self.to_numbers = nn.Conv2d(4, 4, 3, padding=1), to_numbers

    def forward(self, x: Any) -> Any:
        length = x.shape[1]
        strength = torch.fft.rfft(x, dim=1).abs().mean(0).mean(-1)
        parts = []
        for frequency in self.to_numbers(strength.topk(3)[1]):
            period = length // int(frequency)
            rows = -(-length // period)
            padded = functional.pad(x, (0, 0, 0, rows * period - length))
            folded = self.convolution(padded.reshape(len(x), rows, period, 4).permute(0, 3, 1, 2))
            parts.append(folded.flatten(2)[..., :length])
        return sum(parts)


@pytest.mark.parametrize("to_numbers", [lambda top: top.detach().cpu().numpy(), lambda top: top.tolist()])
def test_choices_that_are_asked_for_are_spread_evenly(to_numbers) -> None:
    graph = read_module(ByPeriod(to_numbers), input=parse_input_shapes("30,4"))
    assert graph.fixed_batch is None
    # Of 16 frequencies 4, 8 and 12: periods of 7, 3 and 2.
    convolved = [node for node in graph.nodes if node.kind.value == "conv"]
    shapes = [[dim.fixed for dim in graph.tensors[node.outputs[0]].shape[2:]] for node in convolved]
    assert shapes == [[5, 7], [10, 3], [15, 2]]
    assert sum("spread evenly over its choices" in warning for warning in graph.warnings) == 1


def test_words_are_no_experts() -> None:
    class Greedy(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[x.argmax(-1) == 3]

    with pytest.raises(UnsupportedError):
        read_module(Greedy(), input=parse_input_shapes("1000"))
