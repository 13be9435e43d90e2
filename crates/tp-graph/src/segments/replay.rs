//! The steps of a piece as calls again: over real tensors, or over the fakes of a capture. And the piece's structure as
//! words: two pieces of equal words differ in their inputs alone.

use super::queue::{Out, Segment, Source, Step};
use std::sync::Arc;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, Error, Result, Rets, Value, dispatcher, host};
use tp_tensor::{Scalar, Tensor};

/// A piece with its inputs found.
pub(super) struct Piece<'a> {
    pub segment: &'a Segment,
    pub steps: &'a [Step],
    /// Made tensors that it gives.
    pub results: Vec<u32>,
    /// Its arguments: tensors that it reads and does not make, and numbers.
    pub args: Vec<Value>,
    /// By the segment's numbers: which argument an input, a made tensor or a number is.
    places: [Vec<u32>; 3],
    /// Number of the first tensor that it makes.
    first: u32,
}

/// The structure of a piece.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub hash: u64,
    words: Box<[u64]>,
}

const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy)]
enum Place {
    Input(u32),
    Made(u32),
    Number(u32),
}

impl Place {
    fn of(source: &Source) -> Option<Place> {
        match source {
            Source::Input(i) => Some(Place::Input(*i)),
            Source::Made(i) => Some(Place::Made(*i)),
            Source::Number(i) => Some(Place::Number(*i)),
            _ => None,
        }
    }

    fn at(self) -> (usize, usize) {
        match self {
            Place::Input(i) => (0, i as usize),
            Place::Made(i) => (1, i as usize),
            Place::Number(i) => (2, i as usize),
        }
    }
}

impl<'a> Piece<'a> {
    pub fn new(segment: &'a Segment, steps: &'a [Step], results: Vec<u32>) -> Piece<'a> {
        let places = [segment.inputs.len(), segment.made.len(), segment.numbers.len()];
        let places = places.map(|n| vec![NOWHERE; n]);
        let mut numbers = steps.iter().flat_map(|step| &step.outs).map(Out::numbers);
        // Made tensors are numbered in the order of the steps.
        let first = numbers.next().map_or(0, |range| range.start);
        let own = first..numbers.next_back().map_or(u32::MAX, |range| range.end);
        let mut piece = Piece { segment, steps, results, args: Vec::new(), places, first };
        for step in steps {
            for arg in &step.args {
                arg.each(&mut |source| match Place::of(source) {
                    Some(Place::Made(n)) if own.contains(&n) => {}
                    Some(place) => piece.take(place),
                    None => {}
                });
            }
        }
        piece
    }

    fn take(&mut self, place: Place) {
        let (kind, i) = place.at();
        if self.places[kind][i] != NOWHERE {
            return;
        }
        self.places[kind][i] = self.args.len() as u32;
        self.args.push(match place {
            Place::Input(_) => Value::Tensor(self.segment.inputs[i].tensor.clone()),
            Place::Made(_) => Value::Tensor(self.segment.made[i].tensor.clone()),
            Place::Number(_) => plain(&self.segment.numbers[i]),
        });
    }

    /// Names of the arguments, for guards.
    pub fn names(&self) -> Vec<Arc<str>> {
        (0..self.args.len()).map(|i| format!("input{i}").into()).collect()
    }

    /// Calls the steps with `given` in the places of the arguments; the piece's results.
    pub fn replay(&self, given: &[Value]) -> Result<Vec<Value>> {
        let mut made: Vec<Option<Tensor>> = vec![None; self.segment.made.len()];
        for step in self.steps {
            let args = step.args.iter().map(|source| self.value(source, given, &made));
            let values = args.collect::<Result<Vec<Value>>>()?;
            let mut rets = Rets::new();
            host::located_at(step.location.clone(), || call(step, &values, &mut rets))?;
            for (out, value) in step.outs.iter().zip(rets) {
                let tensors: Vec<Tensor> = match value {
                    Value::Tensor(t) => vec![t],
                    Value::Tensors(ts) => ts.into_vec(),
                    _ => return Err(lost()),
                };
                for (n, t) in out.numbers().zip(tensors) {
                    made[n as usize] = Some(t);
                }
            }
        }
        let result = |n: &u32| made[*n as usize].clone().map(Value::Tensor).ok_or_else(lost);
        self.results.iter().map(result).collect()
    }

    fn value(&self, source: &Source, given: &[Value], made: &[Option<Tensor>]) -> Result<Value> {
        let tensor =
            |source: &Source| self.value(source, given, made).and_then(|v| v.into_tensor().ok_or_else(lost));
        match source {
            Source::Literal(value) => Ok(value.clone()),
            Source::List(items) => Ok(Value::Tensors(items.iter().map(tensor).collect::<Result<_>>()?)),
            Source::Optional(items) => {
                let item = |source: &Option<Source>| source.as_ref().map(tensor).transpose();
                Ok(Value::OptTensors(items.iter().map(item).collect::<Result<_>>()?))
            }
            Source::Made(n) if made[*n as usize].is_some() => {
                made[*n as usize].clone().map(Value::Tensor).ok_or_else(lost)
            }
            Source::Number(i) => Ok(like(&self.segment.numbers[*i as usize], self.given(source, given)?)),
            one => self.given(one, given).cloned(),
        }
    }

    fn given<'v>(&self, source: &Source, given: &'v [Value]) -> Result<&'v Value> {
        let (kind, i) = Place::of(source).ok_or_else(lost)?.at();
        given.get(self.places[kind][i] as usize).ok_or_else(lost)
    }

    /// Ops, literals and who reads what, as words.
    pub fn key(&self) -> Key {
        let mut words: Vec<u64> = Vec::with_capacity(16 * self.steps.len());
        words.extend([u64::from(self.segment.grad), self.steps.len() as u64]);
        for step in self.steps {
            words.extend([u64::from(step.op.id().0), step.args.len() as u64]);
            step.args.iter().for_each(|source| self.encode(source, &mut words));
        }
        words.extend(self.results.iter().map(|n| u64::from(*n - self.first)));
        let mix = |hash: u64, word: &u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        Key { hash: words.iter().fold(0, mix), words: words.into() }
    }

    fn encode(&self, source: &Source, words: &mut Vec<u64>) {
        match source {
            Source::Literal(value) => encode_literal(value, words),
            Source::List(items) => {
                words.extend([3, items.len() as u64]);
                items.iter().for_each(|item| self.encode(item, words));
            }
            Source::Optional(items) => {
                words.extend([4, items.len() as u64]);
                for item in items {
                    words.push(item.is_some().into());
                    item.iter().for_each(|item| self.encode(item, words));
                }
            }
            Source::Number(i) => {
                let kind = matches!(self.segment.numbers[*i as usize], Value::Scalar(_));
                words.extend([5, kind.into(), u64::from(self.places[2][*i as usize])]);
            }
            Source::Input(i) => words.extend([2, u64::from(self.places[0][*i as usize])]),
            Source::Made(i) => match self.places[1][*i as usize] {
                NOWHERE => words.extend([1, u64::from(*i - self.first)]),
                at => words.extend([2, u64::from(at)]),
            },
        }
    }
}

