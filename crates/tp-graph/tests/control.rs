//! Control flow in graphs: the text with blocks, the rules of the verifier, captures from Rust, and runs.

mod support;

use std::sync::Arc;
use support::*;
use tp_dispatch::{Effects, Rets, Value};
use tp_graph::capture::{self, control};
use tp_graph::compile::{Built, CompileOptions, CompiledFunction};
use tp_graph::ir::{Alias, Const, Operand, Output, Target, ValueType};
use tp_graph::{Graph, NodeId, ValueId};
use tp_tensor::symbols::Symbols;
use tp_tensor::{DType, Device, Tensor};

const TEXT: &str = "\
graph(%0 x: float32[3], %1 p: bool[], %2 n: float32[]) {
  [%3: float32[3]] = tp::cond(%1, [%0])  # random; at model.py:3
    true(%0 a: float32[3]) {
      %1: float32[3] = tpc::random.default(%0)  # random; at model.py:4
      return %1
    }
    false(%0 a: float32[3]) {
      [%1: float32[3]] = tp::while_loop([%0], [%0])
        cond(%0 c: float32[3], %1 k: float32[3]) {
          %2: float32[] = tp::sum.default(%0, None, None, False)
          %3: bool[] = tp::lt.Scalar(%2, 3.0)
          return %3
        }
        body(%0 c: float32[3], %1 k: float32[3]) {
          %2: float32[3] = tp::add.Scalar(%0, 1.0)
          return %2
        }
      return %1
    }
  return %3
}
";

fn sample() -> Graph {
    install();
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        opaque_triple("tpc::random", Effects { random: true, ..Effects::PURE });
    });
    Graph::parse(TEXT).unwrap()
}

#[test]
fn blocks_are_printed_and_read_back() {
    let graph = sample();
    assert_eq!(graph.text(), TEXT);
    assert_eq!(graph.verify(), []);
    assert_eq!(graph.nodes[NodeId(0)].target.name(), "tp::cond");
    let inner = &graph.nodes[NodeId(0)].blocks[1];
    assert_eq!(inner.nodes[NodeId(0)].blocks[1].targets(), ["tp::add.Scalar"]);
    assert!(Arc::ptr_eq(&graph.symbols, &inner.symbols));
}

#[test]
fn a_text_without_its_blocks_is_refused_at_its_place() {
    install();
    let text =
        "graph(%0 p: bool[]) {\n  [] = tp::cond(%0, [])\n    yes() {\n      return \n    }\n  return \n}\n";
    let e = Graph::parse(text).unwrap_err();
    assert_eq!(e.message(), "graph text, line 3, column 5: expected \"true(\", found \"yes() {\"");
    let deep = (0..80).fold(String::new(), |inner, _| {
        format!("[] = tp::cond(%0, [%0])\ntrue(%0 p: bool[]) {{\n{inner}return \n}}\nfalse(%0 p: bool[]) {{\nreturn \n}}\n")
    });
    let e = Graph::parse(&format!("graph(%0 p: bool[]) {{\n{deep}return \n}}\n")).unwrap_err();
    assert!(e.message().contains("blocks at most 64 levels deep"), "{e}");
}

#[test]
fn pictures_and_tables_have_the_blocks() {
    let graph = sample();
    let dot = graph.to_dot();
    assert!(dot.contains("subgraph cluster_n0_false_n0_body_"), "{dot}");
    assert_eq!(dot.matches("{\n").count(), dot.matches("}\n").count());
    let table = graph.table();
    assert!(table.contains("false: body: %2") && table.contains("tp::add.Scalar"), "{table}");
    let svg = graph.svg();
    assert!(svg.contains("n0 tp::while_loop body") && svg.contains("tp::add.Scalar"), "{svg}");
}

type Plant = fn(&mut Graph);

fn cond(g: &mut Graph) -> &mut tp_graph::ir::Node {
    &mut g.nodes[NodeId(0)]
}

fn looped(g: &mut Graph) -> &mut tp_graph::ir::Node {
    &mut cond(g).blocks[1].nodes[NodeId(0)]
}

