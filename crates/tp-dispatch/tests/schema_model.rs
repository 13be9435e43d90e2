//! The questions a schema answers: arguments, mutation, aliasing, defaults, compatibility; and
//! schemas built from parts instead of text.

use std::collections::HashSet;

use tp_dispatch::schema::{AliasInfo, AliasSet, ArgType, Argument, DefaultValue, OpName, Return, Schema};

fn schema(text: &str) -> Schema {
    Schema::parse_definition(text).unwrap()
}

fn signature(text: &str) -> Schema {
    schema(&format!("f{text}"))
}

#[test]
fn arguments_are_found_by_name_and_place() {
    let schema = signature("(Tensor self, int dim=0, *, Tensor(a!) out, Scalar? p=None) -> Tensor(a!)");
    assert_eq!(schema.positional_count(), 2);
    assert_eq!(schema.arg_index("self"), Some(0));
    assert_eq!(schema.arg_index("p"), Some(3));
    assert_eq!(schema.arg_index("P"), None);
    let required: Vec<bool> = schema.arguments().iter().map(Argument::is_required).collect();
    assert_eq!(required, [true, false, true, false]);
    let tensors: Vec<bool> = schema.arguments().iter().map(Argument::is_tensor_like).collect();
    assert_eq!(tensors, [true, false, true, false]);
    assert_eq!(
        schema.signature_text(),
        "(Tensor self, int dim=0, *, Tensor(a!) out, Scalar? p=None) -> Tensor(a!)"
    );
    assert_eq!(signature("() -> ()").positional_count(), 0);
}

#[test]
fn mutation_is_seen_in_lists_and_through_optional() {
    let mutated =
        |text: &str| -> Vec<usize> { signature(text).mutated_args().map(|(index, _)| index).collect() };
    assert_eq!(mutated("(Tensor x, Tensor(a!)[] xs) -> ()"), [1]);
    assert_eq!(mutated("(Tensor(a!)[](b) xs, Tensor(c!)? y, Tensor[](d!) z) -> ()"), [0, 1, 2]);
    assert_eq!(mutated("(Tensor! x, Tensor(a) y, Tensor(*!) z) -> ()"), [0, 2]);
    assert_eq!(mutated("(Tensor(a -> *) x) -> Tensor(b!)"), []);
    assert!(signature("(Tensor(a!)?[] xs) -> ()").is_mutable());
    assert!(!signature("(Tensor(a)[] xs) -> Tensor(a!)").is_mutable());

    // The container of `Tensor(a!)[]` has no set of its own; its elements have.
    let schema = signature("(Tensor(a!)[] xs) -> ()");
    let alias = schema.arguments()[0].alias().unwrap();
    assert_eq!((alias.before(), alias.after(), alias.is_write()), (&[][..], &[][..], true));
    assert_eq!(alias.element(), Some(&AliasInfo::named("a", true)));
}

#[test]
fn returns_name_the_argument_they_alias() {
    let schema = signature("(Tensor(a) x, Tensor(b!)[] ys) -> (Tensor, Tensor(b!), Tensor(a)[], Tensor(*))");
    let aliased: Vec<Option<usize>> = (0..5).map(|index| schema.aliased_arg(index)).collect();
    assert_eq!(aliased, [None, Some(1), Some(0), None, None]);
    assert_eq!(signature("(Tensor! x, Tensor! y) -> Tensor!").aliased_arg(0), None);
    assert_eq!(signature("(Tensor(a -> b) x, Tensor(b) y) -> Tensor(b)").aliased_arg(0), Some(1));
}

