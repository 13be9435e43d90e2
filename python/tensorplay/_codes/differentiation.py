"""The codes TP30 to TP33, less those of batching rules, and examples: differentiation and contracts of kernels."""

from __future__ import annotations

TABLE: tuple[tuple[str, str, str], ...] = (
    (
        "TP3001",
        "The op has no backward rule.",
        "register one with register_autograd, or None if it has no gradient",
    ),
    (
        "TP3002",
        "backward returned the wrong number of gradients.",
        "return one per input, None where there is none",
    ),
    ("TP3003", "A saved tensor was written to since.", "clone before writing"),
    (
        "TP3004",
        "The graph was freed: its saved tensors are gone.",
        "pass retain_graph=True to the first backward",
    ),
    (
        "TP3005",
        "The output has no history to differentiate.",
        "compute it from tensors that require a gradient, outside of no_grad",
    ),
    ("TP3006", "A gradient has the wrong shape.", "sum it to the input's shape"),
    ("TP3008", "A gradient is on the wrong device.", "move it in backward"),
    ("TP3009", "The number of gradients given is not that of the outputs.", "give one per output"),
    (
        "TP3010",
        "An operation in place on what is needed for backward.",
        "use the form without the underscore",
    ),
    (
        "TP3011",
        "A tensor was written to behind the back of its history: under no_grad, through a detach() or by a kernel.",
        "write to the tensor itself while gradients are recorded, or clone it first",
    ),
    ("TP3012", "Only floating tensors can require gradients.", "convert with astype(float32)"),
    ("TP3013", "requires_grad of a computed tensor cannot be switched off.", "use detach()"),
    ("TP3014", "An assigned .grad is not like its tensor.", "check shape, dtype and device"),
    ("TP3015", "The tensor does not require a gradient.", "call requires_grad_() first"),
    ("TP3016", "A backward gave a NaN (anomaly detection).", "the note shows the forward call"),
    (
        "TP3017",
        "An op without a gradient writes to a tensor that requires one.",
        "write under no_grad, or to a detach()",
    ),
    (
        "TP3018",
        "A leaf, or an input of an op without a gradient, is written to.",
        "write under no_grad, or to a clone",
    ),
    ("TP3019", "A recorded value would be written to memory that others share.", "write to a clone"),
    ("TP3020", "An input does not influence the outputs.", "pass allow_unused=True to get None"),
    ("TP3021", "backward of more than one element needs a gradient.", "call sum() or pass gradient="),
    ("TP3022", "A second derivative through a compiled function.", "differentiate the eager function"),
    (
        "TP3023",
        "A tensor inside a dict, tuple or nested list requires a gradient.",
        "declare it as Tensor, Tensor? or a list of them, or pass x.detach()",
    ),
    (
        "TP3024",
        "A keyword-only tensor requires a gradient.",
        "make the argument positional, or pass x.detach()",
    ),
    (
        "TP3025",
        "A view that an op with a backward of its own returned meets a write to the memory behind it.",
        "clone() the result of the op first",
    ),
    (
        "TP3026",
        "The gradient of a captured while_loop, whose trips only a run knows.",
        "differentiate the eager function, or detach() what the loop takes",
    ),
    (
        "TP3040",
        "A move to another device is not recorded.",
        "move x.detach(), and set requires_grad on the copy",
    ),
    ("TP3041", "A computed tensor cannot be deep-copied.", "use detach() or clone()"),
    ("TP3042", "A tensor that requires a gradient cannot be lent to NumPy.", "use x.detach().numpy()"),
    (
        "TP3105",
        "gradcheck: analytic and numeric gradients disagree.",
        "the message shows both, by input and output",
    ),
    ("TP3201", "A kernel returned the wrong number of values.", "return what the schema declares"),
    ("TP3202", "A kernel returned a value of the wrong type.", "return what the schema declares"),
    (
        "TP3203",
        "An output shares memory with an argument or another output.",
        "return a clone, or declare the alias",
    ),
    ("TP3204", "A gradient does not fit its tensor.", "check shape, dtype and device"),
    ("TP3205", "A kernel broke the promise of its fake rule.", "make the two agree"),
    ("TP3206", "A backend returned the wrong number of tensors.", "report it to the backend"),
    ("TP3207", "A backend returned another tensor than promised.", "report it to the backend"),
    (
        "TP3208",
        "The backward of a Function returned the wrong gradients.",
        "return one per argument of apply",
    ),
    (
        "TP3209",
        "An output that the schema declares as an argument, or a view of one, is another tensor.",
        "return what was written to, or declare a new tensor",
    ),
    ("TP3210", "A kernel failed in Triton's interpreter.", "the note has its output"),
    (
        "TP3211",
        "A kernel returned a tensor that requires a gradient already.",
        "return t.detach().clone(); tensors that need a gradient are arguments",
    ),
    (
        "TP3212",
        "backward returned a gradient for what is no floating-point tensor.",
        "return None in its place",
    ),
    ("TP3213", "mark_non_differentiable was given something else than an output.", "pass the call's outputs"),
    (
        "TP3214",
        "mark_dirty outside of a Function, or of what is not both an input and an output.",
        "declare writes of an op in mutates_args",
    ),
    (
        "TP3216",
        "A kernel that ran on values returned a tensor without data.",
        "make outputs on the device of the arguments, and keep no tensor of a capture or of vmap",
    ),
    (
        "TP3217",
        "A backward rule or a hook wrote to what it was given: a gradient, a tensor to keep (in debug mode, what was saved).",
        "return a new tensor",
    ),
    ("TP3230", "backward returned a list.", "return a tuple, one gradient per input"),
    (
        "TP3231",
        "The gradient of a list is no list like it.",
        "return one entry per tensor, None where there is none",
    ),
    ("TP3232", "A gradient is neither a tensor nor None.", "return tensors"),
    ("TP3233", "A hook returned neither a tensor nor None.", "return a new gradient or nothing"),
    (
        "TP3250",
        "The size of an output is outside of the range that its fake rule declared.",
        "mend the kernel, or min and max of new_dynamic_size",
    ),
    (
        "TP3251",
        "Sizes of outputs do not agree as the fake rule says they do.",
        "mend the kernel, or use a new_dynamic_size for each",
    ),
    (
        "TP3241",
        "A kernel wrote to an argument that the schema does not declare (debug mode).",
        "name the argument in mutates_args, or work on a clone()",
    ),
    (
        "TP3242",
        "A kernel that fills its outputs has none to fill, or returned something.",
        "register a fake rule, and return nothing",
    ),
    (
        "TP3243",
        "A predicate (when=) returned something else than True or False.",
        "write the condition out, as in x.ndim == 2",
    ),
    ("TP3301", "A grad-mode decorator on a coroutine.", "enter the context around steps that do not await"),
    ("TP3303", "A Function without a backward.", "define one"),
    ("TP3304", "Saved tensors were read after setup and before backward.", "read them inside of backward"),
    (
        "TP3305",
        "A Tensor is wanted, and something else was given.",
        "pass tensors, or None where it is allowed",
    ),
    ("TP3306", "A hook that cannot be called.", "pass a function"),
    (
        "TP3307",
        "A backward marked with once_differentiable was differentiated.",
        "write it with differentiable operations",
    ),
    (
        "TP3308",
        "A checkpointed function did something else when it ran again.",
        "it must not depend on what changes in between",
    ),
    ("TP3309", "An empty list of inputs for backward.", "name a tensor, or leave it out"),
    ("TP3310", "gradcheck: nothing requires a gradient.", "set requires_grad on an input"),
    ("TP3311", "gradcheck: finite differences need float64.", "convert the inputs"),
    ("TP3312", "gradcheck: two backward calls disagree.", "make backward deterministic, or raise nondet_tol"),
    ("TP3313", "gradcheck: an input has elements that share memory.", "pass x.clone()"),
    (
        "TP3314",
        "gradcheck: the gradient depends on the memory order of the cotangent.",
        "read it by its strides",
    ),
    ("TP3315", "materialize_grads=True with allow_unused=False.", "leave allow_unused out"),
    ("TP3316", "A context was left where it had not been entered.", "enter and leave it on one thread"),
    (
        "TP3317",
        "ctx.saved_tensors was read in a backward rule that has no setup_context.",
        "pass setup_context= to register_autograd, and save there",
    ),
    ("TP3321", "gradgradcheck: a gradient is cut off the tape.", "make backward of recorded ops"),
    ("TP3322", "gradcheck: backward needs the gradients of all outputs.", "take None where there is none"),
    ("TP3323", "gradcheck: a mode of checking that does not exist here.", "leave the option at its default"),
    ("TP3324", "A reentrant checkpoint was asked for.", "leave use_reentrant out, or pass False"),
)

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
    "TP3023": """
f = tp.library.custom_op(
    "ex3023::f", lambda xs: xs["x"].clone(), mutates_args=(), schema="(Dict(str, Tensor) xs) -> Tensor"
)
f({"x": tp.ones((2,)).requires_grad_()})
""",
    "TP3024": """
f = tp.library.define("ex3024::f", "(Tensor x, *, Tensor w) -> Tensor")
f.register_kernel("cpu", lambda x, w: x * w)
f.register_autograd(lambda ctx, grad: grad)
f(tp.ones((2,)), w=tp.ones((2,)).requires_grad_())
""",
    "TP3025": """
f = tp.library.define("ex3025::f", "(Tensor(a) x) -> Tensor(a)")
f.register_kernel("cpu", lambda x: x[:1])
f.register_autograd(lambda ctx, grad: tp.broadcast_to(grad, (2,)))
f(tp.ones((2,)).requires_grad_() * 1.0).mul_(2.0)
""",
    "TP3026": """
def f(x):
    return tp.while_loop(lambda y: y.sum() < 9.0, lambda y: y * 2.0, (x,))[0]

tp.compile(f)(tp.ones((2,)).requires_grad_())
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
    "TP3212": """
