"""The public functions: the built-in ops under their names and the other names people use.

Lives here: the builtins themselves, for a Python wrapper would cost more than most calls, and the few functions whose
arguments an op cannot take as they are (`approximate=`, one-sided `clamp`, `copy=`). Not here: tensors from and to
other libraries (the extension) and what an op does (its docstring, made from its row in the op table).
"""

from __future__ import annotations

from tensorplay import _arguments, _native
from tensorplay.errors import ArgumentError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from tensorplay._native import Builtin, Tensor, dtype
else:
    from tensorplay._later import hints as _hints

    (Builtin,) = _hints("types", "BuiltinFunctionType")
    Tensor, dtype = _native.Tensor, _native.dtype

_builtins = _native.builtins


def _overload(name: str) -> Builtin:
    """One overload alone, where the arguments do not tell overloads apart."""
    found = _native.get_op(name)
    if found is None:
        raise ImportError(f"the extension has no operator {name}; it does not belong to this version")
    return found


# Elementwise, one operand
positive: Builtin = _builtins["positive"]
neg: Builtin = _builtins["neg"]
abs: Builtin = _builtins["abs"]
sign: Builtin = _builtins["sign"]
square: Builtin = _builtins["square"]
sqrt: Builtin = _builtins["sqrt"]
rsqrt: Builtin = _builtins["rsqrt"]
reciprocal: Builtin = _builtins["reciprocal"]
exp: Builtin = _builtins["exp"]
exp2: Builtin = _builtins["exp2"]
expm1: Builtin = _builtins["expm1"]
log: Builtin = _builtins["log"]
log1p: Builtin = _builtins["log1p"]
log2: Builtin = _builtins["log2"]
log10: Builtin = _builtins["log10"]
sin: Builtin = _builtins["sin"]
cos: Builtin = _builtins["cos"]
tan: Builtin = _builtins["tan"]
asin: Builtin = _builtins["asin"]
acos: Builtin = _builtins["acos"]
atan: Builtin = _builtins["atan"]
sinh: Builtin = _builtins["sinh"]
cosh: Builtin = _builtins["cosh"]
tanh: Builtin = _builtins["tanh"]
asinh: Builtin = _builtins["asinh"]
acosh: Builtin = _builtins["acosh"]
atanh: Builtin = _builtins["atanh"]
erf: Builtin = _builtins["erf"]
sigmoid: Builtin = _builtins["sigmoid"]
relu: Builtin = _builtins["relu"]
silu: Builtin = _builtins["silu"]
softplus: Builtin = _builtins["softplus"]
floor: Builtin = _builtins["floor"]
ceil: Builtin = _builtins["ceil"]
trunc: Builtin = _builtins["trunc"]
round: Builtin = _builtins["round"]
isnan: Builtin = _builtins["isnan"]
isinf: Builtin = _builtins["isinf"]
isfinite: Builtin = _builtins["isfinite"]
signbit: Builtin = _builtins["signbit"]
logical_not: Builtin = _builtins["logical_not"]
bitwise_invert: Builtin = _builtins["bitwise_invert"]
clone: Builtin = _builtins["clone"]

# Elementwise, two operands
add: Builtin = _builtins["add"]
sub: Builtin = _builtins["sub"]
mul: Builtin = _builtins["mul"]
div: Builtin = _builtins["div"]
floor_divide: Builtin = _builtins["floor_divide"]
remainder: Builtin = _builtins["remainder"]
pow: Builtin = _builtins["pow"]
maximum: Builtin = _builtins["maximum"]
minimum: Builtin = _builtins["minimum"]
atan2: Builtin = _builtins["atan2"]
hypot: Builtin = _builtins["hypot"]
copysign: Builtin = _builtins["copysign"]
logaddexp: Builtin = _builtins["logaddexp"]
eq: Builtin = _builtins["eq"]
ne: Builtin = _builtins["ne"]
lt: Builtin = _builtins["lt"]
le: Builtin = _builtins["le"]
gt: Builtin = _builtins["gt"]
ge: Builtin = _builtins["ge"]
logical_and: Builtin = _builtins["logical_and"]
logical_or: Builtin = _builtins["logical_or"]
logical_xor: Builtin = _builtins["logical_xor"]
bitwise_and: Builtin = _builtins["bitwise_and"]
bitwise_or: Builtin = _builtins["bitwise_or"]
bitwise_xor: Builtin = _builtins["bitwise_xor"]
left_shift: Builtin = _builtins["left_shift"]
right_shift: Builtin = _builtins["right_shift"]

# Elementwise, others
where: Builtin = _builtins["where"]
leaky_relu: Builtin = _builtins["leaky_relu"]
masked_fill: Builtin = _builtins["masked_fill"]

# Creation
empty: Builtin = _builtins["empty"]
zeros: Builtin = _builtins["zeros"]
ones: Builtin = _builtins["ones"]
full: Builtin = _builtins["full"]
empty_like: Builtin = _builtins["empty_like"]
zeros_like: Builtin = _builtins["zeros_like"]
ones_like: Builtin = _builtins["ones_like"]
full_like: Builtin = _builtins["full_like"]
new_empty: Builtin = _builtins["new_empty"]
new_zeros: Builtin = _builtins["new_zeros"]
empty_strided: Builtin = _builtins["empty_strided"]
arange: Builtin = _builtins["arange"]
linspace: Builtin = _builtins["linspace"]
eye: Builtin = _builtins["eye"]
normal: Builtin = _builtins["normal"]
uniform: Builtin = _builtins["uniform"]
randint: Builtin = _builtins["randint"]

