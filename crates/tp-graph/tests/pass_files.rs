//! File tests of passes. A file `passes/NAME.tpg` names a pass and has a graph, and behind `becomes`, `constants`, `removes`,
//! `parts`, `breaks` and `memory` what comes of it. The graphs are verified, and run on numbers before and after: a pass changes no bit of any
//! output, nor of any argument.
//!
//!     TPG_UPDATE=1 cargo test -p tp-graph --test pass_files     writes the expectations anew, for reading

mod support;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use support::*;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, Call, Effects, FakeRule, Result, Rets, Value, dispatcher};
use tp_graph::args::{ArgSource, source};
use tp_graph::control::{self, Control};
use tp_graph::ir::{InputKind, Node, Operand, Output};
use tp_graph::passes::fold::{self, Folded};
use tp_graph::passes::{self, Removed, blocks, canonicalize, cse, dce, layout, partition};
use tp_graph::{Graph, NodeId, ValueId};
use tp_tensor::Tensor;

type Pass = fn(&Graph) -> (Graph, Vec<Removed>);

const REWRITES: [(&str, Pass); 6] = [
    ("blocks", blocks::run),
    ("canonicalize", canonicalize::run),
    ("cse", cse::run),
    ("dce", dce::run),
    ("layout", layout::run),
    ("simplify", passes::simplify),
];

type Fold = fn(&Graph) -> Folded;

const SECTIONS: [&str; 6] = ["becomes", "constants", "removes", "parts", "breaks", "memory"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("passes")
}

/// The files in order, with their names.
fn files() -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let name = |p: &PathBuf| p.file_stem().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|p| (name(p), fs::read_to_string(p).unwrap())).collect()
}

/// A file taken apart: its head with the comment, the pass, the graph, and what is expected.
struct Case<'a> {
    head: &'a str,
    pass: &'a str,
    before: &'a str,
    expected: &'a str,
}

fn read(text: &str) -> Case<'_> {
    let at = text.find("\npass: ").expect("a file names its pass") + 1;
    let line = text[at..].find('\n').unwrap() + at;
    let rest = &text[line..];
    let is_section = |l: &str| SECTIONS.contains(&l.trim_end());
    let mut end = 0;
    for l in rest.split_inclusive('\n') {
        if is_section(l) {
            break;
        }
        end += l.len();
    }
    Case {
        head: &text[..at],
        pass: text[at + 6..line].trim(),
        before: rest[..end].trim(),
        expected: rest[end..].trim(),
    }
}

fn ops() {
    install();
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let nothing: fn(&Call<'_>, &mut Rets) -> Result<()> = |_, _| Ok(());
        let ordered = Effects { ordered: true, ..Effects::PURE };
        let random = Effects { random: true, ..Effects::PURE };
        define("tpg::log(Tensor x, int n) -> ()", ordered, FakeRule::Nothing, nothing);
        define("tpg::silent(Tensor x, int n) -> ()", Effects::PURE, FakeRule::Nothing, nothing);
        opaque_triple("tpg::pure", Effects::PURE);
        opaque_triple("tpg::random", random);
        opaque_triple("tpg::ordered", ordered);
    });
}

// --- running ----------------------------------------------------------------------------------------

/// Arguments of the types that the graph has, on numbers with NaN, infinities and -0 among them; then the constants.
fn inputs(graph: &Graph, constants: &[Tensor]) -> Vec<Tensor> {
    let special = [1.5, -0.0, f32::NAN, f32::INFINITY, -2.25, 0.0, f32::NEG_INFINITY, 3e38, 1e-40];
    let one = |(k, input): (usize, &tp_graph::ir::Input)| {
        let spec = graph.spec(input.value).expect("inputs are tensors");
        let n = spec.sizes.iter().product::<i64>() as usize;
        let numbers: Vec<f32> = (0..n).map(|i| special[(i + 4 * k) % special.len()]).collect();
        tensor(&numbers, &spec.sizes)
    };
    let arguments = graph.inputs.iter().filter(|i| i.kind != InputKind::Constant).enumerate().map(one);
    arguments.chain(constants.iter().cloned()).collect()
}

/// Output bits, then those of the arguments.
fn run(graph: &Graph) -> Vec<Vec<u32>> {
    run_with(graph, &[])
}

