//! What the schema parser says about texts that are no schemas, to the letter; and the rules in
//! which it is stricter than PyTorch.

use tp_dispatch::schema::{OpName, Schema};

fn message(text: &str) -> String {
    Schema::parse(text).unwrap_err().to_string()
}

fn definition_message(text: &str) -> String {
    Schema::parse_definition(text).unwrap_err().to_string()
}

#[test]
fn errors_point_at_the_offending_token() {
    assert_eq!(
        message("f(Tensor) -> ()"),
        "expected an argument name but found `)` (line 1, column 9)\n  \
           f(Tensor) -> ()\n  \
         \x20       ^"
    );
    assert_eq!(
        message("f(Foo x) -> ()"),
        "expected a type but found `Foo` (line 1, column 3)\n  \
           f(Foo x) -> ()\n  \
         \x20 ^^^"
    );
    assert_eq!(
        message("f(Tensor x)"),
        "expected `->` but found the end of the text (line 1, column 12)\n  \
           f(Tensor x)\n  \
         \x20          ^"
    );
    assert_eq!(
        message("f(Tensor x)\n-> Tensor"),
        "expected `->` but found a line break (line 1, column 12)\n  \
           f(Tensor x)\n  \
         \x20          ^"
    );
    assert_eq!(
        message("f(Tensor é) -> ()"),
        "expected an argument name but found `é` (line 1, column 10)\n  \
           f(Tensor é) -> ()\n  \
         \x20        ^"
    );
}

#[test]
fn columns_count_characters_and_lines_count_breaks() {
    let text = "f(Tensor x, # ünï\n\tstr s='é', int y=) -> ()";
    let error = Schema::parse(text).unwrap_err();
    assert_eq!((error.line(), error.column()), (2, 19));
    assert_eq!(error.offset(), text.find(") ->").unwrap());
    assert_eq!(error.expected(), "a default value");
    assert_eq!(error.found(), "`)`");
    assert_eq!(error.caret(), "  \tstr s='é', int y=) -> ()\n  \t                 ^");
}

#[test]
fn long_lines_are_cut_around_the_mark() {
    let text = format!("f({}Tensor) -> {}", "Tensor a, ".repeat(30), "Tensor".repeat(30));
    let error = Schema::parse(&text).unwrap_err();
    let lines: Vec<&str> = error.caret().lines().collect();
    assert!(lines[0].starts_with("  ...") && lines[0].ends_with("..."), "{error}");
    assert_eq!(lines[1].find('^'), lines[0].find(')'));
    assert!(lines[0].len() < 140);
}

