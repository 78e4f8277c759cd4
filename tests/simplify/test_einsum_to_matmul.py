"""Einsum of an activation and a constant, written as products of matrices."""

from __future__ import annotations

import string

import numpy as np
import onnx
import pytest
from helpers import build, count_ops, floats, node, run
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import assert_same, simplified, written

import onnxq

SAID = ("rewrote 1 Einsum with a constant as MatMul",)
SIZES = {"a": 3, "b": 2, "c": 4, "d": 6, "e": 5, "h": 2, "k": 3, "l": 5, "o": 7, "w": 3}


def simple(equation, slot=1, opened="", nodes=(), weights=(), outputs=("y",)):
    """Simplify one Einsum whose input number `slot` is a constant; letters in `opened` have open sizes."""
    terms = equation.replace(" ", "").split("->")[0].split(",")
    shapes = [[SIZES[letter] for letter in term] for term in terms]
    given = [letter if letter in opened else SIZES[letter] for letter in terms[1 - slot]]
    inputs = "x w" if slot else "w x"
    made = node("Einsum", inputs, "e" if nodes else "y", equation=equation, name="projection")
    proto = build([made, *nodes], {"x": given}, outputs, {"w": floats(*shapes[slot]), **dict(weights)})
    found = simplified(proto, "einsum_to_matmul")
    sizes = dict.fromkeys(opened, 7)
    feeds = [{"x": floats(*shapes[1 - slot], seed=1)}]
    feeds.append({"x": floats(*(sizes.get(letter, SIZES[letter]) for letter in terms[1 - slot]), seed=2)})
    assert_same(proto, found, feeds, rtol=1e-6)
    return found


PRODUCTS = {
    "bld,dh->blh": ["y = MatMul(x, w[6, 2])"],
    "abc,cd->abd": ["y = MatMul(x, w[4, 6])"],
    "bhwc,ck->bhwk": ["y = MatMul(x, w[4, 3])"],
    "bld,hd->blh": ["y = MatMul(x, w_matrix[6, 2])"],
    "bld,dhk->blhk": [
        "y_product = MatMul(x, w_matrix[6, 6])",
        "y = Reshape(y_product, [0, 0, 2, 3])",
    ],
    "blhk,hkd->bld": [
        "y_rows = Reshape(x, [0, 0, 6])",
        "y = MatMul(y_rows, w_matrix[6, 6])",
    ],
    "blhk,khce->blce": [
        "y_rows = Reshape(x, [0, 0, 6])",
        "y_product = MatMul(y_rows, w_matrix[6, 20])",
        "y = Reshape(y_product, [0, 0, 4, 5])",
    ],
    "bdl,dh->blh": ["y_turned = Transpose(x, perm=[0, 2, 1])", "y = MatMul(y_turned, w[6, 2])"],
    "bld,dhk->bhlk": [
        "y_product = MatMul(x, w_matrix[6, 6])",
        "y_columns = Reshape(y_product, [0, 0, 2, 3])",
        "y = Transpose(y_columns, perm=[0, 2, 1, 3])",
    ],
    "bhld,hdk->bhlk": ["y = MatMul(x, w[2, 6, 3])"],
    "bhld,dhk->bhlk": ["y = MatMul(x, w_matrix[2, 6, 3])"],
    "blhd,hdk->bhlk": ["y_turned = Transpose(x, perm=[0, 2, 1, 3])", "y = MatMul(y_turned, w[2, 6, 3])"],
    " b d , d h ": ["y = MatMul(x, w[6, 2])"],
    "bld, dh": ["y_product = MatMul(x, w[6, 2])", "y = Transpose(y_product, perm=[0, 2, 1])"],  # that is bhl
    "bd,dh->hb": ["y_product = MatMul(x, w[6, 2])", "y = Transpose(y_product, perm=[1, 0])"],
}


@pytest.mark.parametrize("equation", PRODUCTS)
def test_products_of_matrices(equation):
    found = simple(equation, opened="bl")
    assert written(found.model) == PRODUCTS[equation]
    assert found.notes == SAID
    assert "projection" in {item.name for item in found.model.graph.nodes if item.op_type == "MatMul"}


def test_the_constant_may_come_first():
    found = simple("dhk,bld->blhk", slot=0, opened="b")
    assert [item.op_type for item in found.model.graph.nodes] == ["MatMul", "Reshape"]


STAYING = (
    "dbl,dhk->hblk",  # a Transpose on both sides
    "blhd,hdk->blhk",  # a stack whose axis is not in front of the rows, neither before nor behind
    "bcl,co->bol",
    "bld,d->bl",  # a vector
    "d,dh->h",
    "bl,dh->bldh",  # nothing is summed over
    "bld,dhk->blh",  # a letter of one input only is summed over
    "bldc,dh->blh",
    "bhd,hd->bhd",
)