fn run_with(graph: &Graph, constants: &[Tensor]) -> Vec<Vec<u32>> {
    let given = inputs(graph, constants);
    let known = evaluated(graph, &given);
    let bits = |t: &Tensor| values(t).into_iter().map(f32::to_bits).collect();
    let outputs = graph.outputs.iter().filter_map(Operand::value).map(|v| bits(&known[&v]));
    let arguments = &given[..given.len() - constants.len()];
    outputs.chain(arguments.iter().map(bits)).collect()
}

fn returned(block: &Graph, given: &[Tensor]) -> Vec<Tensor> {
    let known = evaluated(block, given);
    block.outputs.iter().map(|o| known[&o.value().expect("a tensor")].clone()).collect()
}

/// A node of control flow, node by node.
fn chosen(control: Control, node: &Node, known: &HashMap<ValueId, Tensor>) -> Vec<Tensor> {
    let parts = control::parts(control, node).expect("its operands");
    let mut given: Vec<Tensor> = parts.operands.iter().map(|v| known[v].clone()).collect();
    // SAFETY: bools of one element.
    let truth = |t: &Tensor| unsafe { *t.data_ptr().cast::<u8>() } != 0;
    if let Some(pred) = parts.pred {
        return returned(&node.blocks[usize::from(!truth(&known[&pred]))], &given);
    }
    while truth(&returned(&node.blocks[0], &given)[0]) {
        let next = returned(&node.blocks[1], &given);
        given.iter_mut().zip(next).for_each(|(old, new)| *old = new);
    }
    given.truncate(parts.carried);
    given
}

fn evaluated(graph: &Graph, given: &[Tensor]) -> HashMap<ValueId, Tensor> {
    let mut known: HashMap<ValueId, Tensor> = HashMap::new();
    for (input, t) in graph.inputs.iter().zip(given) {
        known.insert(input.value, t.clone());
    }
    for node in graph.nodes.values() {
        if let Some(control) = node.target.control() {
            let results = chosen(control, node, &known);
            known.extend(node.defined().zip(results));
            continue;
        }
        let op = node.target.op().expect("a known op");
        let def = op.def().unwrap();
        let get = |v: &ValueId| known[v].clone();
        let argument = |(o, p): (&Operand, _)| match source(o, p).unwrap() {
            ArgSource::Value(v) => Value::Tensor(get(&v)),
            ArgSource::Values(vs) => Value::Tensors(vs.iter().map(get).collect()),
            ArgSource::Optional(vs) => Value::OptTensors(vs.iter().map(|v| v.as_ref().map(get)).collect()),
            ArgSource::Literal(v) => v,
        };
        let values: Vec<Value> = node.inputs.iter().zip(&def.params.all).map(argument).collect();
        let args: Vec<Arg<'_>> = values.iter().map(Value::as_arg).collect();
        let mut rets = Rets::new();
        dispatcher::call(op, &args, HostArgs::NONE, &mut rets).unwrap();
        for (output, value) in node.outputs.iter().zip(rets) {
            match (output, value) {
                (Output::Value(v), Value::Tensor(t)) => drop(known.insert(*v, t)),
                (Output::List(vs), Value::Tensors(ts)) => known.extend(vs.iter().copied().zip(ts)),
                (output, value) => panic!("{output:?} is {}", value.type_name()),
            }
        }
    }
    known
}

// --- the runner -------------------------------------------------------------------------------------

fn section(name: &str, lines: impl IntoIterator<Item = String>) -> String {
    let lines: Vec<String> = lines.into_iter().map(|l| format!("\n  {l}")).collect();
    if lines.is_empty() { String::new() } else { format!("{name}{}\n\n", lines.concat()) }
}

fn folded(graph: &Graph, fold: Fold) -> std::result::Result<String, String> {
    let Folded { graph: after, constants, removed } = fold(graph);
    let violations = after.verify();
    let kinds = after.inputs.iter().filter(|i| i.kind == InputKind::Constant);
    if !violations.is_empty() || kinds.count() != constants.len() {
        return Err(format!("the result breaks rules: {violations:?}\n{}", after.text()));
    }
    if !graph.nodes.values().any(|n| n.effects.random) {
        let (before, bits) = (run(graph), || run_with(&after, &constants));
        if bits() != before || bits() != before {
            return Err(format!(
                "the result computes something else, at the latest in a second run:\n{}",
                after.text()
            ));
        }
    }
    let again = fold::run(&after);
    if again.graph != after {
        return Err(format!("what is folded folds again:\n{}", again.graph.text()));
    }
    let numbers = |(k, t): (usize, &Tensor)| format!("{k}: {:?}", values(t));
    let removes = removed.iter().map(|r| format!("{}: {}", r.target, r.pass));
    Ok(became(graph, &after)
        + &section("constants", constants.iter().enumerate().map(numbers))
        + &section("removes", removes))
}

