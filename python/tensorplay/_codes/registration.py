"""Examples of the codes TP13, TP14, TP21, TP32 and TP39: registrations, the choice of a kernel, and contracts."""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "TP1301": 'tp.library.get_op("ex1301::nothing")',
    "TP1302": """
tp.library.custom_op("ex1302::f", lambda x: x.clone(), mutates_args=())
exec("tp.library.custom_op('ex1302::f', lambda x, y: x.clone(), mutates_args=())")
""",
    "TP1305": """
lib = tp.library.Library("ex1305", "DEF")
f = lib.define("f(Tensor x) -> Tensor")
op = tp.library.get_op("ex1305::f")
lib._destroy()
op(tp.ones((2,)))
""",
    "TP1310": "tp.library.register_fake(3, lambda x: x)",
    "TP1311": """
lib = tp.library.Library("ex1311", "DEF")
lib.define("f.one(Tensor x) -> Tensor")
lib.define("f.two(Tensor x, int n) -> Tensor")
tp.library.register_fake(tp.ops.ex1311.f, lambda x: tp.empty_like(x))
""",
    "TP1312": 'tp.library.custom_op("ex1312::f", lambda x: x.clone(), mutates_args=(), device_types="gpu")',
    "TP1313": 'tp.library.custom_op("ex1313::f", lambda x: x.clone(), mutates_args=(), effects="slow")',
    "TP1314": 'tp.library.custom_op("ex1314::f", lambda x: x.clone(), mutates_args=(), layout={"y": "any"})',
    "TP1315": """
f = tp.library.custom_op("ex1315::f", lambda x: x.clone(), mutates_args=())
f.register_fake(lambda: None)
""",
    "TP1316": 'tp.library.custom_op("ex1316::f", "no function", mutates_args=())',
    "TP1317": """
f = tp.library.custom_op(
    "ex1317::f", lambda x: None, mutates_args=["x"], schema="(Tensor(a!) x) -> ()", layout={"x": "contiguous"}
)
f(tp.ones((2, 3)).T)
""",
    "TP1318": """
f = tp.library.custom_op("ex1318::f", lambda x: x.clone(), mutates_args=())
f.register_fake(lambda x: tp.empty_like(x))
tp.library.register_fake("ex1318::f", lambda x: tp.empty_like(x), allow_override=False)
""",
    "TP1319": 'tp.library.get_op("tp::sqrt").register_fake(tp.library.fake_from_body)',
    "TP1320": """
f = tp.library.custom_op("ex1320::f", lambda x: None, mutates_args=["x"], schema="(Tensor(a!) x) -> ()")
f.register_autograd(lambda ctx: None)
""",
    "TP1321": """
f = tp.library.custom_op("ex1321::f", lambda x: x.clone(), mutates_args=())
f.prefer("flash").__enter__()
""",
    "TP1322": "tp.library.custom_op(3, lambda x: x.clone(), mutates_args=())",
    "TP1323": 'tp.library.custom_op("f", lambda x: x.clone(), mutates_args=())',
    "TP1324": 'tp.library.custom_op("tp::f", lambda x: x.clone(), mutates_args=())',
    "TP1325": """
tp.library.custom_op(
    "ex1325::f", lambda x: x.clone(), mutates_args=(), schema="ex1325::g(Tensor x) -> Tensor"
)
""",
    "TP1326": """
tp.library.custom_op("ex1326::f", lambda x: None, mutates_args=(), schema="(Tensor(a!) x) -> ()")
""",
    "TP1327": """
def f(n: int) -> tp.Tensor: ...

tp.library.custom_op("ex1327::f", f, mutates_args=(), device_types="cpu")
""",
    "TP1328": """
def f(x: tp.Tensor, *, w: tp.Tensor) -> tp.Tensor: ...

tp.library.custom_op("ex1328::f", f, mutates_args=())
""",
    "TP1329": """
tp.library.define("ex1329::f(Tensor(a!) x) -> Tensor(a!)", tags=("inplace", "out"))
""",
    "TP1330": 'tp.library.Library("ex1330", "NEW")',
    "TP1331": """
first = tp.library.Library("ex1331", "DEF")
tp.library.Library("ex1331", "DEF")
""",
    "TP1332": """
lib = tp.library.Library("ex1332", "DEF")
lib._destroy()
lib.define("f(Tensor x) -> Tensor")
""",
    "TP1333": 'tp.library.Library("ex1333", "IMPL").define("f(Tensor x) -> Tensor")',
    "TP1334": """
lib = tp.library.Library("ex1334", "DEF")
lib.define("f(Tensor x) -> Tensor")
lib.impl("f", lambda x: x.clone(), "Autograd")
""",
    "TP1335": """
lib = tp.library.Library("ex1335", "DEF")
lib.define("f(Tensor x) -> Tensor")
lib.impl("f", lambda x: x.clone(), "CPU")
lib.impl("f", lambda x: x.clone(), "CPU")
""",
    "TP1338": 'tp.library.define("ex1338::f.name(Tensor x) -> Tensor")',
    "TP1336": 'tp.library.Library("ex1336", "DEF").define("other::f(Tensor x) -> Tensor")',
    "TP1337": "tp.trace().__exit__(None, None, None)",
    "TP1339": """
f = tp.library.custom_op("ex1339::f", lambda x: 1, mutates_args=(), schema="(Tensor x) -> int")
f.register_kernel("cpu", lambda x, out: None, out=True)
""",
    "TP1401": """
f = tp.library.custom_op("ex1401::f", lambda x: x.clone(), mutates_args=(), device_types="cuda")
f(tp.ones((2,)))
""",
    "TP1402": """
lib = tp.library.Library("ex1402", "DEF")
lib.define("f(Tensor x) -> Tensor")
f = tp.library.get_op("ex1402::f")
f.register_kernel("cpu", lambda x: x.clone(), when=lambda x: False)
f(tp.ones((2,)))
""",
    "TP2107": 'tp.library.get_kernel("tp::sqrt", "cpu")(tp.ones((2,), device="meta"))',
    "TP3201": """
f = tp.library.custom_op("ex3201::f", lambda x: None, mutates_args=(), schema="(Tensor x) -> (Tensor, Tensor)")
f(tp.ones((2,)))
""",
    "TP3202": """
f = tp.library.custom_op("ex3202::f", lambda x: 1, mutates_args=(), schema="(Tensor x) -> Tensor")
f(tp.ones((2,)))
""",
    "TP3203": """
f = tp.library.custom_op("ex3203::f", lambda x: x, mutates_args=())
f(tp.ones((2,)))
""",
    "TP3205": """
f = tp.library.custom_op("ex3205::f", lambda x: x.clone(), mutates_args=())
f.register_fake(lambda x: tp.empty((7,)))
tp.compile(f)(tp.ones((2,)))
""",
    "TP3209": """
f = tp.library.custom_op("ex3209::f", lambda x: x.clone(), mutates_args=(), schema="(Tensor(a) x) -> Tensor(a)")
f(tp.ones((2,)))
""",
    "TP3211": """
f = tp.library.custom_op("ex3211::f", lambda x: x.clone().requires_grad_(), mutates_args=())
f.register_autograd(lambda ctx, grad: grad)
f(tp.ones((2,)).requires_grad_())
""",
    "TP3216": """
f = tp.library.custom_op("ex3216::f", lambda x: tp.empty((2,), device="meta"), mutates_args=())
f(tp.ones((2,)))
""",
    "TP3217": """
f = tp.library.custom_op("ex3217::f", lambda x: x * 2.0, mutates_args=())
f.register_autograd(lambda ctx, grad: grad.mul_(2.0))
f(tp.ones((2,)).requires_grad_()).backward(tp.ones((2,)))
""",
    "TP3250": """
f = tp.library.custom_op("ex3250::f", lambda x: x[x > 0.0], mutates_args=(), schema="(Tensor x) -> Tensor")
f.register_fake(lambda x: tp.empty((tp.library.get_ctx().new_dynamic_size(max=1),)))
tp.compile(f)(tp.ones((2,)))
""",
    "TP3251": """
schema = "(Tensor x) -> (Tensor, Tensor)"
f = tp.library.custom_op("ex3251::f", lambda x: (x[x > 0.0], x[x <= 0.0]), mutates_args=(), schema=schema)

def fake(x):
    n = tp.library.get_ctx().new_dynamic_size()
    return tp.empty((n,)), tp.empty((n,))

f.register_fake(fake)
tp.compile(f)(tp.ones((2,)))
""",
    "TP3241": """
f = tp.library.custom_op("ex3241::f", lambda x: x.add_(1.0).clone(), mutates_args=())
with tp.library.debug_checks():
    f(tp.ones((2,)))
""",
    "TP3242": """
f = tp.library.define("ex3242::f", "(Tensor x) -> Tensor")
f.register_kernel("cpu", lambda x, out: out.copy_(x), out=True)
f(tp.ones((2,)))
""",
    "TP3243": """
f = tp.library.custom_op("ex3243::f", lambda x: x.clone(), mutates_args=())
f.register_kernel("cpu", lambda x: x.clone(), name="flat", when=lambda x: x)
f(tp.ones((2,)))
""",
    "TP3901": """
f = tp.library.custom_op("ex3901::f", lambda x: x.clone(), mutates_args=())
f.register_fake(lambda x: tp.empty((7,)))
tp.verify(f, (tp.ones((2,)),)).raise_if_failed()
""",
    "TP3902": "tp.verify(lambda x: x)",
    "TP3903": 'tp.verify("tp::sqrt", tp.ones((2,)))',
    "TP3904": 'tp.library.opcheck("tp::sqrt", (tp.ones((2,)),), test_utils="test_nothing")',
    "TP3907": "tp.library.opcheck(tp.ops.tp.sqrt, tp.ones((2,)))",
    "TP3905": 'tp.library.opcheck("tp::sqrt", (tp.ones((2,)),), rtol=1e-3)',
    "TP3906": """
lib = tp.library.Library("ex3906", "DEF")
lib.define("f.one(Tensor x) -> Tensor")
lib.define("f.two(Tensor x, int n) -> Tensor")
tp.library.opcheck(tp.ops.ex3906.f, (tp.ones((2,)),))
""",
}
