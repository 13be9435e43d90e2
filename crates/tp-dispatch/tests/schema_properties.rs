//! Properties of the schema parser and printer over arbitrary texts, damaged declarations and
//! generated schemas.

use std::path::Path;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;
use tp_dispatch::schema::{
    AliasInfo, AliasSet, ArgType, Argument, DefaultValue, EnumWord, OpName, Return, Schema,
};

/// The fuzzer of the benchmarks reads the same list.
static PIECES: &[&str] = include!("data/schema_pieces.in");
static DECLARATIONS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/torch-schemas.txt");
    std::fs::read_to_string(path).unwrap().lines().map(str::to_string).collect()
});

/// Whatever the text is: an error that points into it, or a schema that prints as itself.
fn assert_sound(text: &str) -> Result<(), TestCaseError> {
    match Schema::parse(text) {
        Ok(schema) => {
            let printed = schema.to_string();
            let again = Schema::parse(&printed);
            prop_assert_eq!(again.as_ref(), Ok(&schema), "{}", printed);
            prop_assert_eq!(again.unwrap().to_string(), printed);
        }
        Err(error) => {
            prop_assert!(text.is_char_boundary(error.offset()), "{:?}", error);
            let before = &text[..error.offset()];
            prop_assert_eq!(error.line(), before.matches('\n').count() + 1);
            prop_assert_eq!(error.column(), before.chars().rev().take_while(|c| *c != '\n').count() + 1);
            prop_assert!(error.caret().contains('^'));
        }
    }
    Ok(())
}

/// Texts made of the pieces of the grammar, which come close to schemas more often than noise.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(PIECES.to_vec()).prop_map(str::to_string),
        any::<char>().prop_map(String::from),
    ];
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

#[derive(Debug, Clone)]
enum Edit {
    Insert(prop::sample::Index, char),
    Remove(prop::sample::Index),
    Repeat(prop::sample::Index, prop::sample::Index),
    Cut(prop::sample::Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    use any as index;
    let character = prop_oneof![
        prop::sample::select("()[]?!*|,.=->:#'\"\\ \n0aTé".chars().collect::<Vec<_>>()),
        any::<char>()
    ];
    prop_oneof![
        (index::<prop::sample::Index>(), character).prop_map(|(at, with)| Edit::Insert(at, with)),
        index::<prop::sample::Index>().prop_map(Edit::Remove),
        (index::<prop::sample::Index>(), index::<prop::sample::Index>())
            .prop_map(|(a, b)| Edit::Repeat(a, b)),
        index::<prop::sample::Index>().prop_map(Edit::Cut),
    ]
}

fn apply(text: &str, edit: &Edit) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    let length = characters.len() + 1;
    match edit {
        Edit::Insert(at, with) => characters.insert(at.index(length), *with),
        Edit::Remove(at) => {
            let at = at.index(length);
            characters.drain(at..(at + 1).min(length - 1));
        }
        Edit::Repeat(a, b) => {
            let (a, b) = (a.index(length), b.index(length));
            let piece = characters[a.min(b)..a.max(b)].to_vec();
            characters.splice(a..a, piece);
        }
        Edit::Cut(at) => characters.truncate(at.index(length)),
    }
    characters.into_iter().collect()
}

fn identifier() -> impl Strategy<Value = String> {
    // The final letter keeps keywords out.
    "[a-zA-Z_][a-zA-Z0-9_]{0,30}Q"
}

fn leaf() -> impl Strategy<Value = ArgType> {
    use ArgType::*;
    prop::sample::select(vec![
        Tensor,
        Int,
        Float,
        Bool,
        Str,
        Complex,
        Scalar,
        Number,
        SymInt,
        SymBool,
        ScalarType,
        Layout,
        MemoryFormat,
        Device,
        Generator,
        Stream,
        Storage,
        QScheme,
        Quantizer,
        Any,
        AnyEnumType,
        AnyClassType,
        NoneType,
        Capsule,
        Class("__torch__.torch.classes.my.Class".into()),
    ])
}

fn key() -> impl Strategy<Value = ArgType> {
    use ArgType::*;
    prop::sample::select(vec![Int, Float, Complex, Str, Tensor, Device, Bool])
}

