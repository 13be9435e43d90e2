"""Examples of the codes TP11 and TP15 to TP21: shapes, indices, arithmetic, writes, devices."""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "TP1101": "tp.ones((3,)) + tp.ones((4,))",
    "TP1102": "tp.broadcast_to(tp.ones((3,)), (2, 4))",
    "TP1103": "tp.reshape(tp.ones((6,)), (4, 2))",
    "TP1104": "tp.sum(tp.ones((2, 3)), axis=2)",
    "TP1105": "tp.permute_dims(tp.ones((2, 3)), (0, 0))",
    "TP1106": "tp.ones((3,))[3]",
    "TP1107": "tp.ops.tp.slice(tp.ones((3,)), 0, 0, 3, 0)",
    "TP1108": "tp.ones((3,))[0, 0]",
    "TP1109": "tp.zeros((-1,))",
    "TP1110": """
x = tp.ones((2,))
x.new_empty(0).set_(x.untyped_storage(), 0, (3,), (1,))
""",
    "TP1111": "tp.zeros((2**50,))",
    "TP1112": "tp.ones((2,)).item()",
    "TP1113": "tp.ones((2,))[tp.ones((2,))]",
    "TP1114": 'tp.ones((2,))["first"]',
    "TP1115": "tp.ones((2, 2))[..., ...]",
    "TP1116": "tp.ones((2,))[tp.tensor([True, False, True])]",
    "TP1117": "tp.ones((2, 2))[::-1, [0, 1]] = 2.0",
    "TP1118": "tp.ones((2,)).mT",
    "TP1120": "tp.tensor([[1.0], [2.0, 3.0]])",
    "TP1121": "tp.ones((2,)).add_(tp.ones((2, 2)))",
    "TP1122": "tp.ones((2, 3)).T.view((6,))",
    "TP1123": "tp.squeeze(tp.ones((2, 3)), axis=0)",
    "TP1124": "tp.tril(tp.ones((3,)))",
    "TP1125": "tp.roll(tp.ones((2, 2)), (1, 1, 1), axis=(0, 1))",
    "TP1126": "tp.concat([])",
    "TP1127": "tp.concat([tp.ones((2, 3)), tp.ones((2, 4))])",
    "TP1128": "tp.ops.tp.empty_strided((2, 2), (1,))",
    "TP1129": "tp.arange(0, 3, 0)",
    "TP1130": "tp.ops.tp.randint(5, 5, (2,))",
    "TP1131": "tp.sum(tp.ones((2, 3)), axis=(0, 0))",
    "TP1132": "tp.max(tp.ones((0,)))",
    "TP1133": "tp.ops.tp.softmax_backward(tp.ones((2, 3)), tp.ones((3, 2)), 0)",
    "TP1134": "tp.ones((2, 3)) @ tp.ones((2, 3))",
    "TP1135": "tp.ops.tp.index_select(tp.ones((3,)), 0, tp.zeros((1, 1), dtype=tp.int64))",
    "TP1136": "tp.ops.tp.gather(tp.ones((2, 2)), 0, tp.zeros((1, 3), dtype=tp.int64))",
    "TP1137": "tp.take_along_axis(tp.ones((2, 2)), tp.zeros((1,), dtype=tp.int64), axis=0)",
    "TP1138": "tp.ops.tp.index_add(tp.ones((3,)), 0, tp.tensor([0, 1]), tp.ones((3,)))",
    "TP1139": "tp.ones((3,))[[0, 1]] = tp.ones((3,))",
    "TP1140": "tp.searchsorted(tp.ones((2, 2)), tp.ones((2,)))",
    "TP1141": "tp.ops.tp.view_inside_backward(tp.ones((3,)), [1], [2], [1], 2)",
    "TP1142": "tp.ops.tp.normal((2,), std=-1.0)",
    "TP1150": "tp.ones((2, 3)).flatten(1, 0)",
    "TP1151": "tp.ones((4,)).split([1, 2])",
    "TP1152": "range(tp.tensor([1, 2]))",
    "TP1153": "tp.asarray([1.0], copy=False)",
    "TP1154": "tp.ones((2,), dtype=tp.uint8)[0] = 300",
    "TP1156": """
import numpy as np

tp.from_numpy(np.zeros(4, dtype="u1,f4")["f1"])
""",
    "TP1157": "tp.ones((2,)).set_(tp.ones((2,)).untyped_storage(), 0, (1,), (1,))",
    "TP1158": "tp.empty((0,)).set_(tp.ones((2,)).untyped_storage(), 0, (1,), (1, 1))",
    "TP1159": "tp._native.tensor_bytes(tp.ones((2, 3)).T)",
    "TP1160": 'tp._native.tensor_from_bytes(b"12345", tp.float32, (2,), copy=True)',
    "TP1161": "tp.ones((2,)).untyped_storage().copy_(tp.ones((3,)).untyped_storage())",
    "TP1170": """
f = tp.library.custom_op("ex1170::f", lambda x: x[x > 0.0], mutates_args=(), schema="(Tensor x) -> Tensor")
f.register_fake(lambda x: tp.empty((tp.library.get_ctx().new_dynamic_size(min=-1),)))
tp.graph.capture(f, tp.ones((2,)))
""",
    "TP1171": 'tp.check(tp.ones((2,)).shape[0] == 3, "wants three")',
    "TP1163": """
x = tp.ones((4,))
tp.save("/nonexistent/x.safetensors", {"whole": x, "part": x[:2]})
""",
    "TP1166": 'tp.save("/nonexistent/x.safetensors", {"__metadata__": tp.ones((2,))})',
    "TP1165": 'tp.save({"x": tp.ones((2,))}, "x.safetensors")',
    "TP1164": """
import tempfile, pathlib

path = pathlib.Path(tempfile.mkdtemp(), "x.safetensors")
path.write_bytes(b"not a safetensors file")
tp.load(path)
""",
    "TP1501": "tp.tensor([1]) // tp.tensor([0])",
    "TP1601": """
import numpy as np

array = np.ones(2, dtype="float32")
array.flags.writeable = False
tp.from_numpy(array).add_(1.0)
""",
    "TP1602": "tp.broadcast_to(tp.ones((1,)), (3,)).add_(1.0)",
    "TP2001": 'tp.ones((2,), device="cuda:99")',
    "TP2002": 'tp.ones((2,), device="gpu")',
    "TP2011": "tp.library.wrap_triton(len)",
    "TP2104": 'tp.ones((2,)) + tp.ones((2,), device="meta")',
    "TP2105": 'tp.empty((1,), device="meta").item()',
    "TP2106": 'tp.empty((2,), device="meta").tolist()',
}
