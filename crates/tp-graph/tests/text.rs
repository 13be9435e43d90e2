//! The text form: parse and print are inverse, errors point at the place.

mod support;

use proptest::prelude::*;
use smallvec::SmallVec;
use support::install;
use tp_dispatch::host::Location;
use tp_dispatch::{Effects, Phase};
use tp_graph::builder::{GraphBuilder, NewNode, NewOutput, NewValue};
use tp_graph::ir::{Alias, Const, InputKind, Operand, Target, ValueType};
use tp_graph::{Graph, ValueId};
use tp_tensor::{DType, Device, Dim, TensorSpec};

const EXAMPLE: &str = "\
graph(%0 x: float32[2, 3], %1 \"cfg['w']\": float32[3, 2] strides [1, 3] lifted, %2 g: int64[s0, 4] on cuda:1 gradient shares %0) {
  %3: float32[2, 3] = tp::mul.Scalar(%0, 2.0)  # at model.py:12
  %4: float32[2, 3] = tp::add_.Tensor(%3, %1)  # mutates; %4 is %3; at model.py:13
  (%5: float32[3], [%6: bool[], %7: float32[1]], %8: int) = my::op([%3, None], [1, -2], inf, -0.0, \"a\\\"b\\n\", float16, cuda:0)  # random, ordered; %5 views %4; backward; at C:\\\\a; at b.py:1
  my::log.default(True, None, [])  # ordered
  return %4, %5, 3, None
}
";

fn wrapped(text: &str) -> String {
    // Long headers print one input per line.
    text.replacen("graph(", "graph(\n    ", 1)
        .replacen(", %1 ", ",\n    %1 ", 1)
        .replacen(", %2 g", ",\n    %2 g", 1)
        .replacen("%0) {", "%0\n) {", 1)
}

#[test]
fn an_example_reads_and_prints_back() {
    let graph = Graph::parse(EXAMPLE).unwrap();
    assert_eq!(graph.text(), wrapped(EXAMPLE));
    assert_eq!(Graph::parse(&graph.text()).unwrap(), graph);
    assert_eq!(graph.nodes.len(), 4);
    let node = graph.nodes.values().nth(2).unwrap();
    assert_eq!(node.target.name(), "my::op");
    assert_eq!(node.phase, Phase::Backward);
    assert_eq!(node.location.as_ref().unwrap().file.as_ref(), "C:\\a; at b.py");
    assert_eq!(graph.values[ValueId(5)].alias, Some(Alias::View(ValueId(4))));
    assert_eq!(graph.inputs[1].name.as_ref(), "cfg['w']");
}

#[test]
fn known_ops_print_their_resolved_overload() {
    install();
    let text = "graph(%0 x: float32[2]) {\n  %1: float32[2] = tp::neg.default(%0)\n  return %1\n}\n";
    let graph = Graph::parse(&text.replace("neg.default", "neg")).unwrap();
    assert_eq!(graph.text(), text);
    assert!(graph.nodes.values().all(|n| n.target.op().is_some()));
}

#[test]
fn errors_name_line_and_column() {
    let cases = [
        ("graf()", "line 1, column 1"),
        ("graph(%0 x: float32[2]) {\n  %2: float32[2] = a::b(%0)\n  return %2\n}", "the definition of %1"),
        ("graph(%0 x: float32[2]) {\n  %1: float32[2] = ab(%0)\n  return %1\n}", "line 2"),
        (
            "graph() {\n  a::b(nonsense)\n  return \n}",
            "line 2, column 8: expected a value, a literal or a list",
        ),
        ("graph() {\n  a::b()  # sings\n  return \n}", "a comment item, not \"sings\""),
        ("graph() {\n  return 1\n} more", "the end of the graph"),
        ("graph() {\n  a::b(\"x)\n  return \n}", "a closing quote"),
        ("", "line 1, column 1"),
        ("graph(", "expected"),
    ];
    for (text, wanted) in cases {
        let e = Graph::parse(text).unwrap_err();
        assert!(e.to_string().contains(wanted), "{text:?}: {e}");
    }
}

#[test]
fn symbolic_sizes_read_back() {
    let text = "graph(%0 x: float32[4]) {\n  size u0 in [2, 10]\n  size u1 >= 0\n  check u0 < u1 + 1, \"why\"  # at a.py:3\n  \
                %1: float32[u0, 2*u0*u1 - 3] = a::b(%0, [4*u0, 2], u0//2)\n  return %1, u0 + 1\n}\n";
    let graph = Graph::parse(text).unwrap();
    assert_eq!(graph.text(), text);
    assert_eq!(Graph::parse(&graph.text()).unwrap(), graph);
    assert_eq!((graph.symbols.len(), graph.symbols.checks().len()), (2, 1));
    let refused = [
        ("  size u1 >= 0\n", "the declaration of s0 or u0"),
        ("  size u0 in [3, 2]\n", "a range of sizes"),
        ("  size u0 >= -1\n", "a range of sizes"),
        ("  size u0 >= 0\n  check u0 4\n", "a comparison"),
        ("  size u0 >= 0\n  check < 4\n", "a size"),
    ];
    for (lines, wanted) in refused {
        let e = Graph::parse(&format!("graph() {{\n{lines}  return 1\n}}")).unwrap_err();
        assert!(e.to_string().contains(wanted), "{lines:?}: {e}");
    }
}

