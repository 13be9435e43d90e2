"""Which inputs to try: from a schema, or as neighbours of inputs that were given. Running them is not done here."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from tensorplay import _native
from tensorplay._verify.arrays import FLOATS, INTEGERS, is_float
from tensorplay._verify.inputs import LAYOUTS, SPECIALS, Case, TensorRecipe, contents
from tensorplay._verify.transforms import changed, keep_one, put_specials, resize

__all__ = ["from_schema", "neighbours"]

# Rank 0, empty, one element, a prime, both sides of a power of two that kernels use as a block, several ranks.
SHAPES: tuple[tuple[int, ...], ...] = (
    (7,),
    (4, 4),
    (3, 5),
    (),
    (0,),
    (1,),
    (0, 3),
    (2, 3, 5),
    (1023,),
    (1024,),
    (1025,),
)
PLAIN = SHAPES[:3]
SIZES = (0, 1, 7)
EDGES = (1023, 1025)
LARGEST = 1 << 18
FRESH = (5, 3, 2, 7, 11, 13, 17)  # sizes that one dimension alone gets: the first that is nowhere in the call
ALONE = 24  # choices of dimensions of one size that are changed while others of that size stay
CHOICES = 12  # bools, optional arguments and numbers that are changed beside one given call
NUMBERS: dict[str, tuple[Any, ...]] = {
    "int": (1, 0, 2),
    "SymInt": (1, 0, 2),
    "float": (0.5, 0.0, -2.0),
    "Scalar": (2.0, 3, -0.5),
    "number": (2.0, 3, -0.5),
    "bool": (False, True),
    "SymBool": (False, True),
    "str": ("",),
}


# Names that by custom say what a tensor holds: (dtype, fill).
ROLES = {
    "index": ("int64", "counting"),
    "indices": ("int64", "counting"),
    "mask": ("bool", "normal"),
    "condition": ("bool", "normal"),
}


class CannotGenerate(ValueError):
    """The schema has an argument for which no input is known."""


def recipe(
    shape: tuple[int, ...], dtype: str = "float32", *, seed: int = 0, fill: str = "normal"
) -> TensorRecipe:
    """The recipe of `make_tensor` with these arguments."""
    extra = f", fill={fill!r}" if fill != "normal" else ""
    source = f"make_tensor({shape!r}, {dtype!r}, seed={seed}{extra})"
    return TensorRecipe(contents(shape, dtype, seed, fill), dtype, source)


def _kind(argument: dict[str, Any]) -> str:
    """The type without optional and alias marks: `Tensor`, `Tensor[]`, `int`, `int[]`..."""
    text = str(argument["type"]).replace("Optional", "").strip()
    return text.split("(")[0] + text.partition(")")[2] if "(" in text else text


class _Maker:
    """Fills in the arguments of a schema."""

    def __init__(self, arguments: list[dict[str, Any]], seed: int) -> None:
        self.arguments = arguments
        self.seed = seed

    def case(
        self,
        label: str,
        shape: tuple[int, ...],
        dtype: str,
        *,
        fill: str = "normal",
        choice: dict[str, Any] | None = None,
    ) -> Case:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        skipped = False
        for index, argument in enumerate(self.arguments):
            name = argument["name"]
            if choice and name in choice:
                value = choice[name]
            elif argument["has_default"] and not argument["is_tensor"]:
                skipped = True
                continue
            else:
                value = self._value(argument, index, shape, dtype, fill)
            if argument["kwarg_only"] or skipped:
                kwargs[name] = value
            else:
                args.append(value)
        names = tuple(a["name"] for a in self.arguments)
        return Case(label, tuple(args), kwargs, names)

    def _value(
        self, argument: dict[str, Any], index: int, shape: tuple[int, ...], dtype: str, fill: str
    ) -> Any:
        kind = _kind(argument)
        bare = kind.rstrip("?")
        if bare == "Tensor" and argument["name"] in ROLES:
            dtype, fill = ROLES[argument["name"]]
        if bare == "Tensor":
            return recipe(shape, dtype, seed=self.seed + index, fill=fill)
        if bare.startswith("Tensor") and bare.endswith("]"):
            return [recipe(shape, dtype, seed=self.seed + index + 100 * i, fill=fill) for i in (1, 2)]
        if bare in NUMBERS:
            return NUMBERS[bare][0]
        if kind.endswith("?"):
            return None
        if bare.endswith("]"):
            item = bare[: bare.index("[")]
            if argument["name"] == "axes":
                return list(range(len(shape)))[::-1]
            return list(shape) if item in ("int", "SymInt") else [NUMBERS.get(item, (0,))[0]] * 2
        if bare == "ScalarType":
            return _native.float32
        if bare == "Device":
            return _native.device("cpu")
        raise CannotGenerate(f"argument '{argument['name']}' of type {argument['type']}: pass inputs=")


def from_schema(arguments: list[dict[str, Any]], seed: int) -> Iterator[Case]:
    """Cases that a schema allows: plain ones first, then one change at a time."""
    maker = _Maker(arguments, seed)
    for shape in PLAIN:
        yield maker.case(f"shape {shape}", shape, "float32")
    for shape in SHAPES[3:]:
        yield maker.case(f"shape {shape}", shape, "float32")
    for dtype in (*FLOATS[1:], *INTEGERS[:2], "uint8", "bool"):
        for shape in ((3, 5), (4, 4)):
            case = maker.case(f"dtype {dtype}, shape {shape}", shape, dtype)
            yield dataclasses.replace(case, speculative=not is_float(dtype))
    whole = {a["name"]: 2 for a in arguments if _kind(a).rstrip("?") in ("Scalar", "number")}
    if whole:
        case = maker.case("whole numbers", (3, 5), "int64", choice=whole)
        yield dataclasses.replace(case, speculative=True)
    if any(a["name"] == "index" for a in arguments):
        yield maker.case(
            "index of one dimension",
            (4, 4),
            "float32",
            choice={"index": recipe((4,), "int64", fill="counting")},
        )
    yield maker.case("special values", (24,), "float32", fill="special")
    yield maker.case("special values, square", (5, 5), "float32", fill="special")
    yield maker.case("positive values", (3, 5), "float32", fill="positive")
    for argument in arguments:
        kind = _kind(argument).rstrip("?")
        if kind == "Tensor" and _kind(argument).endswith("?"):
            case = maker.case(f"{argument['name']}=None", (4, 4), "float32", choice={argument["name"]: None})
            yield dataclasses.replace(case, numbers=True)
        for value in NUMBERS.get(kind, ())[1:]:
            case = maker.case(
                f"{argument['name']}={value!r}", (4, 4), "float32", choice={argument["name"]: value}
            )
            yield dataclasses.replace(case, numbers=True)
    for shape in ((4, 4), (3, 5)):
        yield from _layouts(maker.case(f"shape {shape}", shape, "float32"))
    # Arguments of one shape, and a square one: a rule may take one size for another.
    yield from _sizes_apart(maker.case("shape (4, 4)", (4, 4), "float32"))


def neighbours(case: Case, arguments: list[dict[str, Any]]) -> Iterator[Case]:
    """Cases beside a given one: other layouts, sizes, dtypes, values and choices, one change at a time.

    `arguments` are those of the schema, none where there is no schema.
    """
    recipes = case.recipes()
    if not recipes:
        return
    yield from _layouts(case)
    yield from _sizes(case)
    yield from _sizes_apart(case)
    yield from _single(case)
    yield from itertools.islice(_other_choices(case, arguments), CHOICES)
    yield from _dtypes(case)
    yield from _specials(case)


def _specials(case: Case) -> Iterator[Case]:
    """Every special value in every float tensor, however short: in several cases where they do not fit into one."""
    sizes = [r.values.size for r in case.recipes() if is_float(r.dtype) and r.values.size]
    room = (min(sizes, default=0) + 1) // 2
    for start in range(0, SPECIALS, room) if room else ():
        number, extra = (f" {1 + start // room}", (start,)) if start else ("", ())
        yield case.map(
            f"{case.label}, special values{number}",
            lambda r: changed(r, put_specials, "with_specials", *extra),
        )


def _layouts(case: Case) -> Iterator[Case]:
    recipes = case.recipes()
    for layout in LAYOUTS:
        yield case.map(f"{case.label}, {layout}", lambda r: r.laid_out(layout))
    if len(recipes) > 1:
        first = recipes[0]
        yield case.replace(
            f"{case.label}, first tensor transposed", {id(first): first.laid_out("transposed")}
        )


def _sizes(case: Case) -> Iterator[Case]:
    sizes = list(dict.fromkeys(n for r in case.recipes() for n in r.shape))
    for old in sizes[-3:]:
        for new in SIZES + (EDGES if old == sizes[-1] else ()):
            total = sum(_count(tuple(new if n == old else n for n in r.shape)) for r in case.recipes())
            if new != old and total <= LARGEST:
                yield case.map(
                    f"{case.label}, size {old} -> {new}", lambda r: changed(r, resize, "resized", old, new)
                )


Place = tuple[int, int]  # number of the tensor, axis


def _sizes_apart(case: Case) -> Iterator[Case]:
    """Some of the dimensions that have one size changed, the others not: a rule that takes one for another then differs.

    The op refuses most of these; what it takes is what may be varied.
    """
    whole, named = case.apart()
    sizes = dict.fromkeys(n for _, r in named for n in r.shape)
    for old in list(sizes)[:3]:
        fresh = [n for n in FRESH if n not in sizes]
        places = [(i, axis) for i, (_, r) in enumerate(named) for axis, n in enumerate(r.shape) if n == old]
        if len(fresh) < 2 or len(places) < 2:
            continue
        for chosen in itertools.islice(_choices(places), ALONE):
            change = dict(enumerate(r for _, r in named))
            # Sizes 0 and 1 stretch over others where they meet them: none is left beside the one that is changed.
            base = old if old > 1 else fresh[1]
            if base != old:
                change = {i: changed(r, resize, "resized", old, base) for i, r in change.items()}
            for i, axis in chosen:
                change[i] = changed(change[i], resize, "resized", base, fresh[0], axis)
            where = ", ".join(f"{named[i][0]}.shape[{axis}]" for i, axis in chosen)
            if sum(_count(r.shape) for r in change.values()) <= LARGEST:
                recipes = {id(r): change[i] for i, (_, r) in enumerate(named)}
                yield whole.replace(f"{case.label}, size {old} -> {fresh[0]} of {where} alone", recipes)


def _choices(places: list[Place]) -> Iterator[tuple[Place, ...]]:
    """Each place alone, one axis of all tensors, then two places, three, and on; all of them are no choice."""
    axes = [tuple(p for p in places if p[1] == axis) for axis in dict.fromkeys(axis for _, axis in places)]
    several = (chosen for k in range(2, len(places)) for chosen in itertools.combinations(places, k))
    told = set()
    for chosen in itertools.chain(((place,) for place in places), axes, several):
        if len(chosen) < len(places) and chosen not in told:
            told.add(chosen)
            yield chosen


def _single(case: Case) -> Iterator[Case]:
    """One element in as many dimensions as were given, and in none."""

    def kept(ndim: int | None) -> Any:
        return lambda r: changed(r, keep_one, "one_element", len(r.shape) if ndim is None else ndim)

    yield dataclasses.replace(case.map(f"{case.label}, one element", kept(None)), speculative=True)
    if any(r.shape for r in case.recipes()):
        yield dataclasses.replace(case.map(f"{case.label}, rank 0", kept(0)), speculative=True)


def _other_choices(case: Case, arguments: list[dict[str, Any]]) -> Iterator[Case]:
    """Each argument that is no tensor in turn with another value, and each optional one left out or given."""
    for place, value, argument in _arguments_of(case, arguments):
        # What the schema allows must hold; without a schema nobody said that another value is one.
        kind = _kind(argument) if argument else ""
        if (other := _flipped(value)) is not None:
            yield case.with_value(place, other, speculative=argument is None)
        elif type(value) is float and math.isfinite(value):
            yield case.with_value(place, value * 1.5 + 0.25, speculative=True)
        if kind.endswith("?") and value is not None:
            yield case.with_value(place, None, speculative=False)
        elif kind == "Tensor?":
            first = next((r for r in case.recipes() if is_float(r.dtype)), None)
            if first is not None and argument is not None and argument["name"] not in ROLES:
                given = recipe(first.shape, first.dtype, seed=1)
                yield case.with_value(place, given, speculative=True)


def _arguments_of(
    case: Case, arguments: list[dict[str, Any]]
) -> Iterator[tuple[int | str, Any, dict[str, Any] | None]]:
    """(position or keyword, value, what the schema says) of every argument, those left at a default that is known too."""
    by_name = {argument["name"]: argument for argument in arguments}
    for i, value in enumerate(case.args):
        yield i, value, arguments[i] if i < len(arguments) else None
    for key, value in case.kwargs.items():
        yield key, value, by_name.get(key)
    for argument in arguments[len(case.args) :]:
        if argument["has_default"] and argument["name"] not in case.kwargs:
            yield from _left_out(argument)


def _left_out(argument: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    bare, text = _kind(argument).rstrip("?"), str(argument["default"])
    if text == "None" and bare == "Tensor":
        yield argument["name"], None, argument
    elif bare in ("bool", "SymBool") and text in ("True", "False"):
        yield argument["name"], text == "True", argument
    elif bare == "float" and text != "None":
        yield argument["name"], float(text), argument


def _flipped(value: Any) -> Any:
    """The other bool, or a list of them with each one flipped; None for anything else."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, bool) for item in value):
        return type(value)([not item for item in value])
    return None


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _dtypes(case: Case) -> Iterator[Case]:
    recipes = case.recipes()
    if any(is_float(r.dtype) for r in recipes):
        for dtype in FLOATS:
            if any(is_float(r.dtype) and r.dtype != dtype for r in recipes):
                yield case.map(f"{case.label}, {dtype}", lambda r: r.cast(dtype) if is_float(r.dtype) else r)
        integers = case.map(f"{case.label}, int64", lambda r: r.cast("int64") if is_float(r.dtype) else r)
        yield dataclasses.replace(integers, speculative=True)
    if any(r.dtype in ("int64", "int32") for r in recipes):
        other = {"int64": "int32", "int32": "int64"}
        yield case.map(
            f"{case.label}, other integers", lambda r: r.cast(other[r.dtype]) if r.dtype in other else r
        )
