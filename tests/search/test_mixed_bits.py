"""Bits of each weight, chosen for a size or a loss: `--bits auto`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from decoders import genai_decoder, optimum_decoder
from helpers import build, floats, node
from onnx import helper

from onnxq.data.generated_text import generated_text
from onnxq.errors import CheckFailed, DataError, RecipeError
from onnxq.evaluator import Evaluator
from onnxq.ir import load
from onnxq.ir.storage import residency
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks, load_recipe
from onnxq.rounding.layer_by_layer import block_jobs
from onnxq.search import bit_losses, mixed_bits
from onnxq.search.bit_losses import Coding, measure_losses
from onnxq.search.budget import Budget
from onnxq.search.mixed_bits import MixedWeight, bits_for_size
from onnxq.stages.prepare import prepare

SHAPES = {"w1": (96, 64), "w2": (64, 80), "w3": (96, 80), "w4": (80, 40)}


def samples(count=16):
    return [{"x": floats(1, 6, 96, seed=seed)} for seed in range(count)]


@pytest.fixture
def source(tmp_path):
    """Two products in a row that hardly count, beside one that does, and a head."""
    weights = {name: floats(*shape, scale=0.3, seed=seed) for seed, (name, shape) in enumerate(SHAPES.items())}
    weights["small"] = np.float32(0.02)
    nodes = [
        *(
            node("MatMul", "x w1", "a"),
            node("Relu", "a", "b"),
            node("MatMul", "b w2", "c"),
            node("Mul", "c small", "d"),
        ),
        *(node("MatMul", "x w3", "e"), node("Add", "d e", "f"), node("Relu", "f", "g"), node("MatMul", "g w4", "y")),
    ]
    onnx.save(build(nodes, {"x": [1, 6, 96]}, ["y"], weights, 21), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def bits_written(path):
    made = [one for one in onnx.load(path).graph.node if one.op_type == "MatMulNBits"]
    return [next(item.i for item in one.attribute if item.name == "bits") for one in made]


def test_the_loss_is_that_of_a_model_with_one_weight_rounded(source, monkeypatch):
    monkeypatch.setattr("onnxq.search.bit_losses.error_shares", lambda job, moments: {Coding(4, 32): 1.0})
    prepared = prepare(source, in_blocks(4), with_data=True)
    jobs = block_jobs(prepared.plan)
    found = measure_losses(prepared.model, jobs, samples(2))
    assert len(found) == 4
    model = onnx.load(source)
    exact = [Evaluator(load(source), wide=True).run(one)["y"] for one in samples(2)]
    for tensor in model.graph.initializer:
        if tensor.name not in SHAPES:
            continue
        weight = onnx.numpy_helper.to_array(tensor)
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        for other in changed.graph.initializer:
            if other.name == tensor.name:
                other.CopyFrom(onnx.numpy_helper.from_array(to_nearest(weight), other.name))
        got = [Evaluator(changed, wide=True).run(one)["y"] for one in samples(2)]
        loss = np.mean([np.square(b - a).sum() / np.square(a).sum() for a, b in zip(exact, got, strict=True)])
        ours = next(losses[Coding(4, 32)] for key, losses in found.items() if key[0].shape == weight.shape)
        assert ours == pytest.approx(loss, rel=0.01)


def test_the_divergence_of_next_tokens_takes_rows_in_parts(monkeypatch):
    monkeypatch.setattr(bit_losses, "IN_CACHE", 100)
    one, two = (floats(2, 5, 40, scale=scale, seed=3) for scale in (8, 7))
    shares = [np.exp(z.astype(np.float64)) / np.exp(z.astype(np.float64)).sum(-1, keepdims=True) for z in (one, two)]
    expected = (shares[0] * np.log(shares[0] / shares[1])).sum(-1).mean()
    assert bit_losses._divergence([one], [two]) == pytest.approx(expected, rel=1e-9)
    assert bit_losses._divergence([one], [one + 3]) == pytest.approx(0, abs=1e-6)


def test_outputs_of_another_size_and_sequences_have_a_loss_too():
    nodes = [
        *(node("MatMul", "x w", "a"), node("Relu", "a", "b"), node("MatMul", "b v", "y")),
        *(node("Greater", "y zero", "above"), node("Reshape", "y flat", "all"), node("Reshape", "above flat", "which")),
        *(node("Compress", "all which", "picked"), node("SplitToSequence", "y sizes", "parts", axis=0)),
    ]
    weights = {"w": floats(64, 64, seed=1), "v": floats(64, 64, seed=2), "zero": np.float32(0)}
    weights |= {"flat": np.int64([-1]), "sizes": np.int64([1, 3])}
    model = build(nodes, {"x": [4, 64]}, ["y", "picked"], weights, 21)
    model.graph.output.append(helper.make_tensor_sequence_value_info("parts", onnx.TensorProto.FLOAT, None))
    given = [{"x": floats(4, 64, seed=seed)} for seed in range(5, 9)]
    prepared = prepare(model, in_blocks("auto", 16), with_data=True)
    found = measure_losses(prepared.model, block_jobs(prepared.plan), given)
    assert [0 < losses[Coding(4, 16)] < losses[Coding(2, 16)] for losses in found.values()] == [True, True]


def test_no_more_than_one_rounded_weight_is_held(source, monkeypatch):
    held = []

    def counted(self):
        weights = {job.key: job.weight for job in self.jobs.values()}
        exact = self.exact[0].values
        held.extend(w for key, w in weights.items() if self.runs[key][0].values[w] is not exact[w])
        return finish(self)

    finish = bit_losses._Probes.losses
    monkeypatch.setattr(bit_losses._Probes, "losses", counted)
    prepared = prepare(source, in_blocks(4), with_data=True)
    assert len(measure_losses(prepared.model, block_jobs(prepared.plan), samples(2))) == 4
    assert [value.name for value in held] == ["w4"]


def to_nearest(weight):
    made = np.empty_like(weight)
    for start in range(0, len(weight), 32):
        block = weight[start : start + 32]
        low, high = np.minimum(block.min(axis=0), 0), np.maximum(block.max(axis=0), 0)
        scale = (high - low) / (15)
        zero = np.rint(-low / scale)
        made[start : start + 32] = scale * (np.clip(np.rint(block / scale) + zero, 0, 15) - zero)
    return made


@dataclass(frozen=True)
class FakeJob:
    key: str

    class coding:
        bits, block_size = 4, 32

    def rows(self):
        return np.empty((32, 64))


def weights_of(losses):
    """Three weights whose losses by coding are multiples of these."""
    return [
        MixedWeight(FakeJob(name), tuple(losses), {coding: loss * part for coding, part in losses.items()})
        for name, loss in (("a", 1.0), ("b", 1.0), ("c", 1000.0))
    ]


def test_bytes_go_where_they_take_most_loss_away():
    two, four, eight = (Coding(bits, 32) for bits in (2, 4, 8))
    weights = weights_of({two: 25, four: 1, eight: 1 / 289})
    size = {coding: weights[0].size(coding) for coding in (two, four, eight)}
    least = 3 * size[two]
    assert set(bits_for_size(weights, least).values()) == {two}
    assert bits_for_size(weights, least + size[four] - size[two]) == {"a": two, "b": two, "c": four}
    assert set(bits_for_size(weights, 3 * size[four]).values()) == {four}
    assert bits_for_size(weights, 2 * size[four] + size[eight]) == {"a": four, "b": four, "c": eight}
    assert bits_for_size(weights, 3 * size[eight] - 1) == {"a": eight, "b": four, "c": eight}
    assert set(bits_for_size(weights, 3 * size[eight]).values()) == {eight}


def test_longer_blocks_come_before_fewer_bits():
    two, long, four, eight = Coding(2, 32), Coding(4, 64), Coding(4, 32), Coding(8, 32)
    weights = weights_of({two: 25, long: 2, four: 1, eight: 1 / 289})
    size = {coding: weights[0].size(coding) for coding in (two, long, four)}
    assert bits_for_size(weights, 3 * size[four] - 1) == {"a": four, "b": long, "c": four}
    assert set(bits_for_size(weights, 3 * size[long]).values()) == {long}
    assert bits_for_size(weights, 3 * size[long] - 1) == {"a": four, "b": two, "c": four}
    assert set(bits_for_size(weights, 3 * size[four]).values()) == {four}


def test_a_coding_that_others_make_needless_is_not_taken():
    two, poor, four = Coding(2, 32), Coding(4, 64), Coding(4, 32)
    weights = weights_of({two: 25, poor: 24.9, four: 1})
    assert [step.after for step in weights[0].steps(two)] == [four]
    assert [step.after for step in weights[0].steps(poor)] == [four]


def test_rows_are_filled_up_to_whole_blocks():
    assert [coding.block for coding in bit_losses._of_four_bits(32, 576)] == [32, 64]
    assert [coding.block for coding in bit_losses._of_four_bits(32, 1536)] == [32, 64, 128, 256]
    assert Coding(4, 64).row_bytes(100) == 64 + 1 + 8


@pytest.mark.filterwarnings("error")
def test_the_smallest_numbers_round_to_zeros():
    rows = np.zeros((2, 32), np.float32)
    rows[0, :2] = 1e-45, -1e-45
    rows[1, 0] = 1.5
    rounded = bit_losses._nearest(rows, 32)
    assert np.abs(rounded[0]).max() <= 2e-44
    np.testing.assert_array_equal(rounded[1], rows[1])


@pytest.mark.parametrize("large", [False, True])
def test_a_file_keeps_to_its_size_and_loses_less_than_with_equal_bits(source, tmp_path, monkeypatch, large):
    def made(recipe, budget=None):
        with monkeypatch.context() as patch:
            if large:
                patch.setattr(residency, "LARGE", 0)
            report = quantize(
                source, recipe, samples=samples(), output=tmp_path / "q.onnx", force=True, budget=budget or Budget()
            )
        return report.comparison.worst_sqnr, report.output_bytes, report

    plain, size, _ = made(in_blocks(4))
    most = size + 4200
    better, size, report = made(in_blocks("auto"), Budget(max_size=most))
    assert size <= most
    assert len(set(bits_written(tmp_path / "q.onnx"))) > 1
    assert better > plain + 8
    assert any(note.startswith("chose bits by what each weight loses alone: weights of ") for note in report.notes)
    assert report.returned == ()  # a weight of 8 bits is no node that went back to float


def test_the_same_bits_in_memory_and_streamed(source, tmp_path, monkeypatch):
    found = []
    for name in ("small", "large"):
        quantize(source, in_blocks("auto"), samples=samples(), output=tmp_path / name, budget=Budget(max_size=20_000))
        found.append(bits_written(tmp_path / name))
        monkeypatch.setattr(residency, "LARGE", 0)
    assert found[0] == found[1]


def test_a_large_model_that_becomes_small_keeps_to_its_size(tmp_path, monkeypatch):
    """What has become of it is finished as small models are, with equal constants stored once."""
    weights = {f"w{index}": floats(96, 96, scale=0.2, seed=index) for index in range(6)}
    nodes = [node("MatMul", f"{f'x{i}' if i else 'x'} w{i}", f"x{i + 1}" if i < 5 else "y") for i in range(6)]
    onnx.save(build(nodes, {"x": [1, 6, 96]}, ["y"], weights, 21), tmp_path / "m.onnx")
    monkeypatch.setattr(residency, "LARGE", 100_000)
    least = quantize(tmp_path / "m.onnx", in_blocks(4), samples=samples(), output=tmp_path / "l.onnx").output_bytes
    most = least + 6_000
    report = quantize(
        tmp_path / "m.onnx",
        in_blocks("auto"),
        samples=samples(),
        output=tmp_path / "q.onnx",
        budget=Budget(max_size=most),
    )
    assert most - 6_000 < report.output_bytes <= most
    assert bits_written(tmp_path / "q.onnx").count(8) == 2


@pytest.mark.parametrize("large", [False, True])
def test_as_few_weights_get_8_bits_as_a_loss_needs(tmp_path, monkeypatch, large):
    onnx.save(optimum_decoder(), tmp_path / "m.onnx")
    given = generated_text(prepare(tmp_path / "m.onnx", in_blocks(4), with_data=True).model)[:16]
    if large:
        monkeypatch.setattr(residency, "LARGE", 0)

    def made(drop, recipe="auto"):
        budget = Budget(metric="perplexity", max_drop=drop)
        report = quantize(
            tmp_path / "m.onnx", in_blocks(recipe), samples=given, output=tmp_path / "q.onnx", force=True, budget=budget
        )
        return report.comparison.metric.drop, sorted(bits_written(tmp_path / "q.onnx"))

    loose, few = made(1e3)
    assert set(few) == {4}
    assert loose > 0
    drop, some = made(loose * 0.5)
    assert drop <= loose * 0.5
    assert few < some


def test_a_decoder_without_data_is_measured_on_what_it_writes(tmp_path):
    onnx.save(genai_decoder(), tmp_path / "m.onnx")
    size = quantize(tmp_path / "m.onnx", in_blocks(4), output=tmp_path / "q.onnx").output_bytes
    report = quantize(
        tmp_path / "m.onnx",
        in_blocks("auto"),
        output=tmp_path / "q.onnx",
        force=True,
        budget=Budget(max_size=size + 3000),
    )
    assert report.output_bytes <= size + 3000
    assert {4, 8} <= set(bits_written(tmp_path / "q.onnx"))


@pytest.mark.parametrize("large", [False, True])
def test_3_bits_are_the_mean_of_a_mixture(source, tmp_path, monkeypatch, large):
    if large:
        monkeypatch.setattr(residency, "LARGE", 0)
    found = {}
    for bits in (2, 3, 4):
        report = quantize(source, in_blocks(bits), samples=samples(), output=tmp_path / f"{bits}.onnx")
        found[bits] = report.comparison.worst_sqnr, report.output_bytes
    assert found[2][0] < found[3][0] < found[4][0]
    assert found[2][1] < found[3][1] < found[4][1]
    made = [one for one in onnx.load(tmp_path / "3.onnx").graph.node if one.op_type == "MatMulNBits"]
    codes = {one.input[1]: helper.get_node_attr_value(one, "bits") for one in made[:-1]}  # the last is the head
    sizes = dict(zip(codes, (a * b for a, b in list(SHAPES.values())[:3]), strict=True))
    assert len(set(codes.values())) > 1
    mean = sum(bits * sizes[name] for name, bits in codes.items()) / sum(sizes.values())
    assert mean <= (3.5 if large else 3)  # scales of 16 bits leave half a bit of those of 32


def test_a_mean_of_3_bits_of_a_large_model_counts_scales_of_32_bits(monkeypatch):
    long, short, two = Coding(4, 256), Coding(4, 32), Coding(2, 32)
    chosen = []
    monkeypatch.setattr(FakeJob, "rows", lambda _: np.empty((2048, 256)))
    monkeypatch.setattr(mixed_bits, "_choices", lambda _, found: chosen.append(set(found.values())) or {})
    monkeypatch.setattr(mixed_bits, "replan", lambda prepared, _: prepared)
    for narrow in (False, True):
        weights = [replace(each, narrow=narrow) for each in weights_of({two: 25, long: 1.5, short: 1})]
        monkeypatch.setattr(mixed_bits, "mixed_weights", lambda *given, weights=weights: weights)
        monkeypatch.setattr(mixed_bits, "LEAST_SHARING", 1)
        large = SimpleNamespace(strategy=SimpleNamespace(tries_variants=False), plan=SimpleNamespace(choices={}))
        mixed_bits.keep_to_mean(large, [], None, bits=3)
    assert two in chosen[0]
    assert two not in chosen[1]


def test_scales_of_many_blocks_of_few_bits_take_a_byte(monkeypatch):
    weight = replace(weights_of({Coding(4, 32): 1})[0], narrow=True)
    assert weight.size(Coding(4, 32)) == 32 * (2 * 16 + 1 + 2 * 2)
    monkeypatch.setattr(mixed_bits, "LEAST_SHARING", 64)
    assert weight.size(Coding(4, 32)) == 32 * (2 * 16 + 1 + 2) + 1024  # and a table
    assert weight.size(Coding(8, 32)) == 32 * (2 * 32 + 2 + 2 * 2)


def test_3_bits_take_no_limit_of_size_and_check_one_of_loss(source, tmp_path):
    def made(**options):
        quantize(source, in_blocks(3), samples=samples(), output=tmp_path / "q.onnx", **options)

    with pytest.raises(RecipeError, match="--bits 3 sets the size itself"):
        made(budget=Budget(max_size=20_000))
    with pytest.raises(RecipeError, match="--bits 3 searches"):
        made(fast=True)
    with pytest.raises(CheckFailed, match="no choice of bits meets the budget"):
        made(budget=Budget(min_sqnr=60.0))
    assert not (tmp_path / "q.onnx").exists()


def test_what_cannot_be_chosen_is_refused(source, tmp_path):
    def made(**options):
        quantize(source, in_blocks("auto"), output=tmp_path / "q.onnx", **options)

    with pytest.raises(RecipeError, match="by a limit, and there is none"):
        made(samples=samples())
    with pytest.raises(RecipeError, match="--fast leaves searches out"):
        made(samples=samples(), fast=True, budget=Budget(max_size=20_000))
    with pytest.raises(DataError, match="shows on data only"):
        made(budget=Budget(max_size=20_000))
    with pytest.raises(CheckFailed, match="no model has 5000 bytes or fewer"):
        made(samples=samples(), budget=Budget(max_size=5_000))
    assert not (tmp_path / "q.onnx").exists()


def test_the_recipe_can_be_written_and_read(tmp_path):
    recipe = in_blocks("auto", 64)
    (tmp_path / "r.toml").write_text(recipe.to_toml())
    assert load_recipe(tmp_path / "r.toml") == recipe
    assert recipe.scheme.mixed_bits
