"""The codes of functional transforms, autocast and vmap (TP34, TP3291, TP4021 to TP4023), and their examples."""

from __future__ import annotations

TABLE: tuple[tuple[str, str, str], ...] = (
    ("TP3291", "A batching rule returned something else than (output, out_dims).", "see the message"),
    ("TP3401", "vmap: in_dims, out_dims or randomness do not fit.", "one entry per argument or result"),
    ("TP3402", "vmap: the batch axes differ in size.", "in_dims names the axis to go over"),
    ("TP3403", "vmap: a random op, and samples may not share or not differ.", "pass randomness= to vmap"),
    ("TP3404", "vmap: an empty batch and an op without a batching rule.", "register one with register_vmap"),
    ("TP3405", "vmap: a result that differs from sample to sample in shape or value.", "pad, or use a loop"),
    (
        "TP3406",
        "vmap: the function returned something else than tensors.",
        "return tensors and nests of them",
    ),
    ("TP3411", "tp.func: argnums or an argument that cannot be differentiated.", "name floating tensors"),
    ("TP3412", "vjp: cotangents that do not fit the output.", "nest and shape them like the output"),
    ("TP3413", "tp.func: the function's result is not what the transform takes.", "see the message"),
    (
        "TP3414",
        "A transform inside of a kernel, where nothing is recorded.",
        "differentiate outside of the op",
    ),
    ("TP3415", "jvp: a backward rule is cut off the tape.", "make backward of recorded ops"),
    ("TP3416", "The tape was asked for gradients of single samples.", "use tp.func.grad inside of vmap"),
    ("TP3420", "No autocast for this device.", "use 'cpu' or 'cuda'"),
    ("TP3421", "A dtype that autocast cannot cast to.", "use bfloat16, float16 or float32"),
    ("TP4021", "A value was read that differs from sample to sample.", "use where() instead of if"),
    ("TP4022", "A batched tensor was used outside of its vmap.", "return it from the function"),
    ("TP4023", "A write of differing values to a tensor that all samples share.", "batch that argument too"),
)

EXAMPLES: dict[str, str] = {
    "TP3291": """
f = tp.library.custom_op("ex3291::f", lambda x: x * 2.0, mutates_args=())
f.register_vmap(lambda info, in_dims, x: f(x))
tp.func.vmap(f)(tp.ones((2,)))
""",
    "TP3401": "tp.func.vmap(tp.sqrt, in_dims=1)(tp.ones((2,)))",
    "TP3402": "tp.func.vmap(tp.add)(tp.ones((2,)), tp.ones((3,)))",
    "TP3403": "tp.func.vmap(lambda x: x + tp.uniform((2,)))(tp.ones((2,)))",
    "TP3404": """
f = tp.library.custom_op("ex3404::f", lambda x: x * 2.0, mutates_args=())
tp.func.vmap(f)(tp.ones((0,)))
""",
    "TP3405": "tp.func.vmap(tp.nonzero)(tp.tensor([[0, 1], [1, 1]]))",
    "TP3406": "tp.func.vmap(lambda x: 1.0)(tp.ones((2,)))",
    "TP3411": "tp.func.grad(lambda x: x * x)(3.0)",
    "TP3412": """
y, pull = tp.func.vjp(tp.sqrt, tp.ones((2,)))
pull(tp.ones((3,)))
""",
    "TP3413": "tp.func.grad(tp.sqrt)(tp.ones((2,)))",
    "TP3414": """
f = tp.library.custom_op("ex3414::f", lambda x: tp.func.grad(tp.sum)(x), mutates_args=())
f(tp.ones((2,)).requires_grad_())
""",
    "TP3415": """
f = tp.library.custom_op("ex3415::f", lambda x: x * 3.0, mutates_args=())
f.register_autograd(lambda ctx, grad: grad.detach() * 3.0)
tp.func.jvp(f, (tp.ones((2,)),), (tp.ones((2,)),))
""",
    "TP3416": "tp.func.vmap(lambda x: x.requires_grad_())(tp.ones((2,)))",
    "TP3420": 'tp.autocast("meta")',
    "TP3421": 'tp.autocast("cpu", dtype=tp.float64)',
    "TP4021": "tp.func.vmap(lambda x: x if x > 0 else -x)(tp.ones((2,)))",
    "TP4022": """
kept = []
tp.func.vmap(lambda x: kept.append(x) or x)(tp.ones((2,)))
kept[0] + 1.0
""",
    "TP4023": """
total = tp.zeros(())
tp.func.vmap(lambda x: total.add_(x))(tp.ones((2,)))
""",
}
