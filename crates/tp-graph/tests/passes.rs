//! Passes and the partition: what goes, what stays because of its effects, and where pointwise chains end.

mod support;

use support::*;
use tp_dispatch::{Arg, Call, Effects, FakeRule, Result, Rets, Value};
use tp_graph::passes::{self, partition};
use tp_graph::{Graph, capture_graph};

const RANDOM: Effects = Effects { random: true, ..Effects::PURE };
const ORDERED: Effects = Effects { ordered: true, ..Effects::PURE };

fn nothing(_: &Call<'_>, _: &mut Rets) -> Result<()> {
    Ok(())
}

fn captured(f: impl Fn(&tp_tensor::Tensor) -> Vec<tp_tensor::Tensor>) -> Graph {
    install();
    let x = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let captured = capture_graph(&[t(&x)], &names(&["x"]), &mut |inputs| {
        Ok(f(inputs[0].tensor().unwrap()).into_iter().map(Value::Tensor).collect())
    });
    let graph = captured.unwrap().graph;
    assert_eq!(graph.verify(), []);
    graph
}

fn simplified(graph: &Graph) -> (Vec<String>, Vec<(String, &'static str)>) {
    let (graph, removed) = passes::simplify(graph);
    assert_eq!(graph.verify(), []);
    (graph.targets(), removed.into_iter().map(|r| (r.target, r.pass)).collect())
}

#[test]
fn dead_code_goes_unless_it_has_effects() {
    install();
    define("p::log(Tensor x, int n) -> ()", ORDERED, FakeRule::Nothing, nothing);
    define("p::silent(Tensor x, int n) -> ()", Effects::PURE, FakeRule::Nothing, nothing);
    opaque_triple("p::draw", RANDOM);
    let graph = captured(|x| {
        op("tp::exp", &[t(x)]);
        for n in [1, 2] {
            op("p::log", &[t(x), Arg::Int(n)]);
            op("p::silent", &[t(x), Arg::Int(n)]);
        }
        op("p::draw", &[t(x)]);
        vec![op("tp::neg", &[t(x)])]
    });
    let (targets, removed) = simplified(&graph);
    assert_eq!(targets, ["p::log.default", "p::log.default", "p::draw.default", "tp::neg.default"]);
    let dead = |name: &str| (format!("{name}.default"), "dead code");
    assert_eq!(removed, [dead("tp::exp"), dead("p::silent"), dead("p::silent")]);
    let order: Vec<String> =
        passes::simplify(&graph).0.nodes.values().map(|n| n.inputs.last().unwrap().to_string()).collect();
    assert_eq!(order[..2], ["1", "2"]);
}

#[test]
fn equal_calls_merge_unless_random_written_or_returned() {
    install();
    opaque_triple("p::pure", Effects::PURE);
    opaque_triple("p::noise", RANDOM);
    let graph = captured(|x| {
        let (a, b) = (op("p::pure", &[t(x)]), op("p::pure", &[t(x)]));
        let (c, d) = (op("p::noise", &[t(x)]), op("p::noise", &[t(x)]));
        vec![op("tp::sub", &[t(&a), t(&b)]), op("tp::sub", &[t(&c), t(&d)])]
    });
    let (targets, removed) = simplified(&graph);
    assert_eq!(
        targets,
        ["p::pure.default", "p::noise.default", "p::noise.default", "tp::sub.default", "tp::sub.default"]
    );
    assert_eq!(removed, [("p::pure.default".to_string(), "common subexpression")]);

    let both_returned = captured(|x| vec![op("tp::exp", &[t(x)]), op("tp::exp", &[t(x)])]);
    assert_eq!(simplified(&both_returned).0.len(), 2);

    let written = captured(|x| {
        let (a, b) = (op("tp::exp", &[t(x)]), op("tp::exp", &[t(x)]));
        op("tp::add_.Scalar", &[t(&a), num(1.0)]);
        vec![op("tp::sub", &[t(&a), t(&b)])]
    });
    assert_eq!(simplified(&written).0.len(), 4);

    let between = captured(|x| {
        let a = op("tp::exp", &[t(x)]);
        op("tp::add_.Scalar", &[t(x), num(1.0)]);
        let b = op("tp::exp", &[t(x)]);
        vec![op("tp::sub", &[t(&a), t(&b)])]
    });
    assert_eq!(simplified(&between).0.len(), 4);
}

#[test]
fn identities_go_only_where_nobody_can_tell() {
    let inner = captured(|x| {
        let y = op("tp::mul.Scalar", &[t(x), num(1.0)]);
        let z = op("tp::sub.Scalar", &[t(&y), num(0.0)]);
        let w = op("tp::clone", &[t(&z)]);
        vec![op("tp::exp", &[t(&w)])]
    });
    let (targets, removed) = simplified(&inner);
    assert_eq!(targets, ["tp::exp.default"]);
    assert!(removed.iter().all(|(_, pass)| *pass == "identity"));
    let not_exact = captured(|x| vec![op("tp::exp", &[t(&op("tp::add.Scalar", &[t(x), num(0.0)]))])]);
    assert_eq!(simplified(&not_exact).0.len(), 2);
    let returned = captured(|x| vec![op("tp::mul.Scalar", &[t(x), num(1.0)])]);
    assert_eq!(simplified(&returned).0.len(), 1);
    let written = captured(|x| {
        let y = op("tp::clone", &[t(x)]);
        op("tp::add_.Scalar", &[t(&y), num(1.0)]);
        vec![op("tp::exp", &[t(&y)])]
    });
    assert_eq!(simplified(&written).0.len(), 3);
}

fn parts(graph: &Graph) -> (Vec<Vec<String>>, Vec<String>) {
    let found = partition::run(graph);
    let name =
        |n: &tp_graph::NodeId| graph.nodes[*n].target.name().replace("tp::", "").replace(".default", "");
    let parts = found.parts.iter().map(|p| p.nodes.iter().map(name).collect()).collect();
    (parts, found.breaks.iter().map(ToString::to_string).collect())
}

#[test]
fn chains_fuse_and_breaks_have_reasons() {
    let graph = captured(|x| {
        let a = op("tp::mul.Scalar", &[t(x), num(2.0)]);
        let b = op("tp::tanh", &[t(&a)]);
        let s = op("tp::sum", &[t(&b)]);
        let c = op("tp::add", &[t(&b), t(&s)]);
        vec![op("tp::mul", &[t(&c), t(&a)])]
    });
    let (parts, breaks) = parts(&graph);
    assert_eq!(parts, [vec!["mul.Scalar", "tanh"], vec!["sum"], vec!["add", "mul"]]);
    assert!(breaks.contains(&"n2 (tp::sum.default): not pointwise".to_string()), "{breaks:?}");
    assert!(breaks.iter().any(|b| b.starts_with("n3 (tp::add.default): a node between them")), "{breaks:?}");
}

#[test]
fn a_break_names_the_node_that_is_not_pointwise() {
    let graph = captured(|x| {
        let s = op("tp::sum", &[t(x)]);
        let a = op("tp::mul.Scalar", &[t(&s), num(2.0)]);
        let b = op("tp::add", &[t(&s), t(&a)]);
        let v = op("tp::reshape", &[t(&b), Arg::Ints(&[1])]);
        vec![op("tp::neg", &[t(&v)])]
    });
    let (parts, breaks) = parts(&graph);
    assert_eq!(parts, [vec!["sum"], vec!["mul.Scalar", "add"], vec!["reshape"], vec!["neg"]]);
    assert_eq!(
        breaks,
        ["n0 (tp::sum.default): not pointwise", "n3 (tp::reshape.default): a view, nothing to compute"]
    );
}

#[test]
fn a_shape_change_ends_a_region() {
    let graph = captured(|x| {
        let row = op("tp::select", &[t(x), Arg::Int(0), Arg::Int(0)]);
        let a = op("tp::exp", &[t(&row)]);
        let b = op("tp::neg", &[t(x)]);
        vec![op("tp::add", &[t(&a), t(&b)])]
    });
    let (parts, breaks) = parts(&graph);
    assert_eq!(parts, [vec!["select"], vec!["exp"], vec!["neg", "add"]]);
    assert!(breaks.iter().any(|b| b.ends_with("the shape changes from [2] to [2, 2]")), "{breaks:?}");
}

#[test]
fn nothing_fuses_across_a_write() {
    let graph = captured(|x| {
        let a = op("tp::mul.Scalar", &[t(x), num(2.0)]);
        op("tp::add_.Scalar", &[t(x), num(1.0)]);
        vec![op("tp::add", &[t(&a), t(x)])]
    });
    let (parts, breaks) = parts(&graph);
    assert_eq!(parts, [vec!["mul.Scalar"], vec!["add_.Scalar"], vec!["add"]]);
    assert!(breaks.iter().any(|b| b.ends_with("a tensor is written to in between")), "{breaks:?}");
}

#[test]
fn calls_with_effects_keep_their_order() {
    install();
    opaque_triple("p::first", RANDOM);
    opaque_triple("p::second", ORDERED);
    let graph = captured(|x| {
        let late = op("tp::exp", &[t(x)]);
        let a = op("p::first", &[t(&late)]);
        let b = op("p::second", &[t(x)]);
        vec![op("tp::add", &[t(&a), t(&b)])]
    });
    assert_eq!(parts(&graph).0, [vec!["exp"], vec!["p::first"], vec!["p::second"], vec!["add"]]);
}

#[test]
fn random_dags_partition_into_runnable_convex_regions() {
    install();
    let mut seed = 7u64;
    let mut next = move |n: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % n
    };
    for _ in 0..60 {
        let choices: Vec<(usize, usize, usize)> =
            (0..40).map(|_| (next(8), next(1000), next(1000))).collect();
        let graph = captured(|x| {
            let mut values = vec![x.clone()];
            for &(kind, a, b) in &choices {
                let (a, b) = (values[a % values.len()].clone(), values[b % values.len()].clone());
                values.push(match kind {
                    0 => op("tp::matmul", &[t(&a), t(&b)]),
                    1 => op("tp::transpose", &[t(&a), Arg::Int(0), Arg::Int(1)]),
                    2 => op("tp::tanh", &[t(&a)]),
                    _ => op("tp::add", &[t(&a), t(&b)]),
                });
            }
            values.split_off(values.len() - 3)
        });
        let found = partition::run(&graph);
        let mut done = vec![false; graph.values.len()];
        graph.inputs.iter().for_each(|i| done[i.value.0 as usize] = true);
        let mut seen = 0;
        for part in &found.parts {
            for n in &part.nodes {
                graph.nodes[*n].for_each_use(|v| {
                    let inside = part.nodes.iter().any(|m| graph.nodes[*m].defined().any(|d| d == v));
                    assert!(done[v.0 as usize] || inside, "{v} is read before it is made\n{}", graph.text());
                });
                seen += 1;
            }
            part.nodes.iter().for_each(|n| graph.nodes[*n].defined().for_each(|v| done[v.0 as usize] = true));
        }
        assert_eq!(seen, graph.nodes.len());
    }
}