fn spec() -> impl Strategy<Value = TensorSpec> {
    let dim = prop_oneof![0i64..6, (0u32..3).prop_map(|i| Dim::symbol(i).raw())];
    let devices = prop_oneof![Just(Device::CPU), Just(Device::cuda(1)), Just(Device::META)];
    (prop::collection::vec(dim, 0..4), any::<prop::sample::Index>(), devices, prop::option::of(-9i64..9))
        .prop_map(|(sizes, dtype, device, stride)| {
            let mut spec = TensorSpec::contiguous(&sizes, DType::ALL[dtype.index(DType::COUNT)], device);
            if let Some(stride) = stride {
                spec.strides.iter_mut().for_each(|s| *s = stride);
            }
            spec
        })
}

fn constant() -> impl Strategy<Value = Const> {
    prop_oneof![
        Just(Const::None),
        any::<bool>().prop_map(Const::Bool),
        any::<i64>().prop_map(Const::Int),
        any::<u64>().prop_map(|bits| Const::Float(f64::from_bits(bits))),
        prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-0.0), Just(1e300), Just(1e16)]
            .prop_map(Const::Float),
        ".*".prop_map(|s| Const::Str(s.into())),
        any::<prop::sample::Index>().prop_map(|i| Const::DType(DType::ALL[i.index(DType::COUNT)])),
        Just(Const::Device(Device::cuda(3))),
    ]
}

#[derive(Clone, Debug)]
struct Draft {
    operands: Vec<(Const, prop::sample::Index, u8)>,
    outputs: Vec<(TensorSpec, u8)>,
    effects: u8,
    file: Option<(String, u32)>,
}

fn draft() -> impl Strategy<Value = Draft> {
    let operand = (constant(), any::<prop::sample::Index>(), 0u8..4);
    (
        prop::collection::vec(operand, 0..4),
        prop::collection::vec((spec(), 0u8..6), 0..3),
        0u8..16,
        prop::option::of((".*", any::<u32>())),
    )
        .prop_map(|(operands, outputs, effects, file)| Draft { operands, outputs, effects, file })
}

fn build(inputs: Vec<(TensorSpec, String, u8)>, drafts: Vec<Draft>) -> Graph {
    let mut b = GraphBuilder::new();
    let mut values: Vec<ValueId> = Vec::new();
    for (spec, name, kind) in inputs {
        let alias = (kind & 4 != 0).then(|| values.last().copied()).flatten().map(Alias::Shares);
        values.push(b.input(name, InputKind::ALL[kind as usize % 4], ValueType::Tensor(spec), alias));
    }
    for d in drafts {
        let pick = |at: &prop::sample::Index, c: &Const| match values.is_empty() {
            true => Operand::Const(c.clone()),
            false => Operand::Value(values[at.index(values.len())]),
        };
        let operand = |(c, at, how): &(Const, prop::sample::Index, u8)| match how {
            0 => Operand::Const(c.clone()),
            1 => pick(at, c),
            2 => Operand::List(Box::new([pick(at, c), Operand::Const(c.clone())])),
            _ => Operand::List(Box::default()),
        };
        let inputs: SmallVec<[Operand; 4]> = d.operands.iter().map(operand).collect();
        let new_value = |spec: &TensorSpec, how: u8| NewValue {
            ty: if how == 1 { ValueType::Other("list[int]".into()) } else { ValueType::Tensor(spec.clone()) },
            alias: match (how, values.last()) {
                (2, Some(v)) => Some(Alias::View(*v)),
                (3, Some(v)) => Some(Alias::Same(*v)),
                _ => None,
            },
        };
        let outputs: SmallVec<[NewOutput; 1]> = d
            .outputs
            .iter()
            .map(|(spec, how)| match how {
                5 => NewOutput::List(vec![new_value(spec, 0), new_value(spec, 2)]),
                4 => NewOutput::List(Vec::new()),
                how => NewOutput::Value(new_value(spec, *how)),
            })
            .collect();
        let bit = |i: u8| d.effects & 1 << i != 0;
        let node = b.node(
            NewNode {
                target: Target::resolve("my_ns::some_op.over"),
                blocks: Vec::new(),
                inputs,
                effects: Effects {
                    mutates: bit(0),
                    random: bit(1),
                    ordered: bit(2),
                    nondeterministic: bit(3),
                },
                location: d.file.map(|(file, line)| Location { file: file.into(), line }),
                phase: if bit(0) == bit(3) { Phase::Forward } else { Phase::Backward },
            },
            outputs,
        );
        values.extend(b.graph().nodes[node].defined());
    }
    let outputs =
        values.iter().rev().take(2).map(|v| Operand::Value(*v)).chain([Operand::Const(Const::Float(0.5))]);
    let outputs = outputs.collect();
    b.finish(outputs)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn parse_is_the_inverse_of_print(
        inputs in prop::collection::vec((spec(), ".*", 0u8..8), 0..4),
        drafts in prop::collection::vec(draft(), 0..5),
    ) {
        let graph = build(inputs, drafts);
        let text = graph.text();
        let back = Graph::parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(&back, &graph, "{}", text);
        prop_assert_eq!(back.text(), text);
    }

    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _ = Graph::parse(&text);
        let _ = Graph::parse(&format!("graph(%0 x: float32[2]) {{\n  {text}\n  return %0\n}}"));
    }
}
