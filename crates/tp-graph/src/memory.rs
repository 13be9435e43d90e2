//! Planning memory: which step writes its result over an operand that nobody reads any more, and what a run takes at most.
//! A plan says where that may be; a run does it where the tensor turns out to be unseen (`Tensor::is_unseen`), so that a
//! kernel that kept a view of it is not harmed. Arguments, results, what is kept for a backward and their views are never
//! among it: their slots have no last use.
//!
//! Buffers are those of the pool, which gives a freed one to the next request of its size; here the same is reckoned ahead.

use crate::backend::Backend;
use crate::ir::Graph;
use crate::lower::{self, Artifacts};
use crate::plan::{ArgSrc, CallOutput, CallStamp, Exec, OutSlot, OutSrc, Plan, Src, Step, Work};
use std::fmt;
use tp_dispatch::Result;
use tp_tensor::counted;

/// From so many bytes on a result goes over an operand: smaller ones stay in the cache in any case.
const WORTH: u64 = 64 << 10;

/// What is known of the memory of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotMemory {
    /// By the sizes of the capture where they are symbolic.
    pub bytes: u64,
    /// The slot that owns it; None for memory of an input.
    pub owner: Option<u32>,
}

/// Marks the last use of every slot. Outputs are kept.
pub(crate) fn free_at_last_use(plan: &mut Plan) {
    let mut last: Vec<Option<usize>> = vec![None; plan.slots];
    for (i, step) in plan.steps.iter().enumerate() {
        for_each_slot(step, |slot| last[slot as usize] = Some(i));
    }
    for out in &plan.outputs {
        if let OutSrc::Tensor(Src::Slot(slot)) = out {
            last[*slot as usize] = None;
        }
    }
    for (slot, at) in last.into_iter().enumerate() {
        if let Some(at) = at {
            plan.steps[at].free.push(slot as u32);
        }
    }
}

/// Slots a step reads or writes.
fn for_each_slot(step: &Step, mut f: impl FnMut(u32)) {
    let mut src = |s: &Src| {
        if let Src::Slot(slot) = s {
            f(*slot);
        }
    };
    match &step.work {
        Work::Control(control) => control.pred.iter().chain(&control.operands).for_each(&mut src),
        Work::Fused(fused) => fused.inputs.iter().for_each(&mut src),
        Work::Call(call) => {
            for arg in &call.args {
                match arg {
                    ArgSrc::Tensor(s) => src(s),
                    ArgSrc::Tensors(ss) => ss.iter().for_each(&mut src),
                    ArgSrc::Optional(ss) => ss.iter().flatten().for_each(&mut src),
                    ArgSrc::Literal(_) | ArgSrc::Size(_) | ArgSrc::Sizes(_) => {}
                }
            }
        }
    }
    for_each_output(step, |out| f(out.slot));
}

/// Marks the steps that may write over an operand.
pub(crate) fn write_over(plan: &mut Plan) {
    let mut owned = vec![0u32; plan.slots];
    plan.memory.iter().filter_map(|m| m.owner).for_each(|owner| owned[owner as usize] += 1);
    let mut is_ours = vec![false; plan.slots];
    for step in &mut plan.steps {
        let ours = match &step.work {
            Work::Fused(fused) => !matches!(fused.with, Exec::Host(_)),
            Work::Call(call) => matches!(call.stamp, CallStamp::Only(_)),
            // Blocks may hand on what they were given.
            Work::Control(_) => false,
        };
        for_each_output(step, |out| is_ours[out.slot as usize] = ours);
        let Step { work: Work::Fused(fused), free, .. } = step else { continue };
        let Exec::Native(kernel) = &fused.with else { continue };
        if !kernel.writes_over() {
            continue;
        }
        let alone = |slot: u32| {
            let memory = plan.memory[slot as usize];
            let own = memory.owner == Some(slot) && owned[slot as usize] == 1;
            own && is_ours[slot as usize] && memory.bytes >= WORTH && free.contains(&slot)
        };
        let types = kernel.types().0;
        let mut over: Vec<Option<u32>> = Vec::new();
        for out in &fused.outputs {
            let fits = |(k, src): (usize, &Src)| match *src {
                Src::Slot(slot) => types[k] == out.promise && alone(slot) && !over.contains(&Some(k as u32)),
                Src::Input(_) => false,
            };
            let found = fused.inputs.iter().enumerate().position(fits);
            over.push(found.map(|k| k as u32));
        }
        if over.iter().any(Option::is_some) {
            fused.over = over.into();
        }
    }
}