#[test]
fn every_rule_of_blocks_finds_its_planted_fault() {
    let faults: [(&str, Plant); 18] = [
        ("blocks", |g| drop(cond(g).blocks.pop())),
        ("blocks", |g| cond(g).blocks[0].symbols = Symbols::new()),
        ("blocks", |g| {
            let blocks = looped(g).blocks.clone();
            cond(g).blocks[0].nodes[NodeId(0)].blocks = blocks;
        }),
        ("control-operands", |g| cond(g).inputs[0] = Operand::Value(ValueId(0))),
        ("control-operands", |g| cond(g).inputs[0] = Operand::Const(Const::Bool(true))),
        ("control-operands", |g| drop(cond(g).inputs.pop())),
        ("control-operands", |g| cond(g).outputs[0] = Output::Value(ValueId(3))),
        ("block-types", |g| cond(g).inputs[1] = Operand::List([Operand::Value(ValueId(2))].into())),
        ("block-types", |g| cond(g).inputs[1] = Operand::List(Box::default())),
        ("block-types", |g| drop(cond(g).blocks[0].outputs.pop())),
        ("block-types", |g| {
            if let ValueType::Tensor(spec) = &mut g.values[ValueId(3)].ty {
                spec.dtype = DType::F64;
            }
        }),
        ("block-types", |g| looped(g).blocks[0].outputs[0] = Operand::Value(ValueId(2))),
        ("block-types", |g| looped(g).blocks[1].outputs[0] = Operand::NONE),
        ("block-writes", |g| {
            let target = Target::resolve("tp::add_.Scalar");
            let body = &mut looped(g).blocks[1];
            body.values[ValueId(2)].alias = Some(Alias::Same(ValueId(0)));
            body.nodes[NodeId(0)].effects = target.op().unwrap().def().unwrap().effects;
            body.nodes[NodeId(0)].target = target;
        }),
        ("effects", |g| cond(g).effects = Effects::PURE),
        ("def-before-use", |g| looped(g).blocks[1].nodes[NodeId(0)].inputs[0] = Operand::Value(ValueId(7))),
        ("fake-rule", |g| {
            if let ValueType::Tensor(spec) = &mut looped(g).blocks[0].values[ValueId(2)].ty {
                spec.dtype = DType::F64;
            }
        }),
        ("registered", |g| {
            looped(g).blocks[1].nodes[NodeId(0)].target = Target::Unknown("no::body.default".into())
        }),
    ];
    for (i, (rule, plant)) in faults.into_iter().enumerate() {
        let mut graph = sample();
        plant(&mut graph);
        let found: Vec<&str> = graph.verify().iter().map(|v| v.rule).collect();
        assert!(found.contains(&rule), "fault {i}: {rule} not in {found:?}");
    }
}

#[test]
fn violations_in_a_block_say_where() {
    let mut graph = sample();
    looped(&mut graph).blocks[1].nodes[NodeId(0)].effects = Effects { ordered: true, ..Effects::PURE };
    let found: Vec<String> = graph.verify().iter().map(ToString::to_string).collect();
    let inner = "effects: n0: in false: n0: in body: n0: the node says ordered, tp::add.Scalar is pure";
    assert!(found.iter().any(|text| text.starts_with(inner)), "{found:?}");
}

fn truth(value: bool) -> Tensor {
    let t = Tensor::empty(&[], DType::Bool, Device::CPU).unwrap();
    // SAFETY: one byte.
    unsafe { *t.data_ptr().cast::<u8>() = u8::from(value) };
    t
}

/// `x * 3` where `p`, else `x + w`.
fn choose(inputs: &[Value], w: &Tensor) -> tp_dispatch::Result<Vec<Value>> {
    let (x, p) = (inputs[0].tensor().unwrap(), inputs[1].tensor().unwrap());
    let mut yes = |_: &[Tensor]| Ok(vec![op("tp::mul.Scalar", &[t(x), num(3.0)])]);
    let mut no = |_: &[Tensor]| Ok(vec![op("tp::add", &[t(x), t(w)])]);
    let results = control::cond(p, &|i| format!("result {i}"), [&mut yes, &mut no])?;
    Ok(results.into_iter().map(Value::Tensor).collect())
}

#[test]
fn a_captured_choice_runs_the_branch_that_its_bool_says() {
    install();
    let (x, w) = (tensor(&[1.0, 2.0], &[2]), tensor(&[10.0, 20.0], &[2]));
    let core = CompiledFunction::new(CompileOptions::default());
    let p = truth(true);
    let args = [t(&x), t(&p)];
    let made =
        core.build(&args, &names(&["x", "p"]), &[], &mut |inputs| Ok((choose(inputs, &w)?, Box::new(()))));
    let Built::Entry(entry) = made.unwrap() else { panic!("an entry") };
    assert_eq!(entry.graph().inputs.len(), 3, "{}", entry.graph().text());
    for (value, want) in [(true, [3.0, 6.0]), (false, [11.0, 22.0])] {
        let p = truth(value);
        let mut rets = Rets::new();
        core.call(&[t(&x), t(&p)], &mut rets).unwrap();
        assert_eq!(values(rets[0].tensor().unwrap()), want);
        let ran = core.last_run().unwrap().forward;
        assert_eq!(&*ran[0].marker.kernel, if value { "tp::cond/true" } else { "tp::cond/false" });
        assert_eq!(ran.len(), 2);
    }
}

#[test]
fn control_flow_outside_of_a_capture_is_refused() {
    install();
    let p = truth(true);
    let mut branch = |_: &[Tensor]| Ok(Vec::new());
    let mut other = |_: &[Tensor]| Ok(Vec::new());
    assert!(!capture::active());
    let e = control::cond(&p, &|i| i.to_string(), [&mut branch, &mut other]).unwrap_err();
    assert_eq!(e.code(), "TP4012");
}
