"""Examples of the codes TP40 to TP50: capture, fallbacks, graphs."""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "TP4001": """
f = tp.library.custom_op("ex4001::f", lambda x: x.clone(), mutates_args=())
tp.compile(f)(tp.ones((2,)))
""",
    "TP4002": """
f = tp.library.custom_op("ex4002::f", lambda x: x[x > 0.0], mutates_args=(), schema="(Tensor x) -> Tensor")
f.register_fake(lambda x: tp.empty((tp.library.get_ctx().new_dynamic_size(),)))
tp.compile(lambda x: f(x) if f(x).shape[0] > 1 else x)(tp.ones((2,)))
""",
    "TP4003": "tp.compile(lambda x: x if x.sum() > 0 else -x)(tp.ones((2,)))",
    "TP4004": """
kept = []
tp.graph.capture(lambda x: kept.append(x) or x + 1.0, tp.ones((2,)))
tp.graph.capture(lambda x: x + kept[0], tp.ones((2,)))
""",
    "TP4005": "tp.graph.capture(lambda x: x + x.data_ptr(), tp.ones((2,)))",
    "TP4006": """
f = tp.library.custom_op("ex4006::f", lambda x, any: x.clone(), mutates_args=(), schema="(Tensor x, Any any) -> Tensor")
f.register_fake(lambda x, any: tp.empty_like(x))
tp.graph.capture(lambda x: f(x, object()), tp.ones((2,)))
""",
    "TP4007": """
w = tp.ones((2,)).requires_grad_()
tp.compile(lambda x: x.add_(w))(tp.zeros((2,)))
""",
    "TP4008": """
b = tp.ones((2,))

def f(x):
    y = x * b
    b.add_(1.0)
    return y.sum()

tp.compile(f)(tp.ones((2,)).requires_grad_())
""",
    "TP4010": """
data = []
data.append(data)
tp.compile(lambda data: data)(data)
""",
    "TP4011": """
f = tp.compile(lambda x: x * 2.0)
tp.graph.capture(lambda x: f.explain(x) and x, tp.ones((2,)))
""",
    "TP4012": """
kept = []
tp.graph.capture(lambda x: kept.append(x) or x + 1.0, tp.ones((2,)))
kept[0] + 1.0
""",
    "TP4013": """
tp.graph.capture(lambda x: tp.from_dlpack(x), tp.ones((2,)))
""",
    "TP4016": """
f = tp.library.custom_op("ex4016::f", lambda x: {"a": 1}, mutates_args=(), schema="(Tensor x) -> Dict(str, int)")
f.register_fake(lambda x: {"a": 1})
tp.graph.capture(f, tp.ones((2,)))
""",
    "TP4017": "tp.library.get_ctx()",
    "TP4018": """
f = tp.library.custom_op("ex4018::f", lambda x: x[x > 0.0], mutates_args=(), schema="(Tensor x) -> Tensor")
f.register_fake(lambda x: tp.empty((tp.library.get_ctx().new_dynamic_size(),)))
f(tp.empty((2,), device="meta"))
""",
    "TP4019": """
f = tp.library.custom_op("ex4019::f", lambda x: x[x > 0.0], mutates_args=(), schema="(Tensor x) -> Tensor")
f.register_fake(lambda x: tp.empty((tp.library.get_ctx().new_dynamic_size(),)))
kept = []
tp.graph.capture(lambda x: kept.append(f(x).shape[0]), tp.ones((2,)))
tp.zeros((kept[0],))
""",
    "TP4020": """
f = tp.library.custom_op("ex4020::f", lambda x: x[x > 0.0], mutates_args=(), schema="(Tensor x) -> Tensor")

def fake(x):
    ctx = tp.library.get_ctx()
    return tp.empty((ctx.new_dynamic_size() * ctx.new_dynamic_size(),))

f.register_fake(fake)
tp.graph.capture(f, tp.ones((2,)))
""",
    "TP4024": """
seen = tp.zeros((2,))
f = tp.library.custom_op("ex4024::f", lambda x: x.clone(), mutates_args=())
f.register_fake(lambda x: tp.empty_like(seen.copy_(x)))
tp.compile(f)(tp.ones((2,)))
""",
    "TP4030": "tp.compile(lambda x: x * x._version)(tp.ones((2,)))",
    "TP4031": "tp.compile(lambda x: tp.manual_seed(7) or x + tp.normal((2,)))(tp.ones((2,)))",
    "TP4032": "tp.compile(lambda x, seen: seen.append(x) or x * 2.0)(tp.ones((2,)), [])",
    "TP4033": "tp.compile(lambda x: {x + 1.0})(tp.ones((2,)))",
    "TP4034": "tp.compile(lambda y: y.add_(1.0))(tp.ones((2,)).requires_grad_() * 2.0)",
    "TP4035": """
w = tp.ones((2,)).requires_grad_()
tp.compile(lambda x: tp.autograd.grad(tp.sum(x * w), [w])[0])(w * 2.0)
""",
    "TP4040": """
x = tp.ones((4,))
tp.compiler.mark_dynamic(x, 0)
tp.compile(lambda x: x.reshape((4,)))(x)
""",
    "TP4036": "import time\ntp.compile(lambda x: x * time.time())(tp.ones((2,)))",
    "TP4037": """
def f(x):
    memory = bytearray(8)
    t = tp.asarray(memory)
    y = t + x
    memory[0] = 1
    return y + t

tp.compile(f)(tp.zeros((8,), dtype=tp.uint8))
""",
    "TP4106": "tp.compile(3)",
    "TP4107": 'tp.compile(lambda x: x + 1.0, backend="none")',
    "TP4105": "tp.compile(lambda x: x + 1.0, backend=None)",
    "TP4101": """
tp.compile(lambda x: tp.sum(x), backend="tvm", on_fallback="error")(tp.ones((2,)))
""",
    "TP5001": 'tp.graph.parse("graph(")',
    "TP5010": 'tp._native.pointwise_program("tp::sum", [tp.float32])',
}
