//! What was planned and what ran, as plain data. A stamp comes from the code path that ran; a plan only says what
//! was asked for, and why a region goes another way.

use crate::dot::columns;
use crate::passes::Removed;
use std::fmt;
use std::sync::Arc;
use tp_dispatch::{CodegenMarker, FallbackReason};

/// What to do when a region cannot run on the executor asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FallbackPolicy {
    /// Note it in the reports.
    #[default]
    Record,
    /// Note it, and warn once per region.
    Warn,
    /// Refuse to compile.
    Error,
}

/// One region of a compiled call that ran.
#[derive(Clone, PartialEq, Debug)]
pub struct RegionRun {
    pub index: usize,
    pub ops: Arc<[String]>,
    pub marker: Arc<CodegenMarker>,
    /// Set when the executor is not the one asked for.
    pub reason: Option<FallbackReason>,
}

/// One compiled call.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RunReport {
    pub forward: Vec<RegionRun>,
    /// Filled in once the backward has run.
    pub backward: Vec<RegionRun>,
    /// Number of the entry that ran, in order of capture.
    pub graph: usize,
}

/// One region as planned.
#[derive(Clone, PartialEq, Debug)]
pub struct PlannedRegion {
    pub index: usize,
    pub ops: Arc<[String]>,
    /// Name of the executor chosen.
    pub executor: Arc<str>,
    pub reason: Option<FallbackReason>,
    pub backward: bool,
}

/// A backend artifact made for a compiled function.
#[derive(Clone, PartialEq, Debug)]
pub struct Build {
    pub backend: Arc<str>,
    pub hash: Arc<str>,
    pub seconds: f64,
    pub cached: bool,
}

/// One more capture of a function that had been captured before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recompile {
    /// Number of the entry that was made.
    pub graph: usize,
    /// The guard that failed, with what was found.
    pub guard: String,
}

/// What is known of a compiled function.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Explanation {
    /// Text form of each captured graph; a training entry has two.
    pub graphs: Vec<(String, Option<String>)>,
    /// Guards of each graph.
    pub guards: Vec<Vec<String>>,
    /// Where pointwise chains end, and why.
    pub breaks: Vec<String>,
    pub removed: Vec<Removed>,
    pub regions: Vec<PlannedRegion>,
    /// What runs keep and write over, a line each.
    pub memory: Vec<String>,
    pub recompiles: Vec<Recompile>,
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {}", self.graph)?;
        let mut rows =
            vec![["phase", "region", "ops", "ran on", "why not the one asked for"].map(str::to_string)];
        for (phase, runs) in [("forward", &self.forward), ("backward", &self.backward)] {
            rows.extend(runs.iter().map(|r| {
                let reason = r.reason.as_ref().map_or_else(String::new, ToString::to_string);
                [phase.to_string(), r.index.to_string(), r.ops.join(" "), r.marker.to_string(), reason]
            }));
        }
        f.write_str(&columns(&rows))
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (forward, backward)) in self.graphs.iter().enumerate() {
            writeln!(f, "graph {i}\n{forward}")?;
            if let Some(backward) = backward {
                writeln!(f, "backward of graph {i}\n{backward}")?;
            }
            section(f, "guards", self.guards.get(i).map_or(&[][..], |g| g))?;
        }
        let mut rows =
            vec![["phase", "region", "ops", "planned for", "why not the one asked for"].map(str::to_string)];
        rows.extend(self.regions.iter().map(|r| {
            let phase = if r.backward { "backward" } else { "forward" };
            let reason = r.reason.as_ref().map_or_else(String::new, ToString::to_string);
            [phase.to_string(), r.index.to_string(), r.ops.join(" "), r.executor.to_string(), reason]
        }));
        f.write_str(&columns(&rows))?;
        section(f, "breaks", &self.breaks)?;
        let removed: Vec<String> =
            self.removed.iter().map(|r| format!("{} ({})", r.target, r.pass)).collect();
        section(f, "removed", &removed)?;
        section(f, "memory", &self.memory)?;
        let recompiles: Vec<String> =
            self.recompiles.iter().map(|r| format!("graph {}: {}", r.graph, r.guard)).collect();
        section(f, "recompiles", &recompiles)
    }
}

fn section(f: &mut fmt::Formatter<'_>, title: &str, lines: &[String]) -> fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(f, "{title}:")?;
    lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
}
