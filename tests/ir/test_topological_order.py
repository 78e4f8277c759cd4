"""What a node needs, with what its bodies read."""

from __future__ import annotations

from onnx import parser

from onnxq.ir import parse
from onnxq.ir.topological_order import reads

LOOP = """
<ir_version: 8, opset_import: ["": 17]>
g (float[2] x, float[2] w) => (float[2] y) {
    n = Constant <value_int = 2> ()
    go = Constant <value = bool {1}> ()
    y = Loop (n, go, x) <body = body (int64 turn, bool on, float[2] state) => (bool on_too, float[2] next) {
        on_too = Identity (on)
        next = Add (state, w)
    }>
}
"""


def test_a_loop_reads_what_is_outside_of_its_body() -> None:
    model = parse(parser.parse_model(LOOP).SerializeToString())
    loop = model.graph.nodes[-1]
    assert [value.name for value in reads(loop)] == ["n", "go", "x", "w"]
