//! From the nodes of a part to a region: one scalar program, the values it reads and writes, and the loops it runs
//! over.

use crate::backend::Region;
use crate::entity::{Entity, NodeId, ValueId};
use crate::ir::Graph;
use crate::pointwise;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fmt;
use tp_dispatch::FallbackReason;
use tp_expr::ProgramBuilder;
use tp_tensor::dim::Dims;
use tp_tensor::iter::LoopNest;
use tp_tensor::symbols::InputSize;
use tp_tensor::{Dim, TensorSpec, layout, symbols};

/// The pattern of loops a kernel is made for. Kernels of one program and one pattern serve all sizes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KernelLayout {
    /// One loop over all elements. Bit `k` of `scalars`: input `k` is one element.
    Flat { scalars: u64 },
    /// That many loops, after merging; each input has one stride per loop.
    Strided { dims: usize },
}

impl fmt::Display for KernelLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelLayout::Flat { scalars } => write!(f, "one loop (inputs of one element: {scalars:#b})"),
            KernelLayout::Strided { dims } => write!(f, "{dims} loops with strides"),
        }
    }
}

/// The loops of one region at known sizes.
#[derive(Clone, Debug)]
pub(crate) enum Space {
    Flat {
        n: usize,
        scalars: u64,
    },
    /// Merged sizes, and the strides of each input. Outputs are contiguous over the sizes.
    Strided {
        sizes: Vec<usize>,
        inputs: Vec<Vec<isize>>,
        output: Vec<isize>,
    },
}

impl Space {
    pub fn layout(&self) -> KernelLayout {
        match self {
            Space::Flat { scalars, .. } => KernelLayout::Flat { scalars: *scalars },
            Space::Strided { sizes, .. } => KernelLayout::Strided { dims: sizes.len() },
        }
    }
}

impl Space {
    /// The same loops for a kernel that was made for others: sizes 0 and 1 need fewer loops than the kernel has. None where
    /// it does not serve them. There are `count` inputs.
    pub fn for_kernel(&self, layout: KernelLayout, count: usize) -> Option<Space> {
        if self.layout() == layout {
            return Some(self.clone());
        }
        let (sizes, inputs, output) = match self {
            Space::Flat { n, scalars } => {
                let stride = |k: usize| vec![isize::from(scalars >> k & 1 == 0)];
                (vec![*n], (0..count).map(stride).collect(), vec![1])
            }
            Space::Strided { sizes, inputs, output } => (sizes.clone(), inputs.clone(), output.clone()),
        };
        let total: usize = sizes.iter().product();
        match layout {
            KernelLayout::Flat { scalars } => (total <= 1).then_some(Space::Flat { n: total, scalars }),
            KernelLayout::Strided { dims } => {
                let missing = dims.checked_sub(sizes.len())?;
                let padded = |strides: &Vec<isize>| [vec![0; missing], strides.clone()].concat();
                Some(Space::Strided {
                    sizes: [vec![1; missing], sizes].concat(),
                    inputs: inputs.iter().map(padded).collect(),
                    output: padded(&output),
                })
            }
        }
    }
}

/// The region of pointwise `nodes`, in order.
pub(crate) fn build(graph: &Graph, uses: &Uses, nodes: &[NodeId]) -> Result<Region, FallbackReason> {
    let mut builder = ProgramBuilder::new();
    let mut known: HashMap<ValueId, u32> = HashMap::new();
    let mut reads: Vec<ValueId> = Vec::new();
    let mut results: Vec<(ValueId, u32)> = Vec::new();
    let mut dividers: Vec<(String, u32)> = Vec::new();
    for &id in nodes {
        let node = &graph.nodes[id];
        let name = node.target.name();
        let refuse = |why: String| FallbackReason::UnsupportedOp { op: name.clone(), why };
        let expr = pointwise::expression(graph, node).map_err(|why| refuse(why.to_string()))?;
        let divisions = builder.divisions();
        let value = expr.apply(&mut builder, |builder, v, spec| {
            *known.entry(v).or_insert_with(|| {
                reads.push(v);
                builder.input(spec.dtype)
            })
        });
        let value = value.map_err(|e| refuse(e.to_string()))?;
        known.insert(expr.result, value);
        results.push((expr.result, value));
        if builder.divisions() > divisions {
            dividers.push((name, value));
        }
    }
    let writes: Vec<(ValueId, u32)> = results.into_iter().filter(|(v, _)| uses.leaves(nodes, *v)).collect();
    let outputs: Vec<u32> = writes.iter().map(|(_, k)| *k).collect();
    let failed = |e: tp_expr::ExprError| FallbackReason::LoweringFailed {
        stage: "program".into(),
        message: e.to_string(),
    };
    let part = |(op, value)| Ok((op, builder.clone().finish(&[value])?));
    let dividers = dividers.into_iter().map(part).collect::<Result<_, _>>().map_err(failed)?;
    let program = builder.finish(&outputs).map_err(failed)?;
    let writes: Vec<ValueId> = writes.into_iter().map(|(v, _)| v).collect();
    let spec = |v: &ValueId| graph.spec(*v).cloned();
    let inputs: Vec<TensorSpec> = reads.iter().filter_map(spec).collect();
    let outputs: Vec<TensorSpec> = writes.iter().filter_map(spec).collect();
    let Some(first) = outputs.first() else {
        return Err(FallbackReason::LoweringFailed {
            stage: "program".into(),
            message: "no result is used".into(),
        });
    };
    let symbolic = inputs.iter().chain(&outputs).any(is_symbolic);
    let space = match symbolic {
        false => space(&first.sizes, &inputs),
        true => sample_space(graph, &first.sizes, &inputs).ok_or_else(|| FallbackReason::UnsupportedOp {
            op: nodes.first().map(|n| graph.nodes[*n].target.name()).unwrap_or_default(),
            why: "its sizes are known in runs alone, and no usual ones are known".to_string(),
        })?,
    };
    let layout = space.layout();
    let ops = nodes.iter().map(|n| graph.nodes[*n].target.name()).collect();
    Ok(Region {
        ops,
        program,
        layout,
        device: first.device,
        inputs,
        outputs,
        symbolic,
        reads,
        writes,
        space,
        dividers,
    })
}

