//! What a training region keeps for its backward, and what the backward makes again. Pointwise values are cheap to make
//! from others, and bit for bit the same: of all sets of values from which the backward's own can be made, the one of the
//! fewest bytes is kept, a minimum cut between what cannot be made again and what is needed. Among such sets it is the one
//! nearest to the backward, so that nothing is made again without need.
//!
//! Never made again: what is random, has effects, is written to, or runs as a call. Never kept in a value's place: an
//! argument or a result of the function that the backward does not read anyhow, for the caller may write to it.

use crate::entity::{Entity, NodeId, ValueId};
use crate::ir::{Def, Graph, Operand};
use crate::passes::Memory;
use crate::pointwise;
use crate::region::bytes;
use tp_dispatch::Phase;
use tp_tensor::symbols;

/// Making values again is worth it from so many bytes on that are not kept.
const WORTH: u64 = 32 << 10;
/// Graphs of more values are split as they are.
const MAX_VALUES: usize = 1 << 12;

/// Of the values that the forward makes.
pub(crate) struct Choice {
    /// Those to keep.
    pub kept: Vec<bool>,
    /// Calls of the forward that the backward makes again, in order.
    pub again: Vec<NodeId>,
    /// Bytes of what is kept, and of what would be if nothing was made again.
    pub bytes: u64,
    pub bytes_of_all: u64,
}

/// What to keep of the values that the backward needs; the first outputs of the graph are the function's.
pub(crate) fn choose(joint: &Graph, needed: &[bool], outputs: &[Operand]) -> Choice {
    let _table = symbols::enter(joint.symbols.clone());
    let bytes: Vec<u64> = joint.values.ids().map(|v| bytes(joint, v)).collect();
    let sum = |kept: &[bool]| kept.iter().zip(&bytes).filter(|(k, _)| **k).map(|(_, b)| *b).sum::<u64>();
    let bytes_of_all = sum(needed);
    let all = || Choice { kept: needed.to_vec(), again: Vec::new(), bytes: bytes_of_all, bytes_of_all };
    if bytes_of_all < WORTH || needed.len() > MAX_VALUES {
        return all();
    }
    let makers = makers(joint);
    let mut held = vec![false; joint.values.len()];
    joint.inputs.iter().for_each(|i| held[i.value.index()] = true);
    outputs.iter().for_each(|o| o.for_each_value(|v| held[v.index()] = true));
    let cost = |v: usize| if held[v] && !needed[v] { u64::MAX } else { bytes[v] };
    let from = |v: usize| {
        makers[v].map(|maker| {
            let mut operands = Vec::new();
            joint.nodes[maker].for_each_use(|operand| operands.push(operand.index()));
            operands
        })
    };
    let kept = cut(needed, &from, &cost);
    let bytes = sum(&kept);
    if bytes + WORTH > bytes_of_all {
        return all();
    }
    Choice { again: again(joint, needed, &kept), kept, bytes, bytes_of_all }
}

/// The call that makes each value from values that nobody writes to, where the backward may make it again.
fn makers(joint: &Graph) -> Vec<Option<NodeId>> {
    let memory = Memory::of(joint);
    let mut makers = vec![None; joint.values.len()];
    for (id, node) in joint.nodes.iter().filter(|(_, n)| n.phase == Phase::Forward) {
        let Ok(expr) = pointwise::expression(joint, node) else { continue };
        let mut is_written = memory.is_written(expr.result);
        node.for_each_use(|v| is_written |= memory.is_written(v));
        if !is_written {
            makers[expr.result.index()] = Some(id);
        }
    }
    makers
}