fn became(graph: &Graph, after: &Graph) -> String {
    match after.text() == graph.text() {
        true => section("becomes", ["the same".to_string()]),
        false => format!("becomes\n\n{}\n", after.text()),
    }
}

fn rewritten(graph: &Graph, pass: Pass) -> std::result::Result<String, String> {
    let (after, removed) = pass(graph);
    let violations = after.verify();
    if !violations.is_empty() {
        return Err(format!("the result breaks rules: {violations:?}\n{}", after.text()));
    }
    if !graph.nodes.values().any(|n| n.effects.random) && run(graph) != run(&after) {
        return Err(format!("the result computes something else:\n{}", after.text()));
    }
    let again = pass(&after).0;
    if again.text() != after.text() {
        return Err(format!("a second time it changes more:\n{}", again.text()));
    }
    let removes = removed.iter().map(|r| format!("{}: {}", r.target, r.pass));
    Ok(became(graph, &after) + &section("removes", removes))
}

fn partitioned(graph: &Graph) -> std::result::Result<String, String> {
    let found = partition::run(graph);
    runnable(graph, &found)?;
    let part = |p: &partition::Part| {
        let nodes: Vec<String> = p.nodes.iter().map(ToString::to_string).collect();
        let why = p.opaque.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        format!("{}{why}", nodes.join(" "))
    };
    let breaks = found.breaks.iter().map(ToString::to_string);
    Ok(section("parts", found.parts.iter().map(part)) + &section("breaks", breaks))
}

/// Every node is in one part, and reads what earlier parts or earlier nodes of its own have made. Calls with effects keep
/// their order.
fn runnable(graph: &Graph, found: &partition::Partition) -> std::result::Result<(), String> {
    let order: Vec<NodeId> = found.parts.iter().flat_map(|p| p.nodes.iter().copied()).collect();
    let mut made: BTreeSet<u32> = graph.inputs.iter().map(|i| i.value.0).collect();
    for id in &order {
        let node = &graph.nodes[*id];
        let mut early = None;
        node.for_each_use(|v| early = early.or((!made.contains(&v.0)).then_some(v)));
        if let Some(v) = early {
            return Err(format!("{id} reads {v} before it is made"));
        }
        made.extend(node.defined().map(|v| v.0));
    }
    let effects: Vec<NodeId> =
        order.iter().copied().filter(|n| graph.nodes[*n].effects != Effects::PURE).collect();
    let all: BTreeSet<u32> = order.iter().map(|n| n.0).collect();
    match all.len() == order.len() && order.len() == graph.nodes.len() && effects.is_sorted_by_key(|n| n.0) {
        true => Ok(()),
        false => Err(format!("the parts are no order of the nodes: {order:?}")),
    }
}

fn outcome(case: &Case<'_>, passes: &[(&str, Pass)], fold: Fold) -> std::result::Result<String, String> {
    ops();
    let graph = Graph::parse(case.before).map_err(|e| format!("the graph does not read: {e}"))?;
    let violations = graph.verify();
    if !violations.is_empty() {
        return Err(format!("the graph breaks rules: {violations:?}"));
    }
    let found = match passes.iter().find(|(name, _)| *name == case.pass) {
        Some((_, pass)) => rewritten(&graph, *pass),
        None if case.pass == "partition" => partitioned(&graph),
        None if case.pass == "fold" => folded(&graph, fold),
        None if case.pass == "memory" => tp_graph::memory::text(&graph, &[])
            .map(|lines| section("memory", lines))
            .map_err(|e| e.to_string()),
        None => Err(format!("no pass is named {}", case.pass)),
    };
    found.map(|text| text.trim().to_string())
}