#[test]
fn defaults_reach_kernels_with_the_type_of_the_argument() {
    let schema = signature(
        "(float a=1, float? b=1, int[3] c=1, int[3]? d=1, int e=Mean, complex? f=2, Device? g=\"cpu\", int[1] h=[-2, -1]) -> ()",
    );
    let ints = |values: &[i64]| DefaultValue::List(values.iter().copied().map(DefaultValue::Int).collect());
    let given: Vec<DefaultValue> =
        schema.arguments().iter().map(|argument| argument.call_default().unwrap().into_owned()).collect();
    let expected = [
        DefaultValue::Float(1.0),
        DefaultValue::Float(1.0),
        ints(&[1, 1, 1]),
        ints(&[1, 1, 1]),
        DefaultValue::Int(1),
        DefaultValue::Complex(2.0, 0.0),
        DefaultValue::Device("cpu".into()),
        ints(&[-2, -1]),
    ];
    assert_eq!(given, expected);
    assert_eq!(schema.arguments()[1].default(), Some(&DefaultValue::Int(1)));
    assert_eq!(schema.arguments()[4].default().and_then(DefaultValue::as_int), Some(1));
    assert_eq!(signature("(Tensor x) -> ()").arguments()[0].call_default(), None);
}

#[test]
fn equality_sees_values_and_sets_but_also_names() {
    let same = |a: &str, b: &str| {
        let (a, b) = (signature(a), signature(b));
        let distinct = HashSet::from([a.clone(), b.clone()]).len();
        assert_eq!(distinct == 1, a == b);
        a == b
    };
    assert!(same("(ScalarType x=float) -> ()", "(ScalarType x=6) -> ()"));
    assert!(same("(Tensor(a|b) x) -> ()", "(Tensor(b|a|a) x) -> ()"));
    assert!(same("(Tensor(a -> a) x) -> ()", "(Tensor(a) x) -> ()"));
    assert!(same("(Union(int, Union(float, int)) x) -> ()", "(Union(float, int) x) -> ()"));
    assert!(same("(float x=nan) -> ()", "(float x=-nan) -> ()"));
    assert!(!same("(float x=0.) -> ()", "(float x=-0.) -> ()"));
    assert!(!same("(Scalar x=1) -> ()", "(Scalar x=1.) -> ()"));
    assert!(!same("(Tensor x) -> ()", "(Tensor y) -> ()"));
    assert!(!same("(int x) -> ()", "(*, int x) -> ()"));
}

#[test]
fn compatibility_allows_added_arguments_with_defaults() {
    let compatible = |new: &str, old: &str| signature(new).is_backward_compatible_with(&signature(old));
    assert!(compatible("(Tensor x) -> ()", "(Tensor x) -> ()"));
    assert!(compatible("(Tensor x, int y=1) -> ()", "(Tensor x) -> ()"));
    assert!(compatible("(Tensor x, *, int y=1, int z) -> ()", "(Tensor x, *, int z) -> ()"));
    assert!(!compatible("(Tensor x, int y) -> ()", "(Tensor x) -> ()"));
    assert!(!compatible("(int y=1, Tensor? x=None) -> ()", "(Tensor? x=None) -> ()"));
    assert!(!compatible("(Tensor x) -> ()", "(Tensor x, int y=1) -> ()"));
    assert!(!compatible("(Tensor x) -> Tensor", "(Tensor x) -> ()"));
    assert!(!compatible("(Tensor z) -> ()", "(Tensor x) -> ()"));
}

#[test]
fn schemas_are_built_from_parts() {
    let arguments = vec![
        Argument::new("x", ArgType::Tensor),
        Argument::new("xs", ArgType::Tensor.optional().list())
            .with_alias(AliasInfo::named("a0", true).into_list(None)),
        Argument::new("p", ArgType::Float).with_default(DefaultValue::Int(1)),
        Argument::new("text", ArgType::Str)
            .with_default(DefaultValue::Str("é \"\n\x01".into()))
            .keyword_only(),
    ];
    let returns = vec![Return::new(ArgType::Tensor).with_name("out")];
    let name = OpName::parse("ns::f").unwrap();
    let built = Schema::new(name, arguments, returns, false, false).unwrap();
    let text = r#"ns::f(Tensor x, Tensor(a0!)?[] xs, float p=1., *, str text="é \"\n\001") -> Tensor out"#;
    assert_eq!(built.to_string(), text);
    assert_eq!(built, schema(text));
    assert_eq!(built.arguments()[2].default(), Some(&DefaultValue::Float(1.0)));
    assert_eq!(built.with_name(OpName::parse("g").unwrap()).to_string(), text.replace("ns::f", "g"));
}