# Reductions
sum: Builtin = _builtins["sum"]
prod: Builtin = _builtins["prod"]
mean: Builtin = _builtins["mean"]
max: Builtin = _builtins["max"]
min: Builtin = _builtins["min"]
any: Builtin = _builtins["any"]
all: Builtin = _builtins["all"]
var: Builtin = _builtins["var"]
std: Builtin = _builtins["std"]
logsumexp: Builtin = _builtins["logsumexp"]
argmax: Builtin = _builtins["argmax"]
argmin: Builtin = _builtins["argmin"]
cumsum: Builtin = _builtins["cumsum"]
softmax: Builtin = _builtins["softmax"]
log_softmax: Builtin = _builtins["log_softmax"]
sum_to_size: Builtin = _builtins["sum_to_size"]

# Linear algebra
matmul: Builtin = _builtins["matmul"]

# Shape
reshape: Builtin = _builtins["reshape"]
view: Builtin = _builtins["view"]
permute_dims: Builtin = _builtins["permute_dims"]
transpose: Builtin = _builtins["transpose"]
expand: Builtin = _builtins["expand"]
squeeze: Builtin = _builtins["squeeze"]
unsqueeze: Builtin = _builtins["unsqueeze"]
detach: Builtin = _builtins["detach"]
contiguous: Builtin = _builtins["contiguous"]
flip: Builtin = _builtins["flip"]
roll: Builtin = _builtins["roll"]
concat: Builtin = _builtins["concat"]
stack: Builtin = _builtins["stack"]
tril: Builtin = _builtins["tril"]
triu: Builtin = _builtins["triu"]

# Indexing and sorting
take: Builtin = _builtins["take"]
index_select: Builtin = _builtins["index_select"]
gather: Builtin = _builtins["gather"]
take_along_axis: Builtin = _builtins["take_along_axis"]
scatter_add: Builtin = _builtins["scatter_add"]
index_add: Builtin = _builtins["index_add"]
nonzero: Builtin = _builtins["nonzero"]
argsort: Builtin = _builtins["argsort"]
searchsorted: Builtin = _builtins["searchsorted"]
index: Builtin = _builtins["index"]
index_put: Builtin = _builtins["index_put"]
select: Builtin = _builtins["select"]
slice: Builtin = _builtins["slice"]

# Other names that people use
multiply: Builtin = _builtins["multiply"]
subtract: Builtin = _builtins["subtract"]
divide: Builtin = _builtins["divide"]
true_divide: Builtin = _builtins["true_divide"]
negative: Builtin = _builtins["negative"]
power: Builtin = _builtins["power"]
equal: Builtin = _builtins["equal"]
not_equal: Builtin = _builtins["not_equal"]
less: Builtin = _builtins["less"]
less_equal: Builtin = _builtins["less_equal"]
greater: Builtin = _builtins["greater"]
greater_equal: Builtin = _builtins["greater_equal"]
concatenate: Builtin = _builtins["concatenate"]
cat: Builtin = _builtins["cat"]
copy: Builtin = _builtins["copy"]
permute: Builtin = _builtins["permute"]
broadcast_to: Builtin = _builtins["broadcast_to"]
expand_dims: Builtin = _builtins["expand_dims"]
amax: Builtin = _builtins["amax"]
amin: Builtin = _builtins["amin"]
absolute: Builtin = _builtins["absolute"]
arcsin: Builtin = _builtins["arcsin"]
arccos: Builtin = _builtins["arccos"]
arctan: Builtin = _builtins["arctan"]
arctan2: Builtin = _builtins["arctan2"]
arcsinh: Builtin = _builtins["arcsinh"]
arccosh: Builtin = _builtins["arccosh"]
arctanh: Builtin = _builtins["arctanh"]
bitwise_not: Builtin = _builtins["bitwise_not"]
bitwise_left_shift: Builtin = _builtins["bitwise_left_shift"]
bitwise_right_shift: Builtin = _builtins["bitwise_right_shift"]
cumulative_sum: Builtin = _builtins["cumulative_sum"]

_gelu = _builtins["gelu"]
_gelu_tanh = _overload("tp::gelu.tanh")
_clamp = _builtins["clamp"]
_astype = _builtins["astype"]


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit: exact, or by the tanh approximation."""
    if approximate == "none":
        return _gelu(x)
    if approximate == "tanh":
        return _gelu_tanh(x)
    raise ArgumentError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}", code="TP1041")


def clamp(
    x: Tensor, min: Tensor | int | float | None = None, max: Tensor | int | float | None = None
) -> Tensor:
    """Values limited to [min, max]; either bound may be None, a number or a tensor. NaN stays NaN."""
    if min is None:
        return positive(x) if max is None else minimum(x, max)
    return maximum(x, min) if max is None else _clamp(x, min, max)


clip = clamp


def astype(x: Tensor, dtype: dtype, /, *, copy: bool = True) -> Tensor:
    """The elements as another dtype; with `copy=False` the tensor itself where it has that dtype already."""
    if copy is not True:
        _arguments.boolean("astype", "copy", copy)
    return x if not copy and getattr(x, "dtype", None) is dtype else _astype(x, dtype)


__all__ = [
    name
    for name, value in list(globals().items())
    if callable(value) and not name.startswith("_") and value is not ArgumentError
]


def __dir__() -> list[str]:
    return sorted(__all__)