/// The set of values of the least cost from which all that is needed can be made; `from` gives what a value is made from,
/// where it can be made again.
fn cut(
    needed: &[bool],
    from: &dyn Fn(usize) -> Option<Vec<usize>>,
    cost: &dyn Fn(usize) -> u64,
) -> Vec<bool> {
    // Each value has two ends, and what flows between them is at most its cost: it is cut where the value is kept.
    let n = needed.len();
    let (source, sink) = (2 * n, 2 * n + 1);
    let mut flow = Flow::new(2 * n + 2);
    let mut seen = needed.to_vec();
    for v in (0..n).rev() {
        if !seen[v] {
            continue;
        }
        flow.edge(2 * v, 2 * v + 1, cost(v));
        if needed[v] {
            flow.edge(2 * v + 1, sink, u64::MAX);
        }
        match from(v) {
            Some(operands) => operands.into_iter().for_each(|operand| {
                seen[operand] = true;
                flow.edge(2 * operand + 1, 2 * v, u64::MAX);
            }),
            None => flow.edge(source, 2 * v, u64::MAX),
        }
    }
    flow.run(source, sink);
    let reaches = flow.reaching(sink);
    (0..n).map(|v| seen[v] && !reaches[2 * v] && reaches[2 * v + 1]).collect()
}