@pytest.mark.parametrize("equation", STAYING)
def test_other_equations_stay(equation):
    assert simple(equation).notes == ()


def test_repeated_letters_and_other_numbers_of_inputs_stay():
    for equation, shape, other in (("bll,lh->bh", [2, 6, 6], [6, 2]), ("bld,ddh->blh", [2, 3, 6], [6, 6, 2])):
        proto = build([node("Einsum", "x w", "y", equation=equation)], {"x": shape}, ["y"], {"w": floats(*other)})
        assert simplified(proto, "einsum_to_matmul").notes == ()
    given = {"x": ["b", 6], "z": [6, 2]}
    for inputs, equation in (("x w z", "bd,de,eh->bh"), ("x z", "bd,dh->bh"), ("x", "bd->db")):
        proto = build([node("Einsum", inputs, "y", equation=equation)], given, ["y"], {"w": floats(6, 6)})
        assert simplified(proto, "einsum_to_matmul").notes == ()


def test_a_size_that_may_be_repeated_stays():
    """NumPy and onnxruntime repeat an axis of size 1 along one of the constant."""
    proto = build([node("Einsum", "x w", "y", equation="bld,dh->blh")], {"x": [2, 3, "d"]}, ["y"], {"w": floats(6, 2)})
    assert simplified(proto, "einsum_to_matmul").notes == ()
    proto = build([node("Einsum", "x w", "y", equation="bld,dh->blh")], {"x": [2, 3, 6]}, ["y"], {"w": floats(1, 2)})
    assert simplified(proto, "einsum_to_matmul").notes == ()


def test_other_numbers_than_float_stay():
    given = {"x": (onnx.TensorProto.DOUBLE, [2, 6])}
    made = node("Einsum", "x w", "y", equation="bd,dh->bh")
    proto = build([made], given, {"y": onnx.TensorProto.DOUBLE}, {"w": floats(6, 2).astype(np.float64)})
    assert simplified(proto, "einsum_to_matmul").notes == ()


@pytest.mark.parametrize("equation", ["...d,dh->...h", "...hd,hdk->...k", "b...d,dh->b...h", "...d,dh"])
def test_an_ellipsis_in_front_is_the_other_axes(equation):
    weight = floats(*(SIZES[letter] for letter in equation.split("->")[0].split(",")[1]))
    proto = build([node("Einsum", "x w", "y", equation=equation)], {"x": ["n", 3, 2, 6]}, ["y"], {"w": weight})
    found = simplified(proto, "einsum_to_matmul")
    assert found.notes == (SAID if equation[0] == "." and ">" in equation else ())
    assert_same(proto, found, [{"x": floats(4, 3, 2, 6)}], rtol=1e-6)


def test_a_constant_that_is_read_twice_is_stored_once():
    nodes = [node("Einsum", f"{x} w", y, equation="bld,dhk->blhk") for x, y in (("x", "y"), ("z", "v"))]
    proto = build(nodes, {"x": ["b", 3, 6], "z": ["b", 4, 6]}, ["y", "v"], {"w": floats(6, 2, 3)})
    found = simplified(proto, "einsum_to_matmul")
    assert found.notes == ("rewrote 2 Einsum with a constant as MatMul",)
    products = [item.inputs[1] for item in found.model.graph.nodes if item.op_type == "MatMul"]
    assert products[0] is products[1]
    assert_same(proto, found, [{"x": floats(2, 3, 6), "z": floats(2, 4, 6)}], rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 3), (3,), (1, 1, 2, 1), ()])
def test_a_bias_is_added_in_front_of_the_reshape(shape):
    found = simple(
        "bld,dhk->blhk", opened="b", nodes=[node("Add", "c e", "y", name="bias")], weights={"c": floats(*shape)}
    )
    assert [item.op_type for item in found.model.graph.nodes] == ["MatMul", "Add", "Reshape"]
    assert found.model.graph.nodes[1].name == "bias"
    assert found.model.graph.nodes[1].inputs[1].constant.shape == (6,)


@pytest.mark.parametrize("shape", [(5, 2, 3), (1, 5, 1, 1), (1, 1, 1, 2, 3)])
def test_what_is_added_to_some_rows_only_stays_behind(shape):
    found = simple("bld,dhk->blhk", nodes=[node("Add", "e c", "y")], weights={"c": floats(*shape)})
    assert [item.op_type for item in found.model.graph.nodes] == ["MatMul", "Reshape", "Add"]