/// Calls the op of a step.
pub(super) fn call(step: &Step, values: &[Value], rets: &mut Rets) -> Result<()> {
    let args: Vec<Arg<'_>> = values.iter().map(Value::as_arg).collect();
    dispatcher::call(step.op, &args, HostArgs::NONE, rets)
}

/// A number as compiled functions take it.
fn plain(value: &Value) -> Value {
    match value {
        Value::Scalar(Scalar::Int(v)) => Value::Int(*v),
        Value::Scalar(Scalar::Float(v)) => Value::Float(*v),
        other => other.clone(),
    }
}

/// The number `value` in the form of `form`.
fn like(form: &Value, value: &Value) -> Value {
    match (form, value) {
        (Value::Scalar(_), Value::Int(v)) => Value::Scalar(Scalar::Int(*v)),
        (Value::Scalar(_), Value::Float(v)) => Value::Scalar(Scalar::Float(*v)),
        _ => value.clone(),
    }
}

fn encode_literal(value: &Value, words: &mut Vec<u64>) {
    let mut many = |tag: u64, items: &mut dyn Iterator<Item = u64>| {
        let at = words.len();
        words.extend([tag, 0]);
        words.extend(items);
        words[at + 1] = (words.len() - at - 2) as u64;
    };
    match value {
        Value::None => words.push(10),
        Value::Int(v) => words.extend([11, *v as u64]),
        Value::Bool(v) => words.extend([12, u64::from(*v)]),
        Value::Float(v) => words.extend([13, v.to_bits()]),
        Value::Scalar(s) => many(14, &mut scalar(s).into_iter()),
        Value::Ints(v) => many(15, &mut v.iter().map(|i| *i as u64)),
        Value::Floats(v) => many(16, &mut v.iter().map(|f| f.to_bits())),
        Value::Bools(v) => many(17, &mut v.iter().map(|b| u64::from(*b))),
        Value::Scalars(v) => many(18, &mut v.iter().flat_map(scalar)),
        Value::Str(s) => many(19, &mut s.bytes().map(u64::from)),
        Value::DType(d) => words.extend([20, *d as u64]),
        Value::Device(d) => many(21, &mut d.to_string().bytes().map(u64::from)),
        Value::Tensor(_) | Value::Tensors(_) | Value::OptTensors(_) | Value::Host(_) => words.push(22),
    }
}

fn scalar(s: &Scalar) -> [u64; 2] {
    match s {
        Scalar::Bool(v) => [0, u64::from(*v)],
        Scalar::Int(v) => [1, *v as u64],
        Scalar::Float(v) => [2, v.to_bits()],
    }
}

#[cold]
pub(super) fn lost() -> Error {
    Error::internal("TP9112", "a segment lost one of its tensors")
}
