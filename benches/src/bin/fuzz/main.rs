//! A fuzzer for stable Rust that runs as long as it is told to: schema texts for the parser, random calls for the
//! built-in ops. It prints figures; its exit status is 1 when something panicked or broke a rule.
//!
//!     cargo run --release -p tp-bench --bin fuzz -- --schemas 10000000 --calls 1000000 --seconds 600 --seed 1

mod calls;
mod schemas;

use calls::Choices;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tp_dispatch::ErrorKind;

/// splitmix64: small, and the same everywhere.
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

impl Choices for Random {
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

struct Options {
    schemas: u64,
    calls: u64,
    time: Duration,
    seed: u64,
}

fn options() -> Result<Options, String> {
    let mut out = Options { schemas: 10_000_000, calls: 1_000_000, time: Duration::from_secs(900), seed: 0 };
    let mut words = std::env::args().skip(1);
    while let Some(name) = words.next() {
        let number = words.next().and_then(|w| w.parse::<u64>().ok());
        let number = number.ok_or_else(|| format!("{name} takes a number"))?;
        match name.as_str() {
            "--schemas" => out.schemas = number,
            "--calls" => out.calls = number,
            "--seconds" => out.time = Duration::from_secs(number),
            "--seed" => out.seed = number,
            _ => return Err(format!("no option {name}: --schemas, --calls, --seconds, --seed")),
        }
    }
    Ok(out)
}

/// Resident memory in MiB; 0 where the system does not tell.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|t| t.split(' ').nth(1).and_then(|w| w.parse::<u64>().ok()));
    (pages.unwrap_or(0) * 4096) >> 20
}

/// What one half of the run came to.
#[derive(Default)]
struct Figures {
    tried: u64,
    accepted: u64,
    panics: u64,
    broken: u64,
}

/// The state that the step in progress began with.
static STATE: AtomicU64 = AtomicU64::new(0);

/// Ends the process when one step takes longer than this: a loop without end is a fault as well.
fn watch(longest: Duration, ops: Vec<tp_dispatch::OpHandle>) {
    std::thread::spawn(move || {
        let mut last = 0;
        loop {
            std::thread::sleep(longest);
            let now = STATE.load(Ordering::Relaxed);
            if now == last {
                // The first choice of a call is its op.
                let op = ops[Random(now).below(ops.len())];
                eprintln!("no end at state {now:#x}: if it was a call, of {}", op.full_name());
                std::process::exit(1);
            }
            last = now;
        }
    });
}

/// Runs `step` until the count or the time is up. A step says whether its input was accepted, or what rule broke.
fn drive(
    count: u64,
    until: Instant,
    random: &mut Random,
    mut step: impl FnMut(&mut Random) -> Result<bool, String>,
) -> Figures {
    let mut out = Figures::default();
    while out.tried < count && (!out.tried.is_multiple_of(64) || Instant::now() < until) {
        let before = random.0;
        STATE.store(before, Ordering::Relaxed);
        out.tried += 1;
        match catch_unwind(AssertUnwindSafe(|| step(random))) {
            Ok(Ok(accepted)) => out.accepted += u64::from(accepted),
            Ok(Err(what)) => {
                out.broken += 1;
                eprintln!("broken at state {before:#x}: {what}");
            }
            Err(_) => {
                out.panics += 1;
                eprintln!("panic at state {before:#x}");
            }
        }
    }
    out
}

fn report(what: &str, f: &Figures, seconds: f64) {
    eprintln!(
        "{what}: {} tried in {seconds:.1} s, {} accepted, {} panics, {} broken rules",
        f.tried, f.accepted, f.panics, f.broken
    );
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    tp_bench::setup();
    let ops = calls::ops();
    watch(Duration::from_secs(20), ops.clone());
    let mut random = Random(options.seed);
    let half = options.time / 2;
    // Caches and pools fill up first: what grows afterwards is a leak.
    drive(20_000, Instant::now() + half, &mut random, schemas::step);
    drive(20_000, Instant::now() + half, &mut random, |r| call(r, &ops));
    let start = resident();
    let began = Instant::now();
    let texts = drive(options.schemas, began + half, &mut random, schemas::step);
    report("schema strings", &texts, began.elapsed().as_secs_f64());
    let began = Instant::now();
    let shapes = drive(options.calls, began + half, &mut random, |r| call(r, &ops));
    report("call shapes", &shapes, began.elapsed().as_secs_f64());
    eprintln!("resident memory: {start} MiB at the start, {} MiB at the end", resident());
    let bad = texts.panics + texts.broken + shapes.panics + shapes.broken;
    ExitCode::from(u8::from(bad > 0))
}

fn call(random: &mut Random, ops: &[tp_dispatch::OpHandle]) -> Result<bool, String> {
    let (op, result) = calls::one_call(random, ops);
    match result {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::Internal || e.code() == "TP4002" => {
            Err(format!("{}: {e:?}", op.full_name()))
        }
        Err(_) => Ok(false),
    }
}