def test_a_sum_that_others_read_the_parts_of_stays_behind():
    nodes = [node("Add", "e c", "y")]
    found = simple("bld,dhk->blhk", nodes=nodes, weights={"c": floats(2, 3)}, outputs=("y", "e"))
    assert [item.op_type for item in found.model.graph.nodes] == ["MatMul", "Reshape", "Add"]


@st.composite
def equations(draw):
    """Any equation of two terms, half of them with the letters in the order of a product."""
    groups = [draw(st.integers(0, 2)) for _ in range(4)]  # letters of the rows, summed over, of the columns, of both
    letters = iter(draw(st.permutations(string.ascii_lowercase)))
    rows, summed, columns, both = ("".join(next(letters) for _ in range(count)) for count in groups)
    lead = draw(st.integers(0, len(rows)))
    stacked = rows[:lead] + both + rows[lead:]
    terms = [stacked + summed, both + summed + columns, stacked + columns]
    assume(all(terms[:2]))
    if draw(st.booleans()):
        terms = ["".join(draw(st.permutations(term))) for term in terms]
    sizes = {letter: draw(st.integers(1, 4)) for letter in rows + summed + columns + both}
    opened = draw(st.sets(st.sampled_from(rows))) if rows else set()
    return terms, sizes, opened, draw(st.booleans())


@settings(max_examples=80, deadline=None)
@given(equations())
def test_every_equation_gives_what_numpy_gives(case):
    (data, weight, output), sizes, opened, swapped = case
    equation = f"{weight},{data}->{output}" if swapped else f"{data},{weight}->{output}"
    made = node("Einsum", "w x" if swapped else "x w", "y", equation=equation)
    shape = [letter if letter in opened else sizes[letter] for letter in data]
    w = floats(*(sizes[letter] for letter in weight))
    found = simplified(build([made], {"x": shape}, ["y"], {"w": w}), "einsum_to_matmul")
    x = floats(*((sizes[letter] + 2 if letter in opened else sizes[letter]) for letter in data), seed=1)
    expected = np.einsum(equation, *((w, x) if swapped else (x, w)))
    (got,) = run(found.model.serialize(), {"x": x})
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    kinds = [item.op_type for item in found.model.graph.nodes]
    assert kinds.count("Transpose") <= 1
    assert kinds == ["Einsum"] or "Einsum" not in kinds


def attention(batch, length, width=128, heads=4):
    """Attention and two layers behind it, every projection an EinsumDense of Keras."""
    nodes, weights, size = [], {}, width // heads
    for name in "qkv":
        weights |= {f"w{name}": floats(width, heads, size, scale=0.1), f"b{name}": floats(heads, size, scale=0.1)}
        nodes.append(node("Einsum", f"x w{name}", f"{name}0", equation="abc,cde->abde"))
        nodes.append(node("Add", f"{name}0 b{name}", name))
    nodes += [
        node("Einsum", "k q", "scores", equation="aecd,abcd->acbe"),
        node("Softmax", "scores", "shares", axis=-1),
        node("Einsum", "shares v", "context", equation="acbe,aecd->abcd"),
        node("Einsum", "context wo", "o", equation="abcd,cde->abe"),
        node("Einsum", "o wu", "u", equation="abc,cd->abd"),
        node("Relu", "u", "r"),
        node("Einsum", "r wd", "y", equation="abc,cd->abd"),
    ]
    weights["wo"] = floats(heads, size, width, scale=0.1)
    weights |= {"wu": floats(width, 2 * width, scale=0.1), "wd": floats(2 * width, width, scale=0.1)}
    return build(nodes, {"x": [batch, length, width]}, ["y"], weights)


@pytest.mark.parametrize("with_data", [False, True])
def test_a_network_of_einsums_computes_in_8_bit_whatever_the_batch(with_data, tmp_path):
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    source.write_bytes(attention("b", "l").SerializeToString())
    samples = [{"x": floats(2, 32, 128, seed=seed)} for seed in range(4)] if with_data else None
    report = onnxq.quantize(source, samples=samples, output=target, fast=True)
    assert "rewrote 6 Einsum with a constant as MatMul" in report.notes
    assert target.stat().st_size < 0.28 * source.stat().st_size
    assert count_ops(onnx.load(target))["Einsum"] == 2
    scheme = "static-int8" if with_data else "dynamic-int8"
    assert [item.scheme for item in report.nodes if item.op_type == "MatMul"] == [scheme] * 6
    for shape in ((1, 32, 128), (3, 7, 128)):
        sample = {"x": floats(*shape, seed=9)}
        (expected,), (got,) = run(source.read_bytes(), sample), run(target.read_bytes(), sample)
        assert got.shape == expected.shape
        assert np.square(got - expected).sum() < 0.005 * np.square(expected).sum()
