"""Error codes and what they mean: the table behind ``python -m tensorplay explain CODE``.

Data alone. A code is stable, and has one meaning: what is done about it is the same wherever it is raised. The programs
that raise each code are beside it, in `tensorplay._codes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorplay._codes import EXAMPLES, INTERNAL, WITHOUT, control, differentiation, graphs, transforms

__all__ = ["CODES", "FAMILIES", "Entry", "lookup"]

# The first two digits say which part of a program is concerned.
FAMILIES: dict[str, str] = {
    "TP00": "general",
    "TP10": "arguments, schemas and annotations",
    "TP11": "shapes, axes, indices and layouts",
    "TP12": "element types",
    "TP13": "registration of operators",
    "TP14": "choice of a kernel",
    "TP15": "arithmetic",
    "TP16": "writes",
    "TP20": "backends and devices that are not there",
    "TP21": "devices of operands",
    "TP30": "differentiation",
    "TP31": "gradient checks",
    "TP32": "contracts of kernels, fake rules and backward rules",
    "TP33": "autograd from Python",
    "TP34": "functional transforms and autocast",
    "TP39": "verification",
    "TP40": "capture",
    "TP41": "fallbacks",
    "TP43": "control flow",
    "TP50": "graphs",
    "TP90": "internal errors",
    "TP91": "internal errors of compiled runs",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One code."""

    code: str
    meaning: str
    fix: str
    example: str | None = None
    """A program that raises it, with ``tp`` imported."""
    without: str | None = None
    """Why there is no example."""

    def text(self) -> str:
        """The explanation for people."""
        family = FAMILIES[self.code[:4]]
        text = f"{self.code} ({family})\n  {self.meaning}\n  fix: {self.fix}"
        if self.example is None:
            return text
        return f"{text}\n  example:\n" + "\n".join(
            f"    {line}".rstrip() for line in self.example.splitlines()
        )


_REPORT = "this is a defect of tensorplay: please report it with the output of `python -m tensorplay env`"
_SHAPES = "print the shapes of the operands; insert or expand dimensions so that they go together"
_INDEX = "check the index against the shape in the message"