fn nested() -> impl Strategy<Value = ArgType> {
    leaf().prop_recursive(5, 24, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(ArgType::optional),
            inner.clone().prop_map(ArgType::list),
            vec(inner.clone(), 0..4).prop_map(|members| ArgType::Tuple(members.into())),
            vec(inner.clone(), 0..3).prop_map(|others| {
                ArgType::Union([vec![ArgType::Int, ArgType::Str], others].concat().into())
            }),
            (key(), inner.clone()).prop_map(|pair| ArgType::Dict(Box::new(pair))),
            inner.clone().prop_map(|of| ArgType::Future(Box::new(of))),
            inner.clone().prop_map(|of| ArgType::RRef(Box::new(of))),
            inner.prop_map(|of| ArgType::Await(Box::new(of))),
        ]
    })
}

/// The type of an argument, which may have a list size.
fn outer() -> impl Strategy<Value = ArgType> {
    let sized = || (nested(), 0u32..6).prop_map(|(of, size)| ArgType::List(Box::new(of), Some(size)));
    let optional = sized().prop_map(ArgType::optional);
    prop_oneof![3 => nested(), 1 => sized(), 1 => optional]
}

fn annotation() -> impl Strategy<Value = AliasInfo> {
    let sets = || {
        vec(
            prop_oneof![4 => "[a-c]".prop_map(|name| AliasSet::Named(name.as_str().into())), 1 => Just(AliasSet::Wildcard)],
            1..4,
        )
    };
    prop_oneof![
        1 => Just(AliasInfo::fresh()),
        4 => (sets(), any::<bool>(), prop::option::of(sets()))
            .prop_map(|(before, write, after)| AliasInfo::new(before, write, after)),
    ]
}

/// A tensor, or lists of them, with annotations at any level.
fn annotated() -> impl Strategy<Value = (ArgType, AliasInfo)> {
    let base =
        (prop::sample::select(vec![ArgType::Tensor, ArgType::Tensor.optional(), ArgType::Int]), annotation());
    (base, vec(prop::option::of(annotation()), 0..3), any::<bool>()).prop_map(
        |((ty, alias), lists, optional)| {
            let list = |(ty, alias): (ArgType, AliasInfo), own| (ty.list(), alias.into_list(own));
            let (ty, alias) = lists.into_iter().fold((ty, alias), list);
            (if optional { ty.optional() } else { ty }, alias)
        },
    )
}

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => any::<u64>().prop_map(f64::from_bits),
        2 => -1e6..1e6,
        1 => prop::sample::select(vec![0.0, -0.0, 1e-5, 1e10, 123456789012.0, 1e16, 1e17, 5e-324, f64::MAX, f64::INFINITY]),
    ]
}

/// A type with a default that it can have.
fn with_default() -> impl Strategy<Value = (ArgType, DefaultValue)> {
    use DefaultValue as D;
    let word = prop::sample::select(vec!["float", "long", "bfloat16", "float8_e4m3fn"])
        .prop_map(|word| D::Word(EnumWord::new(word).unwrap()));
    let ints = || vec(any::<i64>().prop_map(D::Int), 0..4);
    let single = prop_oneof![
        any::<i64>().prop_map(|value| (ArgType::Int, D::Int(value))),
        float().prop_map(|value| (ArgType::Float, D::Float(value))),
        (float(), float()).prop_map(|(real, imaginary)| (ArgType::Complex, D::Complex(real, imaginary))),
        (float(), float()).prop_map(|(real, imaginary)| (ArgType::Scalar, D::Complex(real, imaginary))),
        float().prop_map(|value| (ArgType::Scalar, D::Float(value))),
        any::<String>().prop_map(|text| (ArgType::Str, D::Str(text.into()))),
        ".*".prop_map(|text| (ArgType::Str, D::Str(text.into()))),
        any::<bool>().prop_map(|value| (ArgType::Bool, D::Bool(value))),
        Just((ArgType::Device, D::Str("cuda:3".into()))),
        Just((ArgType::Int, D::Word(EnumWord::new("Mean").unwrap()))),
        word.prop_map(|word| (ArgType::ScalarType, word)),
    ];
    prop_oneof![
        single.clone(),
        single.prop_map(|(ty, value)| (ty.optional(), value)),
        outer().prop_map(|ty| (ty.optional(), D::None)),
        ints().prop_map(|items| (ArgType::Int.list(), D::List(items.into()))),
        ints().prop_map(|items| {
            (ArgType::List(Box::new(ArgType::SymInt), Some(items.len() as u32)), D::List(items.into()))
        }),
        (0u32..6, -2i64..2)
            .prop_map(|(size, value)| (ArgType::List(Box::new(ArgType::Int), Some(size)), D::Int(value))),
        vec(float().prop_map(D::Float), 0..4)
            .prop_map(|items| (ArgType::Float.list(), D::List(items.into()))),
    ]
}