f = tp.library.custom_op("ex3212::f", lambda x, n: x * n, mutates_args=(), schema="(Tensor x, int n) -> Tensor")
f.register_autograd(lambda ctx, grad: (grad, grad))
f(tp.ones((2,)).requires_grad_(), 2).sum().backward()
""",
    "TP3213": """
class Double(tp.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_non_differentiable(x)
        return x * 2.0

Double.apply(tp.ones((2,)).requires_grad_())
""",
    "TP3214": """
class Double(tp.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x * 2.0

Double.apply(tp.ones((2,)).requires_grad_())
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
    "TP3304": """
class Double(tp.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        kept.append(ctx)
        return x * 2.0

kept = []
Double.apply(tp.ones((2,)).requires_grad_())
kept[0].saved_tensors
""",
    "TP3305": "tp.autograd.grad([3], [tp.ones((2,)).requires_grad_()])",
    "TP3306": "(tp.ones((2,)).requires_grad_() * 2.0).register_hook(3)",
    "TP3307": """
class Square(tp.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @tp.autograd.once_differentiable
    def backward(ctx, grad):
        return grad * 2.0 * ctx.saved_tensors[0]

x = tp.ones((2,)).requires_grad_()
(g,) = tp.autograd.grad(Square.apply(x).sum(), x, create_graph=True)
g.sum().backward()
""",
    "TP3308": """
runs = []

def f(x):
    runs.append(1)
    return x * x if len(runs) == 1 else x * x * x

tp.autograd.checkpoint(f, tp.ones((2,)).requires_grad_()).sum().backward()
""",
    "TP3309": "tp.autograd.backward(tp.ones((2,)).requires_grad_().sum(), inputs=[])",
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
    "TP3315": """
x = tp.ones((2,)).requires_grad_()
tp.autograd.grad(x.sum(), x, materialize_grads=True, allow_unused=False)
""",
    "TP3316": "tp.no_grad().__exit__(None, None, None)",
    "TP3317": """
f = tp.library.custom_op("ex3317::f", lambda x: x * x, mutates_args=(), schema="(Tensor x) -> Tensor")
f.register_autograd(lambda ctx, grad: 2.0 * grad * ctx.saved_tensors[0])
f(tp.ones((2,)).requires_grad_()).sum().backward()
""",
    "TP3321": """
f = tp.library.custom_op("ex3321::f", lambda x, y: x * y, mutates_args=())

def backward(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * y, (grad * x).detach()

f.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
x, y = (tp.ones((2,), dtype=tp.float64).requires_grad_() for _ in range(2))
tp.autograd.gradgradcheck(f, (x, y))
""",
    "TP3322": """
f = tp.library.custom_op(
    "ex3322::f", lambda x: (x * 2.0, x * 3.0), mutates_args=(), schema="(Tensor x) -> (Tensor, Tensor)"
)
f.register_autograd(
    lambda ctx, a, b: a * 2.0 + b * 3.0,
    setup_context=lambda ctx, inputs, output: ctx.set_materialize_grads(False),
)
tp.autograd.gradcheck(f, (tp.ones((2,), dtype=tp.float64).requires_grad_(),))
""",
    "TP3323": """
x = tp.ones((2,), dtype=tp.float64).requires_grad_()
tp.autograd.gradcheck(tp.exp, (x,), check_forward_ad=True)
""",
    "TP3324": "tp.autograd.checkpoint(tp.exp, tp.ones((2,)).requires_grad_(), use_reentrant=True)",
}