#[test]
fn parts_that_are_no_schema_are_refused() {
    let build = |arguments: Vec<Argument>| {
        Schema::new(OpName::parse("f").unwrap(), arguments, vec![], false, false)
            .map(|schema| schema.to_string())
    };
    let int = |name: &str| Argument::new(name, ArgType::Int);
    let expected = |arguments| build(arguments).unwrap_err().expected().to_string();
    assert_eq!(expected(vec![int("x"), int("x")]), "an argument name that is not taken");
    assert_eq!(expected(vec![int("for")]), "an argument name");
    assert_eq!(
        expected(vec![int("x").with_default(DefaultValue::Int(1)), int("y")]),
        "`=`, for a default follows a default"
    );
    assert_eq!(
        expected(vec![int("x").with_default(DefaultValue::Float(1.5))]),
        "a default of type `int` (an integer)"
    );
    assert_eq!(expected(vec![Argument::new("x", ArgType::Var("t".into()))]), "a type");
    let injected = "plain names, and keyword-only arguments last";
    assert_eq!(expected(vec![int("x, int y")]), injected);
    assert_eq!(expected(vec![int("x").keyword_only(), int("y")]), injected);
    let unnamed = AliasInfo::new([AliasSet::Fresh], false, None);
    assert_eq!(expected(vec![int("x").with_alias(unnamed)]), "an alias set (a name or `*`)");
    let element_of_no_list = AliasInfo::named("a", true).into_list(None);
    assert_eq!(expected(vec![int("x").with_alias(element_of_no_list)]), "an alias set (a name or `*`)");
    assert_eq!(build(vec![int("x").with_alias(AliasInfo::named("a", true))]).unwrap(), "f(int(a!) x) -> ()");
}

#[test]
fn signatures_take_the_name_they_are_given() {
    let name = OpName::parse("ns::f.ov").unwrap();
    let schema =
        Schema::parse_signature(name, "\n    (Tensor x,\n     int y=1  # note\n    ) -> Tensor\n").unwrap();
    assert_eq!(schema.to_string(), "ns::f.ov(Tensor x, int y=1) -> Tensor");
    let error = Schema::parse_signature(OpName::parse("f").unwrap(), "f(Tensor x) -> ()").unwrap_err();
    assert_eq!((error.offset(), error.expected()), (0, "`(`"));
}

#[test]
fn defaults_print_as_c_prints_them() {
    for (written, printed) in [
        ("float x=1", "1."),
        ("float x=-0.0", "-0."),
        ("float x=1e-5", "1.0000000000000001e-05"),
        ("float x=0.0001", "0.0001"),
        ("float x=123456789012", "123456789012."),
        ("float x=1e16", "10000000000000000."),
        ("float x=1e17", "1e+17"),
        ("float x=1.7976931348623157e308", "1.7976931348623157e+308"),
        ("float x=5e-324", "4.9406564584124654e-324"),
        ("float x=-inf", "-inf"),
        ("Scalar x=1j", "0.+1.j"),
        ("complex x=1.5-infj", "1.5-infj"),
        ("complex x=-2-nanj", "-2.+nanj"),
        ("int[3] x=[1, 1, 1]", "1"),
        ("int[1] x=[1, 1]", "[1, 1]"),
        ("int[] x=[1, 1]", "[1, 1]"),
        ("SymInt[2] x=2", "[2, 2]"),
        ("bool[2] x=True", "[True, True]"),
        ("int x=- 9223372036854775808", "-9223372036854775808"),
        ("str x='\\a\\b\\f\\v\\r\\t\\177\\303\\251'", r#""\a\b\f\v\r\t\177é""#),
    ] {
        let schema = signature(&format!("({written}) -> ()"));
        assert!(schema.arguments()[0].to_string().ends_with(&format!("={printed}")), "{schema}");
        assert_eq!(Schema::parse(&schema.to_string()).unwrap(), schema);
    }
}