fn for_each_output(step: &Step, mut f: impl FnMut(&OutSlot)) {
    match &step.work {
        Work::Fused(fused) => fused.outputs.iter().for_each(f),
        Work::Control(control) => control.outputs.iter().for_each(f),
        Work::Call(call) => {
            for output in &call.outputs {
                match output {
                    CallOutput::Tensor(out) => f(out),
                    CallOutput::List(outs) => outs.iter().for_each(&mut f),
                    CallOutput::Known(_) => {}
                }
            }
        }
    }
}

/// What a run of a plan takes, step by step.
#[derive(Default)]
pub(crate) struct Usage {
    pub steps: Vec<StepUsage>,
    /// Sizes of the buffers that are taken from the pool.
    pub buffers: Vec<u64>,
    /// The most bytes that are in use at once.
    pub peak: u64,
}

pub(crate) struct StepUsage {
    pub region: u32,
    /// Slots, their buffers, and the regions that had made what they are written over.
    pub made: Vec<(u32, usize, Option<u32>)>,
    /// Slots that are read for the last time.
    pub freed: Vec<u32>,
}

struct Reckoning<'p> {
    plan: &'p Plan,
    usage: Usage,
    /// By slot that owns memory: its buffer, how many slots share it, and the region that made it.
    buffer: Vec<Option<usize>>,
    shared: Vec<u32>,
    made_by: Vec<u32>,
    free: Vec<usize>,
    live: u64,
}

impl Usage {
    pub fn of(plan: &Plan) -> Usage {
        let n = plan.slots;
        let mut reckoning = Reckoning {
            plan,
            usage: Usage::default(),
            buffer: vec![None; n],
            shared: vec![0; n],
            made_by: vec![0; n],
            free: Vec::new(),
            live: 0,
        };
        plan.steps.iter().for_each(|step| reckoning.step(step));
        reckoning.usage
    }
}

impl Reckoning<'_> {
    fn step(&mut self, step: &Step) {
        let mut usage = StepUsage { region: step.region, made: Vec::new(), freed: step.free.to_vec() };
        let mut number = 0;
        for_each_output(step, |out| {
            let over = match &step.work {
                Work::Fused(fused) => {
                    let k = fused.over.get(number).copied().flatten();
                    k.and_then(
                        |k| if let Src::Slot(slot) = fused.inputs[k as usize] { Some(slot) } else { None },
                    )
                }
                Work::Call(_) | Work::Control(_) => None,
            };
            number += 1;
            let slot = out.slot;
            let SlotMemory { bytes, owner } = self.plan.memory[slot as usize];
            let Some(owner) = owner else { return };
            self.shared[owner as usize] += 1;
            if owner == slot {
                let buffer =
                    over.and_then(|s| self.buffer[s as usize].take()).unwrap_or_else(|| self.take(bytes));
                self.buffer[slot as usize] = Some(buffer);
                self.made_by[slot as usize] = step.region;
                usage.made.push((slot, buffer, over.map(|s| self.made_by[s as usize])));
            }
        });
        self.usage.peak = self.usage.peak.max(self.live);
        for &slot in &step.free {
            let Some(owner) = self.plan.memory[slot as usize].owner else { continue };
            self.shared[owner as usize] -= 1;
            if self.shared[owner as usize] == 0
                && let Some(buffer) = self.buffer[owner as usize].take()
            {
                self.live -= self.usage.buffers[buffer];
                self.free.push(buffer);
            }
        }
        self.usage.steps.push(usage);
    }

    fn take(&mut self, bytes: u64) -> usize {
        self.live += bytes;
        if let Some(at) = self.free.iter().rposition(|&b| self.usage.buffers[b] == bytes) {
            return self.free.remove(at);
        }
        self.usage.buffers.push(bytes);
        self.usage.buffers.len() - 1
    }
}

/// One line of a report.
impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} bytes in use at most", counted(self.buffers.len(), "buffer"), self.peak)?;
        for step in &self.steps {
            for (_, _, over) in &step.made {
                if let Some(over) = over {
                    write!(f, "; region {} writes over what region {over} made", step.region)?;
                }
            }
        }
        Ok(())
    }
}

