//! Which nodes lie on a way from the outputs to the requested inputs. `grad` runs only those.

use crate::tape::{Node, NodeRef};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes addresses of nodes: they are multiples of 16, and multiplication spreads them.
#[derive(Default, Clone, Copy)]
pub(super) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_usize(b as usize));
    }
    fn write_usize(&mut self, v: usize) {
        let mixed = (self.0 ^ v as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

pub(super) type ByNode<T> = HashMap<usize, T, BuildHasherDefault<AddressHasher>>;

/// The identity of a node while it lives.
#[inline]
pub(super) fn id(node: &Node) -> usize {
    std::ptr::from_ref(node) as usize
}

pub(super) struct Reach {
    /// Every node visited, and whether it leads to a target.
    leads: ByNode<bool>,
}

struct Visit<'a> {
    node: &'a NodeRef,
    next_edge: usize,
    leads: bool,
}

impl Reach {
    /// Visits the graph below `roots` without recursion. Nodes recorded before every target lead nowhere.
    pub fn find<'a>(
        roots: impl Iterator<Item = &'a NodeRef>,
        is_target: &dyn Fn(&Node) -> bool,
        oldest: u64,
    ) -> Reach {
        let mut reach = Reach { leads: ByNode::default() };
        let mut stack: Vec<Visit<'a>> = Vec::new();
        for root in roots {
            reach.enter(root, is_target, oldest, &mut stack);
            while let Some(top) = stack.last_mut() {
                let Some(edge) = top.node.edges().get(top.next_edge) else {
                    let done = Visit { ..*top };
                    stack.pop();
                    reach.leads.insert(id(done.node), done.leads);
                    if let Some(parent) = stack.last_mut() {
                        parent.leads |= done.leads;
                    }
                    continue;
                };
                top.next_edge += 1;
                match reach.leads.get(&id(&edge.node)) {
                    Some(leads) => top.leads |= *leads,
                    None => reach.enter(&edge.node, is_target, oldest, &mut stack),
                }
            }
        }
        reach
    }

    fn enter<'a>(
        &mut self,
        node: &'a NodeRef,
        is_target: &dyn Fn(&Node) -> bool,
        oldest: u64,
        stack: &mut Vec<Visit<'a>>,
    ) {
        let leads = is_target(node);
        self.leads.insert(id(node), leads);
        let next_edge = if node.seq() <= oldest { node.edges().len() } else { 0 };
        stack.push(Visit { node, next_edge, leads });
    }

    pub fn leads(&self, node: &Node) -> bool {
        self.leads.get(&id(node)).copied().unwrap_or(false)
    }
}