fn is_symbolic(spec: &TensorSpec) -> bool {
    symbols::any(&spec.sizes) || symbols::any(&spec.strides)
}

/// Sizes that are likely: large, and no two symbols alike. None where no usual ones are known.
fn likely(graph: &Graph, raw: &[i64]) -> Option<Dims> {
    sizes(graph, raw, &|id, size| {
        let range = size.declared();
        (1011 + 4 * i128::from(id)).clamp(range.low, range.high)
    })
}

/// The sizes with which the graph was captured, as far as they were known then.
fn captured(graph: &Graph, raw: &[i64]) -> Option<Dims> {
    sizes(graph, raw, &|_, size| i128::from(size.hint))
}

/// The bytes of a tensor with those sizes; 0 where they are not known.
pub(crate) fn bytes(graph: &Graph, v: ValueId) -> u64 {
    let Some(spec) = graph.spec(v) else { return 0 };
    let elements = captured(graph, &spec.sizes)
        .map_or(0, |sizes| sizes.iter().fold(1u64, |n, &size| n.saturating_mul(size.max(0) as u64)));
    elements.saturating_mul(spec.dtype.itemsize() as u64)
}

/// Sizes where `of_input` says what the symbols of inputs are; those that only data tell are large.
fn sizes(graph: &Graph, raw: &[i64], of_input: &dyn Fn(u32, &InputSize) -> i128) -> Option<Dims> {
    let of_inputs = graph.symbols.inputs();
    let value = |id: u32| {
        let size = match Dim::symbol(id).as_unbacked() {
            Some(unbacked) => {
                let range = graph.symbols.declared(unbacked)?;
                (1009 + 4 * i128::from(unbacked)).clamp(range.low, range.high)
            }
            None => of_input(id, of_inputs.get(id as usize)?),
        };
        i64::try_from(size).ok()
    };
    raw.iter().map(|&d| graph.symbols.poly(Dim::from_raw(d))?.eval(&value)).collect()
}

/// The loops for likely sizes, where nothing is merged that usually is not.
fn sample_space(graph: &Graph, shape: &[i64], inputs: &[TensorSpec]) -> Option<Space> {
    let known = |raw: &[i64]| likely(graph, raw);
    let spec =
        |s: &TensorSpec| Some(TensorSpec { sizes: known(&s.sizes)?, strides: known(&s.strides)?, ..*s });
    let shape = known(shape)?;
    let inputs = inputs.iter().map(spec).collect::<Option<Vec<_>>>()?;
    Some(space(&shape, &inputs))
}

/// Who reads each value of a graph.
pub(crate) struct Uses {
    readers: Vec<SmallVec<[NodeId; 2]>>,
    returned: Vec<bool>,
}

impl Uses {
    pub fn of(graph: &Graph) -> Uses {
        let n = graph.values.len();
        let mut uses = Uses { readers: vec![SmallVec::new(); n], returned: vec![false; n] };
        for (id, node) in graph.nodes.iter() {
            node.for_each_use(|v| uses.readers[v.index()].push(id));
        }
        graph.for_each_output_value(|v| uses.returned[v.index()] = true);
        uses
    }

    /// Whether one node alone reads a value, once.
    pub fn is_read_only_by(&self, value: ValueId, node: NodeId) -> bool {
        !self.returned[value.index()] && *self.readers[value.index()] == [node]
    }

    /// Whether a value is read outside of `nodes`, which are in order.
    fn leaves(&self, nodes: &[NodeId], value: ValueId) -> bool {
        self.returned[value.index()]
            || self.readers[value.index()].iter().any(|n| nodes.binary_search(n).is_err())
    }
}

pub(crate) fn space(shape: &[i64], inputs: &[TensorSpec]) -> Space {
    let n: i64 = shape.iter().product();
    let mut scalars = 0u64;
    let mut flat = true;
    for (k, input) in inputs.iter().enumerate() {
        let one = input.sizes.iter().product::<i64>() == 1;
        if one && n != 1 {
            scalars |= 1 << k;
        } else {
            flat &= one || (*input.sizes == *shape && layout::is_contiguous(&input.sizes, &input.strides));
        }
    }
    if flat {
        return Space::Flat { n: n as usize, scalars };
    }
    let own: Dims = layout::contiguous_strides(shape);
    let mut operands: Vec<(&[i64], &[i64])> = vec![(shape, &own)];
    operands.extend(inputs.iter().map(|i| (&*i.sizes, &*i.strides)));
    let nest = LoopNest::new(shape, &operands);
    let strides = |k: usize| nest.strides[k].iter().map(|s| *s as isize).collect();
    Space::Strided {
        sizes: nest.sizes.iter().map(|s| *s as usize).collect(),
        inputs: (1..operands.len()).map(strides).collect(),
        output: strides(0),
    }
}
