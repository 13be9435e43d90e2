"""Examples of the codes TP30, TP31, TP33 and of contracts of backward rules (TP32)."""

from __future__ import annotations

_F = """
f = tp.library.custom_op("ex{code}::f", lambda x: x * 2.0, mutates_args=())
f.register_autograd({rule})
x = tp.ones((2,)).requires_grad_()
f(x).sum().backward()
"""


def _rule(code: int, rule: str) -> str:
    return _F.format(code=code, rule=rule)


EXAMPLES: dict[str, str] = {
    "TP3001": """
f = tp.library.custom_op("ex3001::f", lambda x: x * 2.0, mutates_args=())
f(tp.ones((2,)).requires_grad_()).sum().backward()
""",
    "TP3002": _rule(3002, "lambda ctx, grad: (grad, grad)"),
    "TP3003": """
x = tp.ones((2,)).requires_grad_()
y = x * 1.0
z = y * y
y.add_(1.0)
z.sum().backward()
""",
    "TP3004": """
x = tp.ones((2,)).requires_grad_()
y = tp.sum(x * x)
y.backward()
y.backward()
""",
    "TP3005": "tp.ones((2,)).sum().backward()",
    "TP3006": _rule(3006, "lambda ctx, grad: (tp.ones((3,)),)"),
    "TP3007": _rule(3007, "lambda ctx, grad: (grad.astype(tp.int64),)"),
    "TP3008": _rule(3008, 'lambda ctx, grad: (tp.empty((2,), device="meta"),)'),
    "TP3009": """
x = tp.ones((2,)).requires_grad_()
tp.autograd.backward([x.sum()], [None, None])
""",
    "TP3010": """
x = tp.ones((2,)).requires_grad_()
x.add_(1.0)
""",
    "TP3011": """
x = tp.ones((2,)).requires_grad_() * 1.0
with tp.autograd.no_grad():
    x.add_(1.0)
(x * 2.0).sum().backward()
""",
    "TP3012": "tp.ones((2,), dtype=tp.int64).requires_grad_()",
    "TP3013": """
x = tp.ones((2,)).requires_grad_() * 1.0
x.requires_grad = False
""",
    "TP3014": """
x = tp.ones((2,)).requires_grad_()
x.grad = tp.ones((3,))
""",
    "TP3015": "tp.ones((2,)).retain_grad()",
    "TP3016": """
x = tp.zeros((2,)).requires_grad_()
with tp.autograd.detect_anomaly():
    (tp.sqrt(x) * 0.0).sum().backward()
""",
    "TP3018": """
f = tp.library.custom_op("ex3018::f", lambda x: None, mutates_args=["x"], schema="(Tensor(a!) x) -> ()")
f(tp.ones((2,)).requires_grad_())
""",
    "TP3019": """
x = tp.zeros((2,))
view = x[:1]
x.add_(tp.ones((2,)).requires_grad_())
""",
    "TP3020": """
x, y = (tp.ones((2,)).requires_grad_() for _ in range(2))
tp.autograd.grad(x.sum(), y)
""",
    "TP3021": "(tp.ones((2,)).requires_grad_() * 2.0).backward()",
    "TP3022": """
x = tp.ones((2,)).requires_grad_()
y = tp.compile(lambda x: tp.sum(x * x))(x)
(g,) = tp.autograd.grad(y, x, create_graph=True)
g.sum().backward()
""",
    "TP3040": """
tp.ones((2,)).requires_grad_().to("meta")
""",
    "TP3041": """
import copy

copy.deepcopy(tp.ones((2,)).requires_grad_() * 2.0)
""",
    "TP3042": "tp.ones((2,)).requires_grad_().numpy()",
    "TP3105": """
f = tp.library.custom_op("ex3105::f", lambda x: x * 2.0, mutates_args=())
f.register_autograd(lambda ctx, grad: (grad,))
tp.autograd.gradcheck(f, (tp.ones((2,), dtype=tp.float64).requires_grad_(),))
""",
    "TP3208": """
class Double(tp.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        return grad, grad

Double.apply(tp.ones((2,)).requires_grad_()).sum().backward()
""",
    "TP3230": _rule(3230, "lambda ctx, grad: [grad]"),
    "TP3231": """
def f(xs: list[tp.Tensor]) -> tp.Tensor:
    return xs[0] * 2.0

f = tp.library.custom_op("ex3231::f", f, mutates_args=())
f.register_autograd(lambda ctx, grad: (grad,))
f([tp.ones((2,)).requires_grad_()]).sum().backward()
""",
    "TP3232": _rule(3232, "lambda ctx, grad: (1.0,)"),
    "TP3233": """
x = tp.ones((2,)).requires_grad_()
x.register_hook(lambda grad: 1.0)
x.sum().backward()
""",
    "TP3301": """
@tp.autograd.no_grad()
async def train(): ...
""",
    "TP3303": """
class Double(tp.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

Double.apply(tp.ones((2,)).requires_grad_()).sum().backward()
""",
    "TP3310": "tp.autograd.gradcheck(lambda x: x, (tp.ones((2,), dtype=tp.float64),))",
    "TP3311": "tp.autograd.gradcheck(lambda x: x * 2.0, (tp.ones((2,)).requires_grad_(),))",
    "TP3312": """
import itertools

count = itertools.count()
f = tp.library.custom_op("ex3312::f", lambda x: x * 2.0, mutates_args=())
f.register_autograd(lambda ctx, grad: (grad * float(next(count)),))
tp.autograd.gradcheck(f, (tp.ones((2,), dtype=tp.float64).requires_grad_(),))
""",
    "TP3313": """
x = tp.broadcast_to(tp.ones((1,), dtype=tp.float64), (2,)).requires_grad_()
tp.autograd.gradcheck(lambda x: x * 2.0, (x,))
""",
    "TP3314": """
def backward(ctx, grad):
    strides = (1, 2) if grad.is_contiguous() else (2, 1)
    factor = 1.0 if strides == (1, 2) else 3.0
    return (grad * 2.0 * factor,)

f = tp.library.custom_op("ex3314::f", lambda x: x * 2.0, mutates_args=())
f.register_autograd(backward)
tp.autograd.gradcheck(f, (tp.ones((2, 2), dtype=tp.float64).requires_grad_(),))
""",
}