/// The calls that make what is needed from what is kept.
fn again(joint: &Graph, needed: &[bool], kept: &[bool]) -> Vec<NodeId> {
    let mut wanted: Vec<bool> = needed.iter().zip(kept).map(|(n, k)| *n && !*k).collect();
    let mut out = Vec::new();
    for v in joint.values.ids().rev().collect::<Vec<ValueId>>() {
        if let (true, Def::Node(node)) = (wanted[v.index()], joint.values[v].def) {
            out.push(node);
            joint.nodes[node].for_each_use(|o| wanted[o.index()] |= !kept[o.index()]);
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}

/// A flow network; `u64::MAX` is no bound.
struct Flow {
    /// Edge `e` and its reverse `e ^ 1`: where to, and how much more may flow.
    to: Vec<usize>,
    left: Vec<u64>,
    of: Vec<Vec<usize>>,
}

impl Flow {
    fn new(n: usize) -> Flow {
        Flow { to: Vec::new(), left: Vec::new(), of: vec![Vec::new(); n] }
    }

    fn edge(&mut self, from: usize, to: usize, bound: u64) {
        for (a, b, left) in [(from, to, bound), (to, from, 0)] {
            self.of[a].push(self.to.len());
            self.to.push(b);
            self.left.push(left);
        }
    }

    /// A maximum flow: along shortest paths with room, as long as there is one.
    fn run(&mut self, source: usize, sink: usize) {
        while let Some(path) = self.path(source, sink) {
            let room = path.iter().map(|&e| self.left[e]).min().unwrap_or(0);
            for e in path {
                if self.left[e] != u64::MAX {
                    self.left[e] -= room;
                }
                self.left[e ^ 1] = self.left[e ^ 1].saturating_add(room);
            }
        }
    }

    fn path(&self, source: usize, sink: usize) -> Option<Vec<usize>> {
        let mut by: Vec<Option<usize>> = vec![None; self.of.len()];
        let mut queue = std::collections::VecDeque::from([source]);
        while let Some(at) = queue.pop_front() {
            for &e in &self.of[at] {
                let to = self.to[e];
                if self.left[e] == 0 || to == source || by[to].is_some() {
                    continue;
                }
                by[to] = Some(e);
                if to == sink {
                    let mut path = vec![e];
                    while let Some(e) = by[self.to[path[path.len() - 1] ^ 1]] {
                        path.push(e);
                    }
                    return Some(path);
                }
                queue.push_back(to);
            }
        }
        None
    }

    /// From where more could flow to the sink.
    fn reaching(&self, sink: usize) -> Vec<bool> {
        let mut reaches = vec![false; self.of.len()];
        reaches[sink] = true;
        let mut stack = vec![sink];
        while let Some(at) = stack.pop() {
            for &e in &self.of[at] {
                let from = self.to[e];
                if self.left[e ^ 1] != 0 && !reaches[from] {
                    reaches[from] = true;
                    stack.push(from);
                }
            }
        }
        reaches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of xorshift numbers.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % n as u64) as usize
        }
    }

    /// Values in order: what each is made from (None: not made again), its cost, and whether it is needed.
    struct Case {
        from: Vec<Option<Vec<usize>>>,
        cost: Vec<u64>,
        needed: Vec<bool>,
    }

    impl Case {
        fn random(seed: u64) -> Case {
            let mut numbers = Numbers(seed * 2 + 1);
            (0..20).for_each(|_| _ = numbers.below(2));
            let n = 4 + numbers.below(8);
            let from = (0..n).map(|v| {
                (v > 1 && numbers.below(4) > 0)
                    .then(|| (0..1 + numbers.below(2)).map(|_| numbers.below(v)).collect())
            });
            let from = from.collect();
            let cost =
                (0..n).map(|_| if numbers.below(6) == 0 { u64::MAX } else { 1 + numbers.below(9) as u64 });
            let mut cost: Vec<u64> = cost.collect();
            let needed: Vec<bool> = (0..n).map(|_| numbers.below(3) == 0).collect();
            // What is needed can be kept.
            (0..n).filter(|&v| needed[v]).for_each(|v| cost[v] = cost[v].min(9));
            Case { from, cost, needed }
        }

        /// Whether all that is needed is in `kept` or can be made from it.
        fn suffices(&self, kept: &[bool]) -> bool {
            let mut there = kept.to_vec();
            for v in 0..there.len() {
                there[v] |= self.from[v].as_ref().is_some_and(|from| from.iter().all(|&f| there[f]));
            }
            self.needed.iter().zip(&there).all(|(needed, there)| !needed || *there)
        }

        fn total(&self, kept: &[bool]) -> u64 {
            let costs = kept.iter().zip(&self.cost).filter(|(k, _)| **k);
            costs.fold(0, |sum, (_, cost)| sum.saturating_add(*cost))
        }

        fn cut(&self) -> Vec<bool> {
            let from = |v: usize| self.from[v].clone();
            cut(&self.needed, &from, &|v| self.cost[v])
        }
    }

    #[test]
    fn a_cut_costs_as_little_as_the_best_of_all_sets() {
        let mut made_again = 0;
        for seed in 0..400 {
            let case = Case::random(seed);
            let kept = case.cut();
            assert!(case.suffices(&kept), "case {seed}: {kept:?} does not do");
            let n = kept.len();
            let sets = (0..1u32 << n).map(|set| (0..n).map(|v| set >> v & 1 == 1).collect::<Vec<bool>>());
            let best = sets.filter(|s| case.suffices(s)).map(|s| case.total(&s)).min();
            assert_eq!(Some(case.total(&kept)), best, "case {seed}: {kept:?}");
            made_again += usize::from(kept != case.needed);
        }
        assert!(made_again > 100, "{made_again}");
    }

    #[test]
    fn a_planted_wrong_cut_is_caught() {
        type Wrong = fn(&Case) -> Vec<bool>;
        let wrong: [(&str, Wrong); 4] = [
            ("it keeps all that is needed", |case| case.needed.clone()),
            ("it keeps nothing", |case| vec![false; case.needed.len()]),
            ("it keeps what cannot be made again", |case| case.from.iter().map(Option::is_none).collect()),
            ("it counts values and not bytes", |case| cut(&case.needed, &|v| case.from[v].clone(), &|_| 1)),
        ];
        for (what, wrong) in wrong {
            let is_caught = |seed: u64| {
                let case = Case::random(seed);
                let kept = wrong(&case);
                !case.suffices(&kept) || case.total(&kept) > case.total(&case.cut())
            };
            assert!((0..400).any(is_caught), "nobody notices that {what}");
        }
    }

    #[test]
    fn what_costs_the_same_either_way_is_kept_as_it_is_needed() {
        // 0 -> 1 -> 2, of one size; 2 is needed.
        let case = Case {
            from: vec![None, Some(vec![0]), Some(vec![1])],
            cost: vec![4, 4, 4],
            needed: vec![false, false, true],
        };
        assert_eq!(case.cut(), [false, false, true]);
    }
}
