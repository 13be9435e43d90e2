//! The verifier: a captured graph is clean; each planted fault is found under its rule.

mod support;

use support::*;
use tp_dispatch::{Effects, Value};
use tp_graph::entity::Entity;
use tp_graph::ir::{Alias, Const, Def, Operand, Target, ValueType};
use tp_graph::{Graph, NodeId, ValueId, capture_graph};
use tp_tensor::DType;

fn sample() -> Graph {
    install();
    let x = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let captured = capture_graph(&[t(&x)], &names(&["x"]), &mut |inputs| {
        let x = inputs[0].tensor().unwrap();
        let y = op("tp::mul.Scalar", &[t(x), num(2.0)]);
        let v = op("tp::transpose", &[t(&y), tp_dispatch::Arg::Int(0), tp_dispatch::Arg::Int(1)]);
        let z = op("tp::sum", &[t(&v)]);
        Ok(vec![Value::Tensor(z), Value::Tensor(v)])
    });
    captured.unwrap().graph
}

fn rules(graph: &Graph) -> Vec<&'static str> {
    graph.verify().iter().map(|v| v.rule).collect()
}

#[test]
fn a_captured_graph_is_clean() {
    let graph = sample();
    assert_eq!(graph.verify(), []);
    assert!(graph.check().is_ok());
    assert_eq!(Graph::parse(&graph.text()).unwrap(), graph);
}

#[test]
fn symbols_are_declared_and_shown_before_they_are_needed() {
    install();
    let verdict =
        |body: &str| rules(&Graph::parse(&format!("graph(%0 x: float32[4]) {{\n{body}}}")).unwrap());
    let zeros = "%1: float32[u0, 2] = tp::zeros.default([u0, 2], None, None)\n return %1\n";
    assert_eq!(verdict(&format!("size u0 >= 0\n{zeros}")), ["size-known"]);
    let stray = verdict("%1: float32[u0] = no::op.default(%0)\n return %1\n");
    assert_eq!(stray, ["registered", "size-known"]);
    let shown = Graph::parse(
        "graph(%0 x: float32[u0, 2]) {\n size u0 >= 0\n %1: float32[2*u0] = \
         tp::zeros.default([2*u0], None, None)\n return %1\n}",
    );
    assert_eq!(rules(&shown.unwrap()), [""; 0]);
}

type Fault = fn(&mut Graph);

#[test]
fn every_planted_fault_is_found() {
    let first = NodeId(0);
    assert_eq!(first.index(), 0);
    let faults: [(&str, Fault); 15] = [
        ("def-before-use", |g| g.nodes[NodeId(0)].inputs[0] = Operand::Value(ValueId(3))),
        ("def-before-use", |g| g.nodes[NodeId(0)].inputs[0] = Operand::Value(ValueId(99))),
        ("def-before-use", |g| g.outputs.push(Operand::Value(ValueId(99)))),
        ("def-numbering", |g| g.values[ValueId(1)].def = Def::Input(0)),
        ("def-numbering", |g| {
            let copy = g.values[ValueId(1)].clone();
            assert_eq!(g.values.push(copy), ValueId(4));
        }),
        ("tensor-operand", |g| g.values[ValueId(1)].ty = ValueType::Other("int".into())),
        ("input-names", |g| g.inputs[0].name = "".into()),
        ("registered", |g| g.nodes[NodeId(0)].target = Target::Unknown("no::body.default".into())),
        ("arity", |g| drop(g.nodes[NodeId(0)].inputs.pop())),
        ("argument-kind", |g| g.nodes[NodeId(0)].inputs[1] = Operand::Const(Const::Str("two".into()))),
        ("argument-kind", |g| g.nodes[NodeId(1)].inputs[1] = Operand::Const(Const::Float(0.5))),
        ("results", |g| g.nodes[NodeId(2)].outputs.clear()),
        ("effects", |g| g.nodes[NodeId(0)].effects = Effects { random: true, ..Effects::PURE }),
        ("fake-rule", |g| {
            if let ValueType::Tensor(spec) = &mut g.values[ValueId(1)].ty {
                spec.dtype = DType::F64;
            }
        }),
        ("alias-declared", |g| g.values[ValueId(1)].alias = Some(Alias::View(ValueId(0)))),
    ];
    for (rule, plant) in faults {
        let mut graph = sample();
        plant(&mut graph);
        let found = rules(&graph);
        assert!(found.contains(&rule), "{rule} not in {found:?}");
        assert!(graph.check().unwrap_err().to_string().contains("breaks a rule"));
    }
}

#[test]
fn violations_show_node_text_and_all_are_collected() {
    let mut graph = sample();
    graph.nodes[NodeId(0)].target = Target::Unknown("no::body.default".into());
    graph.nodes[NodeId(2)].effects = Effects { ordered: true, ..Effects::PURE };
    let found = graph.verify();
    assert_eq!(
        found.iter().map(|v| (v.rule, v.node)).collect::<Vec<_>>(),
        [("registered", Some(NodeId(0))), ("effects", Some(NodeId(2)))]
    );
    assert_eq!(
        found[0].to_string(),
        "registered: n0: no::body.default is not registered\n    %1: float32[2, 2] = no::body.default(%0, 2.0)"
    );
}

#[test]
fn alias_facts_are_checked() {
    let mut graph = sample();
    graph.values[ValueId(2)].alias = Some(Alias::View(ValueId(3)));
    assert!(rules(&graph).contains(&"alias-order"));
    let mut graph = sample();
    graph.values[ValueId(3)].alias = Some(Alias::Same(ValueId(0)));
    assert!(rules(&graph).contains(&"alias-type"));
}

#[test]
fn pictures_and_tables_name_every_node() {
    let graph = sample();
    let dot = graph.to_dot();
    assert!(dot.starts_with("digraph {") && dot.trim_end().ends_with('}'));
    assert_eq!(dot.matches(" -> n").count(), 3);
    let table = graph.table();
    assert_eq!(table.lines().count(), 1 + graph.inputs.len() + graph.nodes.len());
    assert!(table.contains("tp::transpose.default"));
    let svg = graph.svg();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<rect ").count(), graph.inputs.len() + graph.nodes.len() + graph.outputs.len());
    assert_eq!(svg.matches("<path ").count(), 5);
}