_TABLE: tuple[tuple[str, str, str], ...] = (
    *differentiation.TABLE,
    *transforms.TABLE,
    ("TP0000", "An error without a code of its own.", "read its message"),
    # arguments, schemas, annotations
    (
        "TP1001",
        "A text is no operator schema; the caret shows where reading stopped.",
        "mend the schema at the caret",
    ),
    ("TP1002", "An argument has the wrong type.", "pass the type that the message names"),
    ("TP1003", "A required argument is missing.", "pass it, or give it a default in the schema"),
    ("TP1004", "An argument was given by position and by keyword.", "give it once"),
    ("TP1005", "Too many positional arguments.", "pass keyword-only arguments by name"),
    (
        "TP1006",
        "A keyword names no argument.",
        "use the close match that the note shows, or look at the schema",
    ),
    ("TP1007", "A Python int does not fit in 64 bits.", "use a float, or a smaller number"),
    ("TP1009", "A list argument holds an item of the wrong type.", "convert the items"),
    ("TP1010", "A schema has more than 255 arguments.", "group arguments in lists"),
    ("TP1011", "A default value does not fit its argument's type.", "change the default or the type"),
    ("TP1012", "No overload takes these arguments.", "compare the call with the overloads in the notes"),
    ("TP1013", "pow() of a tensor was called with a modulus.", "use pow and remainder in two steps"),
    (
        "TP1014",
        "An operator was applied to an operand that it does not know.",
        "use * for numbers; @ takes two tensors",
    ),
    (
        "TP1015",
        "An object that is no number or tensor was assigned into a tensor.",
        "convert it with tensorplay.tensor",
    ),
    ("TP1016", "Elements of a tensor cannot be deleted.", "select the elements to keep instead"),
    ("TP1017", "len() of a 0-d tensor.", "use .size, or give it a dimension"),
    ("TP1018", "Iteration over a 0-d tensor.", "use .item() for its value"),
    ("TP1019", "Nested data holds something that is no number.", "convert the data to numbers first"),
    ("TP1020", "Nested data is deeper than a tensor can be.", "check for a list that holds itself"),
    ("TP1021", "mutates_args is a string.", "pass a sequence of names: mutates_args=('x',)"),
    ("TP1022", "mutates_args holds something that is no name.", "pass the names of arguments as strings"),
    ("TP1023", "mutates_args names no argument.", "use a parameter name of the function"),
    ("TP1024", "mutates_args names an argument that is no Tensor.", "only tensors can be written to"),
    ("TP1025", "The signature of a function cannot be read.", "pass schema='(...) -> ...'"),
    (
        "TP1026",
        "A parameter is of a kind that schemas lack (such as *args).",
        "name every parameter, or pass schema=",
    ),
    (
        "TP1027",
        "An annotation uses a name that cannot be found.",
        "import the name at module level, or pass schema=",
    ),
    ("TP1028", "An annotation stands for no schema type.", "use the type that the note proposes"),
    ("TP1029", "A parameter has neither an annotation nor a default that tells its type.", "annotate it"),
    ("TP1030", "A parameter's default does not fit its type.", "change one of them"),
    (
        "TP1031",
        "A return annotation stands for no schema type.",
        "return tensors, numbers, or tuples and lists of them",
    ),
    ("TP1032", "A tag does not fit the schema.", "follow the tag's rule in the message, or drop the tag"),
    (
        "TP1033",
        "A list argument of a declared length has another one.",
        "pass as many items as the schema says",
    ),
    (
        "TP1040",
        "Tensor.size is the number of elements, and was called.",
        "the size of one dimension is x.shape[i]",
    ),
    ("TP1041", "An option has a value that the function does not know.", "use one that the message lists"),
    ("TP1042", "requires_grad was set to what is neither True nor False.", "set it to a bool"),
    ("TP1043", "A gradient is neither a tensor nor None.", "convert it with tensorplay.tensor"),
    (
        "TP1044",
        "A tensor that requires a gradient was given for a number.",
        "detach() it, or use an op that takes a tensor there",
    ),
    ("TP1048", "A value is outside of what the function takes.", "pass one that the message allows"),
    ("TP1049", "An object of this type is made by a function.", "call the function that the message names"),
    # shapes
    ("TP1101", "Shapes do not broadcast together.", _SHAPES),
    ("TP1102", "A shape cannot be expanded to another.", "only dimensions of size 1 expand"),
    (
        "TP1103",
        "A reshape does not keep the number of elements.",
        "use -1 for one size, or check the product",
    ),
    ("TP1104", "An axis is outside of the dimensions.", "axes go from -ndim to ndim - 1"),
    ("TP1105", "Axes are no permutation.", "name every axis once"),
    ("TP1106", "An index is outside of its dimension.", _INDEX),
    ("TP1107", "A slice step is zero.", "use a step other than 0"),
    ("TP1108", "More indices than dimensions.", _INDEX),
    ("TP1109", "A shape that cannot be: negative, too large, or too many dimensions.", "check the sizes"),
    ("TP1110", "A view reaches outside of its storage.", "check strides and offset"),
    ("TP1111", "Memory could not be had.", "use smaller tensors, or free some"),
    (
        "TP1112",
        "The value of a tensor with several elements was asked for.",
        "use .any(), .all() or an index",
    ),
    ("TP1113", "An index tensor is neither integer nor bool.", "convert it: astype(int64)"),
    ("TP1114", "An object is no index.", "use integers, slices, None, Ellipsis, or integer or bool arrays"),
    ("TP1115", "An index has two Ellipsis.", "keep one"),
    ("TP1116", "A mask does not fit the axes that it indexes.", "give the mask the shape of those axes"),
    ("TP1117", "Assignment with a negative step beside index arrays.", "flip first, or assign in two steps"),
    ("TP1118", ".T or .mT is not defined for this number of dimensions.", "use permute_dims"),
    ("TP1120", "Nested data is ragged.", "make all rows equally long"),
    ("TP1121", "A result does not fit in place.", "use the form without the underscore"),
    ("TP1122", "A view cannot be made without a copy.", "use reshape, which copies where it must"),
    ("TP1123", "An axis to squeeze is not of size 1.", "check the shape"),
    ("TP1124", "Too few dimensions: matrices are needed.", "give the tensor two dimensions or more"),
    ("TP1125", "Shifts and axes differ in number.", "give one shift per axis, or one for all"),
    ("TP1126", "No tensor to join.", "pass at least one"),
    ("TP1127", "Tensors to join differ in shape.", "they may differ along the joined axis only"),
    (
        "TP1128",
        "Strides that do not fit the shape, or are negative.",
        "give one stride per dimension, none below 0",
    ),
    (
        "TP1129",
        "A range without finite bounds or without a step.",
        "use finite bounds and a step other than 0",
    ),
    ("TP1130", "Bounds in the wrong order.", "the lower bound must be less than the upper one"),
    ("TP1131", "An axis is named twice.", "name it once"),
    ("TP1132", "A reduction over nothing that has no identity.", "reduce over at least one element"),
    ("TP1133", "A gradient and its output differ in shape.", _SHAPES),
    ("TP1134", "Operands of a matrix product do not fit.", "the inner sizes must agree"),
    ("TP1135", "An index tensor must have one dimension.", "reshape it"),
    ("TP1136", "An index tensor does not fit into its operand.", _SHAPES),
    ("TP1137", "Operand and indices have different numbers of dimensions.", _SHAPES),
    ("TP1138", "The source does not have the indexed shape.", _SHAPES),
    ("TP1139", "Values do not broadcast to the indexed shape.", _SHAPES),
    ("TP1140", "Sorted values or a search line must have one dimension.", "reshape it"),
    ("TP1141", "A view has no place in its base: it overlaps itself or reaches outside.", _SHAPES),
    (
        "TP1142",
        "Parameters that no distribution has.",
        "give a spread that is not negative, and finite bounds",
    ),
    ("TP1150", "flatten: the first axis comes after the last one.", "swap them"),
    (
        "TP1151",
        "split: pieces of no positive size, or sizes that do not add up.",
        "make the sizes add up to the axis",
    ),
    (
        "TP1152",
        "A tensor with dimensions was used as a Python index.",
        "use .item() or an index of the tensor",
    ),
    ("TP1153", "Data cannot be shared without a copy.", "leave out copy=False"),
    ("TP1154", "A number does not fit its dtype.", "use a wider dtype: x.astype(int64)"),
    ("TP1155", "A buffer with suboffsets cannot be shared.", "copy the buffer"),
    (
        "TP1156",
        "Strides of a buffer are no multiple of its element.",
        "copy the array: np.ascontiguousarray(a)",
    ),
    ("TP1157", "set_ on a tensor that is not fresh.", "call it on new_empty(0)"),
    ("TP1158", "Size and stride differ in length.", "give one stride per dimension"),
    ("TP1159", "The bytes of a tensor that do not lie in a row.", "use .contiguous() and .cpu()"),
    ("TP1160", "A buffer does not have the bytes of the shape.", "check shape and dtype"),
    ("TP1161", "Storages to copy differ in size.", "make them equally large"),
    ("TP1163", "Tensors to save share memory.", "save clones"),
    ("TP1166", "A name that the file format keeps for itself.", "give the tensor another name"),
    ("TP1165", "save got its arguments in another order.", "write save(path, {name: tensor})"),
    ("TP1164", "A file is no safetensors file.", "save it with tensorplay.save"),
    ("TP1170", "A range of sizes cannot be.", "give numbers with 0 <= min <= max"),
    ("TP1171", "What check states does not hold.", "mend the inputs, or the statement"),
    # dtypes
    ("TP1201", "Element types do not go together.", "convert one operand with astype"),
    ("TP1202", "An expression is not defined for these element types.", "convert the operands with astype"),
    ("TP1203", "An element type is of the wrong kind for this use.", "use the kind that the message names"),
    ("TP1204", "A bool matrix product is not defined.", "convert it first: astype(int32)"),
    ("TP1205", "Integers were needed.", "convert with astype(int64)"),
    ("TP1207", "NumPy has no dtype for the elements.", "use .float(), or install ml_dtypes"),
    ("TP1206", "A file holds an element type that no tensorplay dtype stands for.", "convert the file"),
    (
        "TP1221",
        "A result cannot be written in place to a narrower type.",
        "use the form without the underscore",
    ),
    ("TP1230", "A foreign element type that no tensorplay dtype stands for.", "convert the data first"),
    ("TP1231", "A view as an element type of another width.", "use astype, which converts"),
    ("TP1232", "A tensor of other numbers than integers was used as a Python index.", "use int(x)"),
    # registration
    ("TP1301", "No operator of that name.", "import the module that defines it; `ops` lists what is there"),
    ("TP1302", "The name is defined already, somewhere else.", "choose another name, or pass override=True"),
    ("TP1305", "The operator was unregistered.", "keep its Library alive, or define it again"),
    ("TP1310", "An object is neither an op nor the name of one.", "pass an op or 'ns::name'"),
    ("TP1311", "The op has several overloads.", "name one: 'ns::name.overload'"),
    ("TP1312", "No such device type.", "use 'cpu', 'cuda' or 'meta', or None for all"),
    ("TP1313", "An effect or tag that is not known.", "use one that the message lists"),
    ("TP1314", "layout= names no Tensor argument or no layout.", "layouts are 'any' and 'contiguous'"),
    (
        "TP1315",
        "A function cannot be called with the arguments of the schema.",
        "give it the schema's parameters",
    ),
    ("TP1316", "Something registered is not callable.", "pass a function"),
    ("TP1317", "An argument that is written to must be contiguous and is not.", "pass a contiguous tensor"),
    ("TP1318", "The op has a fake rule already.", "pass allow_override=True"),
    ("TP1319", "fake_from_body on an op without a Python body.", "write a fake rule"),
    (
        "TP1320",
        "A backward rule on an op that cannot have one.",
        "return a new tensor, and write outside of the op",
    ),
    ("TP1321", "No kernel of that name.", "use one that the message lists"),
    ("TP1322", "An op's name is no string.", "pass 'namespace::name'"),
    ("TP1323", "An op's name is not 'namespace::name'.", "use two identifiers and one '::'"),
    ("TP1324", "The namespace belongs to the built-in ops.", "choose one of your own"),
    ("TP1325", "The schema names another op.", "make the two names agree"),
    ("TP1326", "mutates_args and the schema disagree.", "make them agree, or leave one out"),
    ("TP1327", "device_types on an op without a Tensor argument.", "leave device_types out"),
    (
        "TP1328",
        "A keyword-only Tensor that is no output.",
        "make it positional, or give the op the tag 'out'",
    ),
    ("TP1329", "The tags 'inplace' and 'out' on one op.", "keep the one that fits"),
    ("TP1330", "No such kind of library.", "use 'DEF', 'IMPL' or 'FRAGMENT'"),
    ("TP1331", "The namespace has a DEF library already.", "use 'FRAGMENT'"),
    ("TP1332", "The library was destroyed.", "keep it alive"),
    ("TP1333", "An IMPL library defines no ops.", "use 'DEF' or 'FRAGMENT'"),
    ("TP1334", "A kernel for an autograd key.", "use register_autograd"),
    ("TP1335", "The library has a kernel there already.", "pass allow_override=True"),
    ("TP1336", "The op is not of the library's namespace.", "use a library of that namespace"),
    ("TP1337", "A context was left where it had not been entered.", "enter and leave it on one thread"),
    ("TP1338", "An overload has the name of an attribute of op objects.", "choose another name"),
    ("TP1339", "out=True for an op that returns no tensors.", "leave it out, and return the results"),
    # kernels, arithmetic, writes
    ("TP1401", "The op has no kernel for this device.", "register one, or move the tensors"),
    ("TP1402", "Kernels exist, and none takes this call.", "the notes say why each was passed over"),
    ("TP1501", "Integer division by zero.", "mask the zeros, or divide as floats"),
    ("TP1601", "A read-only tensor was written to.", "work on a clone()"),
    ("TP1602", "Elements that share memory were written to.", "work on a clone()"),
    # devices
    (
        "TP2001",
        "A backend or device is needed and absent.",
        "`python -m tensorplay doctor` says what is missing",
    ),
    ("TP2002", "No such device.", "use 'cpu', 'cuda', 'cuda:N' or 'meta'"),
    ("TP2003", "A Python package is needed and absent.", "install it; the message has the command"),
    (
        "TP2010",
        "A Triton op was called on a device without a kernel.",
        "register a kernel for it, or use CUDA",
    ),
    ("TP2011", "wrap_triton was given something else than a Triton kernel.", "decorate it with triton.jit"),
    ("TP2012", "A Triton kernel needs a CUDA device.", "register a CPU kernel for the op"),
    ("TP2013", "An argument that a Triton kernel cannot take.", "pass tensors, numbers or None"),
    ("TP2014", "Triton's interpreter cannot compute in bfloat16.", "check in float32"),
    ("TP2015", "An op that cannot be checked in Triton's interpreter.", "define it in an importable module"),
    ("TP2031", "An integer for a Triton kernel does not fit in 64 bits.", "pass a smaller one"),
    (
        "TP2032",
        "An argument that cannot be passed to Triton's interpreter.",
        "pass tensors, numbers and strings",
    ),
    ("TP2104", "Operands are on different devices; nothing was run.", "move one with .to(device)"),
    ("TP2105", "The operation needs a tensor on the CPU.", "use .cpu()"),
    ("TP2106", "A tensor without data has no values to read or move.", "use a real tensor"),
    ("TP2107", "A kernel was called directly with a tensor of another device.", "call the op instead"),
    (
        "TP3901",
        "An operator does not keep its contract.",
        "the message lists each failed check and how to replay it",
    ),
    (
        "TP3902",
        "verify cannot make inputs for a plain function, and opcheck needs an op.",
        "pass inputs=, or the op",
    ),
    (
        "TP3903",
        "The inputs of verify are no calls.",
        "pass a tuple of one call's arguments, or a list of such tuples",
    ),
    ("TP3904", "opcheck knows no such test.", "use one that the message lists"),
    ("TP3906", "opcheck was given an op with several overloads.", "name one of them"),
    ("TP3907", "opcheck got no tuple of arguments.", "write opcheck(op, (x,))"),
    ("TP3905", "opcheck got one tolerance alone.", "give rtol and atol, or neither"),
    # capture
    ("TP4001", "An op without a fake rule cannot be captured.", "add one with @op.register_fake"),
    (
        "TP4002",
        "What is captured depends on a size that only a run knows.",
        "say what is known of the size with check, or give new_dynamic_size a min and a max",
    ),
    (
        "TP4003",
        "A tensor's value was read during capture, as a number, an array or text.",
        "use where() instead of if, or pass the number in",
    ),
    ("TP4004", "A tensor without data is unknown to this capture.", "do not keep tensors of another capture"),
    ("TP4005", "An address was read during capture.", "read it outside of the captured function"),
    (
        "TP4006",
        "An argument, or an autograd.Function, that a graph cannot hold.",
        "pass tensors, numbers, strings, or lists of them; write a Function as an operator",
    ),
    (
        "TP4007",
        "An argument was written to by a recorded value inside of a compiled function.",
        "return the new value",
    ),
    (
        "TP4008",
        "A lifted tensor is written to and needed by backward.",
        "write to a clone, or pass it as an argument",
    ),
    ("TP4010", "Too deep a nesting.", "pass flatter structures"),
    (
        "TP4011",
        "A function was compiled while another one is captured.",
        "prepare it before, or call it: a call is inlined",
    ),
    (
        "TP4012",
        "A tensor of a capture was used outside of it.",
        "return it from the function; do not keep it",
    ),
    ("TP4013", "A tensor without data was exported during capture.", "export the result of the function"),
    (
        "TP4014",
        "A result that a graph cannot hold.",
        "return tensors, numbers, strings, None, and tuples or dicts of them",
    ),
    ("TP4015", "A bare Triton kernel was launched in a capture.", "make it an op, or use wrap_triton"),
    (
        "TP4016",
        "An op returned a value that a graph can neither hold nor check.",
        "return tensors, numbers, strings, dtypes or devices",
    ),
    (
        "TP4017",
        "get_ctx() where no fake rule runs, or its context after the call.",
        "call it in the function given to register_fake",
    ),
    (
        "TP4018",
        "A size that depends on data, for tensors on 'meta'.",
        "call the op on real tensors, or capture it",
    ),
    (
        "TP4019",
        "A symbolic size was used outside of its capture.",
        "do not keep it; ask the tensor for its shape",
    ),
    (
        "TP4020",
        "No output tells a run what a new symbolic size is.",
        "make it, or a multiple of it, the size of an axis of an output",
    ),
    (
        "TP4024",
        "A fake rule wrote to a tensor that it did not make.",
        "fill a buffer that the rule makes with empty or zeros, and leave real tensors alone",
    ),
    (
        "TP4030",
        "State of a tensor that is another in every run was read during capture.",
        "read it outside, and pass it in as an argument",
    ),
    (
        "TP4031",
        "A captured function did what would take effect in the capture alone, and in no run.",
        "do it outside of the function",
    ),
    (
        "TP4032",
        "A captured function wrote to a container or an object that it was given.",
        "return the new value, and write it where the function is called",
    ),
    (
        "TP4033",
        "A result holds what a run cannot make anew: a tensor or a size of the capture in a set, or an array's memory.",
        "return it by itself, or in a list, tuple, dict, deque or dataclass; a tensor in place of an array",
    ),
    (
        "TP4034",
        "A captured function wrote in place to a tensor that requires a gradient and was computed outside.",
        "return the new value, or clone the tensor first",
    ),
    (
        "TP4035",
        "A gradient inside of a captured function is by a tensor that another of its inputs was computed from.",
        "compute the other one inside of the function, or take the gradient outside",
    ),
    ("TP4040", "A size marked dynamic is needed as one number.", "write the named line for every size"),
    ("TP4041", "A segment (fullgraph=False) ends: an op runs at its place.", "nothing has to be done"),
    ("TP4042", "A tensor was written to, by no op, while a segment awaited it.", "let the writer wait"),
    (
        "TP4036",
        "A captured function uses state that nobody can see.",
        "use it outside, and pass it in, or vouch for it: assume_constant=[time.time]",
    ),
    (
        "TP4037",
        "A captured function changed the memory of an array that a tensor of its graph was made over.",
        "make the tensor with tensorplay.tensor(array), which copies, or write to the array before the tensor is used",
    ),
    *control.ENTRIES,
    *graphs.ENTRIES,
    ("TP9001", "An exception of the caller's own on its way out.", "read the exception itself"),
)

CODES: dict[str, Entry] = {
    code: Entry(code, meaning, fix, EXAMPLES.get(code), WITHOUT.get(code))
    for code, meaning, fix in sorted(
        (*_TABLE, *((code, meaning, _REPORT) for code, meaning in INTERNAL.items()))
    )
}


def lookup(code: str) -> Entry | None:
    """The entry of a code, whatever its case, with or without ``TP``."""
    wanted = code.strip().strip("[]").upper()
    return CODES.get(wanted if wanted.startswith("TP") else f"TP{wanted}")


def __dir__() -> list[str]:
    return sorted(__all__)