fn failures(passes: &[(&str, Pass)], fold: Fold) -> Vec<String> {
    let mut out = Vec::new();
    for (name, text) in files() {
        let case = read(&text);
        match outcome(&case, passes, fold) {
            Ok(got) if got == case.expected => {}
            Ok(got) => out.push(format!("{name}: expected\n{}\ngot\n{got}", case.expected)),
            Err(why) => out.push(format!("{name}: {why}")),
        }
    }
    out
}

#[test]
fn passes_do_what_their_files_say() {
    if std::env::var_os("TPG_UPDATE").is_some() {
        for (name, text) in files() {
            let case = read(&text);
            let got = outcome(&case, &REWRITES, fold::run).unwrap_or_else(|e| panic!("{name}: {e}"));
            let whole = format!("{}pass: {}\n\n{}\n\n{got}\n", case.head, case.pass, case.before);
            fs::write(folder().join(format!("{name}.tpg")), whole).unwrap();
        }
    }
    let wrong = failures(&REWRITES, fold::run);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_pass_has_files() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join("passes");
    let parts = ["mod", "identity", "rewrite", "sizes"];
    let name = |p: PathBuf| p.file_stem().unwrap().to_string_lossy().into_owned();
    let passes = fs::read_dir(sources).unwrap().map(|e| name(e.unwrap().path()));
    let texts = files();
    for pass in passes.filter(|p| !parts.contains(&p.as_str())) {
        let of = texts.iter().filter(|(_, text)| read(text).pass == pass).count();
        assert!(of >= 4, "{pass} has {of} files");
    }
}

// --- planted passes ---------------------------------------------------------------------------------

/// Passes that are wrong in one way each; the files of the pass in whose place they stand notice.
const PLANTED: [(&str, &str, Pass); 10] = [
    ("blocks", "it looks into no block", |g| (g.clone(), Vec::new())),
    ("canonicalize", "adding zero is no identity: -0 becomes 0", |g| {
        replaced(g, |n| n.starts_with("tp::add.Scalar"), "0.0")
    }),
    ("canonicalize", "it drops every multiplication by a number", |g| {
        replaced(g, |n| n.starts_with("tp::mul.Scalar"), "")
    }),
    ("cse", "it merges nothing", |g| (g.clone(), Vec::new())),
    ("cse", "it merges whatever has one name and one first operand", merged),
    ("dce", "it drops nothing", |g| (g.clone(), Vec::new())),
    ("dce", "it drops calls whose results nobody reads, whatever they do", unread),
    ("layout", "it takes every view for what it is a view of", |g| {
        let view = |n: &Node| n.defined().next().and_then(|v| g.values[v].alias).map(|a| Some(a.of()));
        (without(g, view), Vec::new())
    }),
    ("layout", "it does nothing", |g| (g.clone(), Vec::new())),
    ("simplify", "it forgets to list what went", |g| (passes::simplify(g).0, Vec::new())),
];

#[test]
fn a_planted_wrong_pass_is_caught() {
    for (name, what, wrong) in PLANTED {
        let planted = REWRITES.map(|(n, pass)| if n == name { (n, wrong) } else { (n, pass) });
        let found = failures(&planted, fold::run);
        assert!(!found.is_empty(), "nobody notices that {what}");
        assert!(found.iter().all(|f| f.starts_with(&name[..3])), "{what}: {}", found.join("\n"));
    }
}

#[test]
fn a_planted_wrong_fold_is_caught() {
    let wrong: [(&str, Fold); 4] = [
        ("it folds nothing", |g| Folded { graph: g.clone(), constants: Vec::new(), removed: Vec::new() }),
        ("its constants are zeros", |g| {
            let mut folded = fold::run(g);
            folded.constants = folded.constants.iter().map(|c| op("tp::zeros_like", &[t(c)])).collect();
            folded
        }),
        ("-0 becomes 0", |g| {
            let mut folded = fold::run(g);
            folded.constants =
                folded.constants.iter().map(|c| op("tp::add.Scalar", &[t(c), num(0.0)])).collect();
            folded
        }),
        ("it forgets to list what went", |g| Folded { removed: Vec::new(), ..fold::run(g) }),
    ];
    for (what, fold) in wrong {
        let found = failures(&REWRITES, fold);
        assert!(!found.is_empty(), "nobody notices that {what}");
        assert!(found.iter().all(|f| f.starts_with("fold")), "{what}: {}", found.join("\n"));
    }
}

