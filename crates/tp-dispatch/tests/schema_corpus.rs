//! The schema parser against PyTorch: all of its declarations, their structure, and edge cases.
//!
//! `tests/data/README.md` says where the facts come from. Our own rules, error texts and
//! properties over generated schemas have test files of their own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tp_dispatch::schema::{AliasInfo, AliasSet, ArgType, Argument, DefaultValue, Schema};

fn lines(file: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(str::to_string).collect()
}

fn facts(file: &str) -> Vec<Value> {
    lines(file).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn prints_every_declaration_as_torch_does() {
    let declarations = lines("torch-schemas.txt");
    assert_eq!(declarations.len(), 4374);
    let mut reordered = BTreeSet::new();
    for line in &declarations {
        let schema = Schema::parse(line).unwrap();
        let printed = schema.to_string();
        assert_eq!(Schema::parse(&printed).unwrap(), schema);
        if printed != *line {
            // The only difference allowed is the order within an alias set.
            assert_eq!(printed.replace("(a|b)", "(b|a)"), *line);
            reordered.insert(schema.name().to_string());
        }
    }
    let expected = [
        "aten::as_tensor",
        "aten::cpu",
        "aten::cuda",
        "aten::to.prim_Device",
        "aten::to.prim_dtype",
        "aten::to.prim_other",
        "prim::IfThenElse",
        "static_runtime::select_tensor",
    ];
    assert_eq!(reordered, expected.map(str::to_string).into());
}

#[test]
fn reads_hand_written_declarations() {
    let declarations = lines("torch-native-functions.txt");
    assert_eq!(declarations.len(), 2584);
    for line in &declarations {
        let schema = Schema::parse_definition(&format!("aten::{line}")).unwrap();
        assert_eq!(schema.name().namespace(), Some("aten"));
        assert_eq!(Schema::parse(&schema.to_string()).unwrap(), schema, "{line}");
    }
}

#[test]
fn one_torch_declaration_is_no_definition() {
    let refused: Vec<String> = lines("torch-schemas.txt")
        .iter()
        .map(|line| Schema::parse(line).unwrap())
        .filter(|schema| schema.check_definition().is_err_and(|error| error.expected() != "a type"))
        .map(|schema| schema.name().to_string())
        .collect();
    // It has two arguments `posinf`. All others that are refused have type variables.
    assert_eq!(refused, ["static_runtime::clamp_nan_to_num"]);
}

#[test]
fn structure_agrees_with_torch() {
    let declarations = lines("torch-schemas.txt");
    let facts = facts("torch-schema-facts.jsonl");
    assert_eq!(facts.len(), declarations.len());
    for (line, fact) in declarations.iter().zip(&facts) {
        let schema = Schema::parse(line).unwrap();
        let name = schema.name();
        assert_eq!(name.namespace(), fact["ns"].as_str(), "{line}");
        assert_eq!(name.name(), fact["op"], "{line}");
        assert_eq!(name.overload().unwrap_or(""), fact["ov"], "{line}");
        assert_eq!(schema.is_mutable(), fact["mut"] == true, "{line}");
        let arguments = fact["args"].as_array().unwrap();
        assert_eq!(schema.arguments().len(), arguments.len(), "{line}");
        for (argument, fact) in schema.arguments().iter().zip(arguments) {
            assert_argument(argument, fact, line);
        }
        let returns = fact["rets"].as_array().unwrap();
        assert_eq!(schema.returns().len(), returns.len(), "{line}");
        for (value, fact) in schema.returns().iter().zip(returns) {
            assert_eq!(value.name(), fact["n"].as_str(), "{line}");
            assert_eq!(script_type(value.ty(), Enums::AsInt), fact["ty"], "{line}");
            assert_alias(value.alias(), &fact["al"], line);
        }
    }
}

fn assert_argument(argument: &Argument, fact: &Value, line: &str) {
    assert_eq!(argument.name(), fact["n"], "{line}");
    assert_eq!(script_type(argument.ty(), Enums::ByName), fact["t"], "{line}");
    assert_eq!(script_type(argument.ty(), Enums::AsInt), fact["ty"], "{line}");
    let size = argument.ty().as_list().and_then(|(_, size)| size);
    assert_eq!(size.map(u64::from), fact["N"].as_u64(), "{line}");
    assert_eq!(argument.is_kwarg_only(), fact["kw"] == true, "{line}");
    assert_eq!(argument.default().map(json), fact["d"].get(0).cloned(), "{line}");
    assert_alias(argument.alias(), &fact["al"], line);
}

fn assert_alias(alias: Option<&AliasInfo>, fact: &Value, line: &str) {
    let Some(alias) = alias else {
        assert!(fact.is_null(), "{line}");
        return;
    };
    let names = |sets: &[AliasSet]| sets.iter().map(AliasSet::to_string).collect::<BTreeSet<_>>();
    let facts = |sets: &Value| {
        let sets = sets.as_array().unwrap();
        sets.iter().map(|set| set.as_str().unwrap().to_string()).collect::<BTreeSet<_>>()
    };
    assert_eq!(alias.is_write(), fact["w"] == true, "{line}");
    assert_eq!(names(alias.before()), facts(&fact["before"]), "{line}");
    assert_eq!(names(alias.after()), facts(&fact["after"]), "{line}");
}

#[derive(Clone, Copy, PartialEq)]
enum Enums {
    ByName,
    AsInt,
}

/// A type as Python annotations spell it in PyTorch.
fn script_type(ty: &ArgType, enums: Enums) -> String {
    let inner = |ty: &ArgType| script_type(ty, enums);
    match ty {
        ArgType::Scalar => "number".to_string(),
        ArgType::SymInt => "int".to_string(),
        ArgType::SymBool => "bool".to_string(),
        ArgType::ScalarType | ArgType::Layout | ArgType::MemoryFormat if enums == Enums::AsInt => {
            "int".to_string()
        }
        ArgType::Optional(element) => format!("Optional[{}]", inner(element)),
        ArgType::List(element, _) => format!("List[{}]", inner(element)),
        ArgType::Future(element) => format!("Future[{}]", inner(element)),
        ArgType::RRef(element) => format!("RRef[{}]", inner(element)),
        ArgType::Await(element) => format!("Await[{}]", inner(element)),
        ArgType::Dict(pair) => format!("Dict[{}, {}]", inner(&pair.0), inner(&pair.1)),
        ArgType::Tuple(members) => {
            format!("Tuple[{}]", members.iter().map(inner).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn json(default: &DefaultValue) -> Value {
    match default {
        DefaultValue::None => Value::Null,
        DefaultValue::Bool(value) => (*value).into(),
        DefaultValue::Float(value) => (*value).into(),
        DefaultValue::Str(text) | DefaultValue::Device(text) => (**text).into(),
        DefaultValue::List(items) => items.iter().map(json).collect(),
        other => other.as_int().unwrap_or_else(|| panic!("{other} in the corpus")).into(),
    }
}

// Where we differ from PyTorch on purpose, by the rule:
// 1.11 a class need not be known; 1.12 alias sets print sorted; 1.15 `Tensor!` prints so that it
// reads back; 1.18 infinities and NaN are numbers and `0x10` is none; 1.19 a default has the
// argument's type; 1.20 a list default has the list's size; 1.21 enumeration words stay words;
// 1.22 strings hold any character; 1.23 a device prints with its quotes.

/// Accepted by PyTorch, refused here.
const REFUSED: &[(&str, &str)] = &[
    ("1.20", "f(int[3] x=[1,2]) -> ()"),
    ("1.20", "f(int[2] x=[1,2,3]) -> ()"),
    ("1.19", "f(str x=None) -> ()"),
    ("1.19", "f(bool x=1) -> ()"),
    ("1.19", "f(int x=1.5) -> ()"),
    ("1.19", "f(int x=True) -> ()"),
    ("1.19", "f(int x=None) -> ()"),
    ("1.19", "f(int x=1e3) -> ()"),
    ("1.19", "f(Generator? g=1) -> ()"),
    ("1.19", "f(ScalarType x=strided) -> ()"),
    ("1.19", "f(ScalarType x=contiguous_format) -> ()"),
    ("1.19", "f(ScalarType x=Mean) -> ()"),
    ("1.19", "f(ScalarType x=None) -> ()"),
    ("1.18", "f(int x=0x10) -> ()"),
];

/// Refused or printed differently by PyTorch, printed as written here.
const KEPT: &[(&str, &str)] = &[
    ("1.11", "f(__torch__.torch.classes.nope.Nope w) -> ()"),
    ("1.12", "f(Tensor(a|b) x) -> ()"),
    ("1.12", "f(Tensor(a! -> a|b) x) -> ()"),
    ("1.12", "f(Tensor(a|*) x) -> ()"),
    ("1.12", "f(Tensor(a -> a|b|*) x) -> ()"),
    ("1.15", "f(Tensor! x) -> ()"),
    ("1.15", "f(Tensor! x, Tensor! y) -> ()"),
    ("1.18", "f(float x=inf) -> ()"),
    ("1.18", "f(float x=nan) -> ()"),
    ("1.21", "f(Layout x=strided) -> ()"),
    ("1.21", "f(MemoryFormat x=contiguous_format) -> ()"),
    ("1.21", "f(int reduction=Mean) -> ()"),
    ("1.21", "f(ScalarType x=float) -> ()"),
    ("1.21", "f(ScalarType x=long) -> ()"),
    ("1.21", "f(ScalarType x=double) -> ()"),
    ("1.21", "f(ScalarType x=float16) -> ()"),
    ("1.21", "f(ScalarType x=float32) -> ()"),
    ("1.21", "f(ScalarType x=int64) -> ()"),
    ("1.21", "f(ScalarType x=bfloat16) -> ()"),
    ("1.21", "f(ScalarType x=half) -> ()"),
    ("1.21", "f(ScalarType x=int) -> ()"),
    ("1.21", "f(ScalarType x=short) -> ()"),
    ("1.21", "f(ScalarType x=bool) -> ()"),
    ("1.21", "f(ScalarType x=uint8) -> ()"),
    ("1.21", "f(ScalarType x=int8) -> ()"),
    ("1.21", "f(ScalarType x=int16) -> ()"),
    ("1.21", "f(ScalarType x=int32) -> ()"),
    ("1.21", "f(ScalarType x=float64) -> ()"),
    ("1.21", "f(ScalarType x=complex64) -> ()"),
    ("1.21", "f(ScalarType x=complex128) -> ()"),
    ("1.21", "f(ScalarType x=float8_e4m3fn) -> ()"),
    ("1.21", "f(ScalarType x=cfloat) -> ()"),
    ("1.21", "f(ScalarType x=chalf) -> ()"),
    ("1.21", "f(ScalarType x=complex32) -> ()"),
    ("1.21", "f(ScalarType x=uint16) -> ()"),
    ("1.21", "f(ScalarType? x=float) -> ()"),
    ("1.22", r#"f(str x="é") -> ()"#),
    ("1.23", r#"f(Device x="cuda:0") -> ()"#),
    ("1.23", r#"f(Device? x="cpu") -> ()"#),
];

#[test]
fn probes_agree_with_torch_except_where_listed() {
    let probes = facts("schema-probes.jsonl");
    assert_eq!(probes.len(), 342);
    let mut differing = 0;
    for probe in &probes {
        let text = probe["schema"].as_str().unwrap();
        let is_listed = |list: &[(&str, &str)]| list.iter().any(|(_, listed)| *listed == text);
        let theirs = probe["printed"].as_str();
        let expected = match (is_listed(REFUSED), is_listed(KEPT)) {
            (true, _) => None,
            (_, true) => Some(text),
            _ => theirs,
        };
        let ours = Schema::parse(text);
        let printed = ours.as_ref().map(Schema::to_string).map_err(|error| error.to_string());
        assert_eq!(printed.as_deref().ok(), expected, "{text}: {printed:?}");
        if let Ok(schema) = ours {
            assert_eq!(Schema::parse(&schema.to_string()).unwrap(), schema, "{text}");
        }
        differing += usize::from(expected != theirs);
    }
    assert_eq!(differing, REFUSED.len() + KEPT.len());
}