#[test]
fn defaults_have_to_fit_their_type() {
    for (argument, expected, found) in [
        ("int x=1.5", "a default of type `int` (an integer)", "`1.5`"),
        ("float x=True", "a default of type `float` (a number)", "`True`"),
        ("str x=None", "a default of type `str` (a quoted string)", "`None`"),
        ("bool? x=1", "a default of type `bool?` (`None`, or `True` or `False`)", "`1`"),
        ("Tensor[]? x=[]", "a default of type `Tensor[]?` (`None`)", "`[]`"),
        ("Tensor x=none", "a default value", "`none`"),
        (
            "int[3] x=[1, 2]",
            "a default of type `int[3]` (one value to repeat, or a list of that size)",
            "`[1, 2]`",
        ),
        ("int[] x=1", "a default of type `int[]` (a list such as `[]` with elements of that type)", "`1`"),
        ("str[] x=[]", "no default, for the type `str[]` has none", "`[]`"),
        ("Any x=None", "no default, for the type `Any` has none", "`None`"),
        ("Device d=\"gpu\"", "a default of type `Device` (a quoted device such as \"cuda:0\")", "`\"gpu\"`"),
        (
            "Device d=\"cuda:01\"",
            "a default of type `Device` (a quoted device such as \"cuda:0\")",
            "`\"cuda:01\"`",
        ),
        ("ScalarType x=46", "a default of type `ScalarType` (a dtype such as `float` or its code)", "`46`"),
        ("int x=9223372036854775808", "an integer of 64 bits", "`9223372036854775808`"),
        ("int x=-9223372036854775809", "an integer of 64 bits", "`9223372036854775809`"),
        ("float x=1e400", "a number within the range of a double", "`1e400`"),
        ("int x=0x10", "a decimal number", "`0x10`"),
        ("str x=\"\\q\"", r#"a string with the escapes \\ \' \" \a \b \f \n \r \t \v \ooo"#, "`\"\\q\"`"),
        ("str x=\"a) -> ()", "a closing quote", "the end of the line"),
        (
            "int[99999] x=1",
            "a default of type `int[99999]` (one value to repeat, or a list of that size)",
            "`1`",
        ),
    ] {
        let error = Schema::parse(&format!("f({argument}) -> ()")).unwrap_err();
        assert_eq!((error.expected(), error.found()), (expected, found), "{argument}");
    }
}

#[test]
fn types_say_how_they_are_written() {
    for (ty, expected, found) in [
        ("Optional[int]", "a type (an optional one is written `T?`)", "`Optional`"),
        ("List(int)", "a type (a list is written `T[]`)", "`List`"),
        ("Dict(float[], int)", "a key type (int, float, complex, bool, str, Tensor or Device)", "`float[]`"),
        ("Union(int, int)", "at least two different types", "`Union(int, int)`"),
        ("int[x]", "`]` or a list size", "`x`"),
        ("Tensor(a!|b)", "`!`, `|`, `->` or `)`", "`|`"),
        ("Tensor(0!)", "an alias set (a name or `*`)", "`0`"),
        ("__torch__.foo.Bar", "`__torch__.torch.classes.<namespace>.<class>`", "`__torch__.foo`"),
    ] {
        let error = Schema::parse(&format!("f({ty} x) -> ()")).unwrap_err();
        assert_eq!((error.expected(), error.found()), (expected, found), "{ty}");
    }
}

#[test]
fn definitions_refuse_repeated_names_and_type_variables() {
    assert!(Schema::parse("f(Tensor x, Tensor x) -> ()").is_ok());
    assert_eq!(
        definition_message("f(Tensor x, Tensor x) -> ()"),
        "expected an argument name that is not taken but found `x` (line 1, column 20)\n  \
           f(Tensor x, Tensor x) -> ()\n  \
         \x20                  ^"
    );
    assert_eq!(
        definition_message("f(tensor x) -> ()"),
        "expected a type but found `tensor` (line 1, column 3)\n  \
           f(tensor x) -> ()\n  \
         \x20 ^^^^^^"
    );
    let many: Vec<String> = (0..100).map(|index| format!("int x{}", index % 99)).collect();
    let text = format!("f({}) -> ()", many.join(", "));
    let error = Schema::parse_definition(&text).unwrap_err();
    assert_eq!(error.found(), "`x0`");
    assert_eq!(error.offset(), text.rfind("x0").unwrap());
}

#[test]
fn a_default_follows_a_default_unless_keyword_only() {
    let error = Schema::parse("f(Tensor x, int y=1, int z) -> ()").unwrap_err();
    assert_eq!((error.expected(), error.found()), ("`=`, for a default follows a default", "`)`"));
    assert!(Schema::parse("f(Tensor x, int y=1, *, int z) -> ()").is_ok());
}

#[test]
fn names_obey_the_overload_rules() {
    for text in ["f.default", "f.__x", "f.", "a::b::f", "f.a.b", "1f", "for", "", "f("] {
        assert!(OpName::parse(text).is_err(), "{text}");
    }
    let name = OpName::parse("ns::f.ov").unwrap();
    assert_eq!((name.namespace(), name.name(), name.overload()), (Some("ns"), "f", Some("ov")));
    assert_eq!(name.to_string(), "ns::f.ov");
    let bare = OpName::parse("ns.f").unwrap();
    assert_eq!((bare.namespace(), bare.name(), bare.overload()), (None, "ns", Some("f")));
}

#[test]
fn nesting_is_limited_without_running_out_of_stack() {
    for deep in ["Future(".repeat(100_000), "(".repeat(100_000), "Dict(int, ".repeat(50_000)] {
        let error = Schema::parse(&format!("f({deep}")).unwrap_err();
        assert_eq!(error.expected(), "at most 64 levels of nested types");
    }
    let error = Schema::parse(&format!("f(int{} x) -> ()", "[]".repeat(100_000))).unwrap_err();
    assert_eq!(error.expected(), "at most 64 levels of nested types");
    let within = format!("f(int{} x) -> Future(int{})", "[]".repeat(63), "[]".repeat(62));
    assert_eq!(Schema::parse(&within).unwrap().to_string(), within);
    let error = Schema::parse(&format!("f(int{} x) -> ()", " ".repeat(2 << 20))).unwrap_err();
    assert_eq!(error.expected(), "at most 1048576 bytes");
}