#[test]
fn a_planted_wrong_partition_is_caught() {
    ops();
    type Change = fn(&mut partition::Partition);
    let wrong: [(&str, Change); 4] = [
        ("before it is made", |p| p.parts.reverse()),
        ("no order of the nodes", |p| drop(p.parts.pop())),
        ("no order of the nodes", |p| p.parts.extend(p.parts.last().cloned())),
        ("no order of the nodes", |p| p.parts.swap(2, 3)),
    ];
    let (_, text) = files().into_iter().find(|(name, _)| name == "partition-effects").unwrap();
    let graph = Graph::parse(read(&text).before).unwrap();
    for (words, change) in wrong {
        let mut found = partition::run(&graph);
        assert_eq!(runnable(&graph, &found), Ok(()));
        change(&mut found);
        let why = runnable(&graph, &found).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
}

/// The graph without the nodes that `drop` picks; their results are `keep` of them where there is one.
fn without(graph: &Graph, keep: impl Fn(&Node) -> Option<Option<ValueId>>) -> Graph {
    let mut lines: Vec<String> = graph.text().lines().map(str::to_string).collect();
    let mut renames: Vec<(String, String)> = Vec::new();
    for node in graph.nodes.values() {
        let Some(by) = keep(node) else { continue };
        let text = graph.node_text(node);
        lines.retain(|l| l.trim() != text.trim());
        if let (Some(old), Some(new)) = (node.defined().next(), by) {
            renames.push((old.to_string(), new.to_string()));
        }
    }
    let mut text = lines.join("\n") + "\n";
    for (old, new) in renames.into_iter().rev() {
        text = substituted(&text, &old, &new);
    }
    Graph::parse(&renumbered(&text)).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn replaced(graph: &Graph, is: fn(&str) -> bool, number: &str) -> (Graph, Vec<Removed>) {
    let mut removed = canonicalize::run(graph).1;
    let fits = |n: &Node| {
        is(&n.target.name()) && (number.is_empty() || n.inputs.iter().any(|o| o.to_string() == number))
    };
    let dropped = graph.nodes.values().filter(|n| fits(n));
    removed.extend(dropped.map(|n| Removed { target: n.target.name(), pass: "identity", location: None }));
    let keep = |n: &Node| fits(n).then(|| n.inputs[0].value());
    (canonicalize::run(&without(graph, keep)).0, removed)
}

fn merged(graph: &Graph) -> (Graph, Vec<Removed>) {
    let mut seen: HashMap<String, ValueId> = HashMap::new();
    let mut by: HashMap<ValueId, ValueId> = HashMap::new();
    for node in graph.nodes.values() {
        let Some(result) = node.defined().next() else { continue };
        let key = format!("{} {:?}", node.target.name(), node.inputs.first());
        match seen.get(&key) {
            Some(first) => drop(by.insert(result, *first)),
            None => drop(seen.insert(key, result)),
        }
    }
    let keep = |n: &Node| n.defined().next().and_then(|v| by.get(&v)).map(|v| Some(*v));
    let removed = graph.nodes.values().filter(|n| keep(n).is_some());
    let removed =
        removed.map(|n| Removed { target: n.target.name(), pass: "common subexpression", location: None });
    (without(graph, keep), removed.collect())
}

fn unread(graph: &Graph) -> (Graph, Vec<Removed>) {
    let mut used: BTreeSet<u32> = BTreeSet::new();
    graph.for_each_output_value(|v| used.extend([v.0]));
    let mut gone: Vec<NodeId> = Vec::new();
    for (id, node) in graph.nodes.iter().rev() {
        if node.defined().any(|v| used.contains(&v.0)) {
            node.for_each_use(|v| used.extend([v.0]));
        } else {
            gone.push(id);
        }
    }
    let ids: HashMap<*const Node, NodeId> =
        graph.nodes.iter().map(|(id, n)| (std::ptr::from_ref(n), id)).collect();
    let keep = |n: &Node| gone.contains(&ids[&std::ptr::from_ref(n)]).then_some(None);
    let removed = graph.nodes.values().filter(|n| keep(n).is_some());
    let removed = removed.map(|n| Removed { target: n.target.name(), pass: "dead code", location: None });
    (without(graph, keep), removed.collect())
}
