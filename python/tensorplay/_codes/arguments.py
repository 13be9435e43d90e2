"""Examples of the codes TP10 to TP12, less those of shapes: arguments, schemas, annotations, element types."""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "TP1001": 'tp.library.Schema.parse("f(Tensor x -> Tensor")',
    "TP1002": 'tp.sqrt("4")',
    "TP1003": "tp.reshape(tp.ones((2,)))",
    "TP1004": "tp.sqrt(tp.ones((2,)), x=tp.ones((2,)))",
    "TP1005": "tp.sqrt(tp.ones((2,)), 1)",
    "TP1006": "tp.sqrt(x=tp.ones((2,)), y=1)",
    "TP1007": "tp.ones((2,)) + 2**64",
    "TP1009": 'tp.zeros((2, "3"))',
    "TP1012": 'tp.ops.tp.add("a", "b")',
    "TP1013": "pow(tp.ones((2,)), 2, 3)",
    "TP1014": "tp.ones((2, 2)) @ 2",
    "TP1015": "tp.ones((2,))[0] = object()",
    "TP1016": "del tp.ones((2,))[0]",
    "TP1017": "len(tp.tensor(1.0))",
    "TP1018": "list(tp.tensor(1.0))",
    "TP1019": 'tp.tensor([1.0, "two"])',
    "TP1020": """
data = []
data.append(data)
tp.tensor(data)
""",
    "TP1021": 'tp.library.custom_op("ex1021::f", lambda x: None, mutates_args="x")',
    "TP1022": 'tp.library.custom_op("ex1022::f", lambda x: None, mutates_args=[0])',
    "TP1023": 'tp.library.custom_op("ex1023::f", lambda x: None, mutates_args=["y"])',
    "TP1024": """
def f(x: tp.Tensor, n: int) -> None: ...

tp.library.custom_op("ex1024::f", f, mutates_args=["n"])
""",
    "TP1025": 'tp.library.custom_op("ex1025::f", type, mutates_args=())',
    "TP1026": 'tp.library.custom_op("ex1026::f", lambda *xs: None, mutates_args=())',
    "TP1027": """
def f(x: "NoSuchName") -> tp.Tensor: ...

tp.library.custom_op("ex1027::f", f, mutates_args=())
""",
    "TP1028": """
def f(x: set) -> tp.Tensor: ...

tp.library.custom_op("ex1028::f", f, mutates_args=())
""",
    "TP1029": """
def f(x: tp.Tensor, n=object()) -> tp.Tensor: ...

tp.library.custom_op("ex1029::f", f, mutates_args=())
""",
    "TP1030": """
def f(x: tp.Tensor, n: int = "two") -> tp.Tensor: ...

tp.library.custom_op("ex1030::f", f, mutates_args=())
""",
    "TP1031": """
def f(x: tp.Tensor) -> set: ...

tp.library.custom_op("ex1031::f", f, mutates_args=())
""",
    "TP1032": 'tp.library.custom_op("ex1032::f", lambda x: None, mutates_args=(), tags=("inplace",))',
    "TP1033": """
f = tp.library.custom_op("ex1033::f", lambda x, n: x.clone(), mutates_args=(), schema="(Tensor x, int[2] n) -> Tensor")
f(tp.ones((2,)), [1, 2, 3])
""",
    "TP1040": "tp.ones((2,)).size(0)",
    "TP1041": 'tp.gelu(tp.ones((2,)), approximate="cubic")',
    "TP1042": "del tp.ones((2,)).requires_grad",
    "TP1043": "tp.ones((2,)).grad = 1.0",
    "TP1044": "tp.full((2,), tp.tensor(1.0, requires_grad=True))",
    "TP1048": "tp.manual_seed(-1)",
    "TP1049": "tp.Tensor(3)",
    "TP1202": "-tp.ones((2,), dtype=tp.bool)",
    "TP1203": "tp.ops.tp.uniform((2,), dtype=tp.int64)",
    "TP1204": """
x = tp.ones((2, 2), dtype=tp.bool)
x @ x
""",
    "TP1205": "tp.take(tp.ones((2,)), tp.ones((2,)))",
    "TP1221": "tp.ones((2,), dtype=tp.int64).add_(0.5)",
    "TP1230": 'tp.from_numpy(tp.ones((2,)).numpy().astype("complex64"))',
    "TP1231": "tp._native.tensor_alias_as(tp.ones((2,)), tp.float64)",
    "TP1232": "range(tp.tensor(1.0))",
}
