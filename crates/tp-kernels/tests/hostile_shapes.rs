//! Every row's fake rule on shapes, strides and numbers at the edge of what there is: an answer or an ordinary error,
//! never a panic. Tests are built with overflow checks, so that a size which wraps around is a panic too.

#[path = "common/mod.rs"]
mod common;

use common::setup;
use proptest::collection::vec;
use proptest::prelude::*;
use smallvec::SmallVec;
use tp_dispatch::bind::{Param, ParamKind};
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, OpHandle, Registry, Rets, Value};
use tp_tensor::{DType, Device, Scalar, Tensor};

/// What the door lets through; numbers below stand for symbols, and are refused there.
const NUMBERS: [i64; 16] = [
    0,
    1,
    2,
    3,
    -1,
    -2,
    7,
    1 << 31,
    1 << 32,
    (1 << 40) + 1,
    1 << 61,
    1 << 62,
    -(1 << 62),
    i64::MAX,
    i64::MIN + (1 << 32),
    -(1 << 61),
];
const SIZES: [i64; 9] = [0, 1, 2, 3, 1 << 20, 1 << 31, 1 << 40, 1 << 61, 1 << 62];

/// Choices of a call, drawn from a list of bytes; zero when that is used up.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn up_to(&mut self, n: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.up_to(all.len())]
    }

    fn number(&mut self) -> i64 {
        self.of(&NUMBERS)
    }

    fn numbers(&mut self) -> Box<[i64]> {
        (0..self.up_to(5)).map(|_| self.number()).collect()
    }

    /// A tensor without data; strides are arbitrary where they reach one element at most.
    fn tensor(&mut self) -> Tensor {
        let dtypes: SmallVec<[DType; 16]> = DType::ALL.into_iter().collect();
        let dtype = self.of(&dtypes);
        let mut sizes: SmallVec<[i64; 4]> = (0..self.up_to(5)).map(|_| self.of(&SIZES)).collect();
        loop {
            let mut strides = tp_tensor::layout::contiguous_strides(&sizes);
            let empty = sizes.contains(&0);
            for (size, stride) in sizes.iter().zip(strides.iter_mut()) {
                if empty || *size == 1 {
                    *stride = self.number();
                } else if self.up_to(4) == 0 {
                    *stride = 0;
                }
            }
            match Tensor::fake(&sizes, &strides, dtype, Device::CPU, 1) {
                Ok(t) => return t,
                Err(_) => drop(sizes.pop()),
            }
        }
    }

    fn value(&mut self, p: &Param) -> Value {
        if p.optional && self.up_to(3) == 0 {
            return Value::None;
        }
        let scalar = |n: i64, k: usize| match k {
            0 => Scalar::Bool(n != 0),
            1 => Scalar::Float(n as f64 * 1e300),
            _ => Scalar::Int(n),
        };
        match p.kind {
            ParamKind::Tensor => Value::Tensor(self.tensor()),
            ParamKind::Tensors => Value::Tensors((0..self.up_to(4)).map(|_| self.tensor()).collect()),
            ParamKind::OptTensors => {
                let one = |c: &mut Self| (c.up_to(2) == 0).then(|| c.tensor());
                Value::OptTensors((0..self.up_to(4)).map(|_| one(self)).collect())
            }
            ParamKind::Scalar => Value::Scalar(scalar(self.number(), self.up_to(3))),
            ParamKind::Int => Value::Int(self.number()),
            ParamKind::Float => Value::Float(self.number() as f64),
            ParamKind::Bool => Value::Bool(self.up_to(2) == 0),
            ParamKind::Ints => Value::Ints(self.numbers()),
            ParamKind::Floats => Value::Floats(self.numbers().iter().map(|&n| n as f64).collect()),
            ParamKind::Bools => Value::Bools(self.numbers().iter().map(|&n| n != 0).collect()),
            ParamKind::Scalars => Value::Scalars(self.numbers().iter().map(|&n| Scalar::Int(n)).collect()),
            ParamKind::DType => {
                Value::DType(DType::ALL.into_iter().nth(self.up_to(10)).unwrap_or(DType::F32))
            }
            ParamKind::Device => Value::Device(Device::CPU),
            ParamKind::Str => Value::Str("".into()),
            ParamKind::Opaque => Value::None,
        }
    }
}

pub fn ops() -> Vec<OpHandle> {
    setup();
    let mut ops = Registry::global().list(Some("tp"));
    ops.sort_by_key(|op| op.id());
    ops
}

/// One call of the Meta layer, which runs the fake rule.
pub fn predict(op: OpHandle, choices: &[u8]) -> Option<Rets> {
    let def = op.def()?;
    let mut choices = Choices(choices.iter());
    let values: Vec<Value> = def.params.all.iter().map(|p| choices.value(p)).collect();
    let args: SmallVec<[Arg<'_>; 8]> = values.iter().map(Value::as_arg).collect();
    let fakes =
        tp_dispatch::state::KeyGuard::new(tp_dispatch::DispatchKey::Meta.set(), tp_dispatch::KeySet::EMPTY);
    let mut rets = Rets::new();
    let called = tp_dispatch::call(op, &args, HostArgs::NONE, &mut rets);
    drop(fakes);
    called.ok().map(|()| rets)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn no_fake_rule_panics(op in 0usize..10_000, choices in vec(any::<u8>(), 0..40)) {
        let ops = ops();
        let op = ops[op % ops.len()];
        for value in predict(op, &choices).into_iter().flatten() {
            value.for_each_tensor(|t| {
                // What is predicted can be looked at.
                assert!(t.sizes().iter().all(|&s| s >= 0), "{op} {:?}", t.sizes());
                assert_eq!(t.sizes().len(), t.strides().len(), "{op}");
            });
        }
    }
}