fn argument() -> impl Strategy<Value = Argument> {
    prop_oneof![
        2 => outer().prop_map(|ty| Argument::new("", ty)),
        2 => annotated().prop_map(|(ty, alias)| Argument::new("", ty).with_alias(alias)),
        2 => with_default().prop_map(|(ty, default)| Argument::new("", ty).with_default(default)),
    ]
}

fn return_value() -> impl Strategy<Value = Return> {
    let plain = prop_oneof![
        outer().prop_map(Return::new),
        annotated().prop_map(|(ty, alias)| Return::new(ty).with_alias(alias)),
    ];
    (plain, prop::option::of(identifier()))
        .prop_map(|(value, name)| name.iter().fold(value, |value, name| value.with_name(name)))
}

fn op_name() -> impl Strategy<Value = OpName> {
    (prop::option::of(identifier()), identifier(), prop::option::of("[a-z][a-z0-9_]{0,30}Q")).prop_map(
        |(namespace, name, overload)| {
            let namespace = namespace.map(|namespace| format!("{namespace}::")).unwrap_or_default();
            let overload = overload.map(|overload| format!(".{overload}")).unwrap_or_default();
            OpName::parse(&format!("{namespace}{name}{overload}")).unwrap()
        },
    )
}

type Parts = (OpName, Vec<Argument>, Vec<Return>, bool, bool);

/// The parts of a valid definition: different names, and a default only after the arguments
/// without one.
fn parts() -> impl Strategy<Value = Parts> {
    let arguments = vec((argument(), identifier(), any::<bool>()), 0..7).prop_map(|drawn| {
        let named = drawn.into_iter().enumerate().map(|(index, (drawn, name, keyword))| {
            let argument = Argument::new(&format!("{name}{index}"), drawn.ty().clone());
            let argument = drawn.default().cloned().into_iter().fold(argument, Argument::with_default);
            let argument = drawn.alias().cloned().into_iter().fold(argument, Argument::with_alias);
            if keyword { argument.keyword_only() } else { argument }
        });
        let mut arguments: Vec<Argument> = named.collect();
        arguments.sort_by_key(|argument| (argument.is_kwarg_only(), !argument.is_required()));
        arguments
    });
    (op_name(), arguments, vec(return_value(), 0..4), any::<bool>(), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text_is_sound(text in any::<String>()) {
        assert_sound(&text)?;
    }

    #[test]
    fn near_schemas_are_sound(text in pieces()) {
        assert_sound(&text)?;
        assert_sound(&format!("f({text}"))?;
        assert_sound(&format!("f(int x={text}) -> ()"))?;
    }

    #[test]
    fn damaged_declarations_are_sound(line in any::<prop::sample::Index>(), edits in vec(edit(), 1..5)) {
        let line = line.get(&DECLARATIONS).clone();
        assert_sound(&edits.iter().fold(line, |text, edit| apply(&text, edit)))?;
    }

    #[test]
    fn generated_schemas_read_back((name, arguments, returns, is_vararg, is_varret) in parts()) {
        let counts = (arguments.len(), returns.len());
        let schema = Schema::new(name, arguments, returns, is_vararg, is_varret);
        prop_assert!(schema.is_ok(), "{:?}", schema);
        let schema = schema.unwrap();
        prop_assert_eq!((schema.arguments().len(), schema.returns().len()), counts);
        let printed = schema.to_string();
        let parsed = Schema::parse_definition(&printed);
        prop_assert_eq!(parsed.as_ref(), Ok(&schema), "{}", printed);
        let again = Schema::parse_signature(schema.name().clone(), &schema.signature_text());
        prop_assert_eq!(again.as_ref(), Ok(&schema));
        for argument in schema.arguments() {
            let fitted = argument.default().map(|default| default.clone().fit(argument.ty()));
            prop_assert_eq!(fitted, argument.default().cloned().map(Ok));
        }
    }
}