/// The memory of a graph's plan as lines, for reading: each step with the buffers that it takes or writes over and the
/// slots that it reads for the last time.
pub fn text(graph: &Graph, backends: &[std::sync::Arc<dyn Backend>]) -> Result<Vec<String>> {
    let (plan, _) = lower::plan(graph, backends, &Artifacts::default())?;
    let usage = Usage::of(&plan);
    let mut lines = Vec::new();
    for step in &usage.steps {
        let ops = plan.regions.get(step.region as usize).map_or_else(String::new, |r| r.ops.join(" "));
        let mut line = format!("{}: {ops}", step.region);
        for (slot, buffer, over) in &step.made {
            let bytes = usage.buffers[*buffer];
            line += &format!("; slot {slot} in buffer {buffer} of {bytes} bytes");
            if let Some(over) = over {
                line += &format!(", over what {over} made");
            }
        }
        if !step.freed.is_empty() {
            let freed: Vec<String> = step.freed.iter().map(ToString::to_string).collect();
            line += &format!("; frees {}", freed.join(" "));
        }
        lines.push(line);
    }
    lines.push(format!("at most {} bytes", usage.peak));
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{ArgSrc, OutSrc};

    /// Two regions parted by a sum; the second writes over what the first made.
    fn planned() -> Plan {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| tp_kernels::register_all().expect("the op table is valid"));
        let text = "graph(%0 x: float32[256, 256]) {
  %1: float32[256, 256] = tp::exp.default(%0)
  %2: float32[] = tp::sum.default(%1, None, None, False)
  %3: float32[256, 256] = tp::add.default(%1, %2)
  %4: float32[] = tp::sum.default(%3, None, None, False)
  %5: float32[256, 256] = tp::add.default(%0, %4)
  return %3, %5
}
";
        let graph = Graph::parse(text).expect("it reads");
        lower::plan(&graph, &[], &Artifacts::default()).expect("it plans").0
    }

    /// Whether nobody reads what a step writes over, nor has it from elsewhere.
    fn is_sound(plan: &Plan) -> bool {
        let reads = |step: &Step, slot: u32| match &step.work {
            Work::Fused(fused) => fused.inputs.contains(&Src::Slot(slot)),
            Work::Call(call) => {
                call.args.iter().any(|a| matches!(a, ArgSrc::Tensor(src) if *src == Src::Slot(slot)))
            }
            Work::Control(control) => control.operands.contains(&Src::Slot(slot)),
        };
        let returns = |slot: u32| {
            plan.outputs.iter().any(|o| matches!(o, OutSrc::Tensor(src) if *src == Src::Slot(slot)))
        };
        plan.steps.iter().enumerate().all(|(i, step)| {
            let Work::Fused(fused) = &step.work else { return true };
            fused.over.iter().flatten().all(|&k| match fused.inputs[k as usize] {
                Src::Input(_) => false,
                Src::Slot(slot) => {
                    !returns(slot) && plan.steps[i + 1..].iter().all(|later| !reads(later, slot))
                }
            })
        })
    }

    fn fused(plan: &mut Plan, step: usize) -> &mut crate::plan::FusedStep {
        match &mut plan.steps[step].work {
            Work::Fused(fused) => fused,
            Work::Call(_) | Work::Control(_) => panic!("step {step} is no region"),
        }
    }

    #[test]
    fn a_planted_write_over_what_somebody_reads_is_caught() {
        let mut plan = planned();
        assert!(is_sound(&plan));
        assert_eq!(plan.steps.len(), 5);
        assert_eq!(*fused(&mut plan, 2).over, [Some(0)]);
        // Over an argument.
        fused(&mut plan, 0).over = [Some(0)].into();
        assert!(!is_sound(&plan));
        // Over what is returned.
        let mut plan = planned();
        fused(&mut plan, 4).inputs[0] = Src::Slot(2);
        fused(&mut plan, 4).over = [Some(0)].into();
        assert!(!is_sound(&plan));
        // Over what a later step reads.
        let mut plan = planned();
        fused(&mut plan, 4).inputs[0] = Src::Slot(0);
        assert!(!is_sound(&plan));
    }
}
