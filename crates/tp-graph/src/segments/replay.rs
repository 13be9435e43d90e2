//! The steps of a piece as calls again: over real tensors, or over the fakes of a capture. And the piece's structure as
//! words: two pieces of equal words differ in their inputs alone.

use super::queue::{Out, Segment, Source, Step};
use std::collections::HashMap;
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
    /// Its arguments: tensors that it reads and does not make, then numbers.
    pub args: Vec<Value>,
    places: HashMap<Place, u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Input(u32),
    Made(u32),
    Number(u32),
}

fn place_of(source: &Source) -> Option<Place> {
    match source {
        Source::Input(i) => Some(Place::Input(*i)),
        Source::Made(i) => Some(Place::Made(*i)),
        Source::Number(i) => Some(Place::Number(*i)),
        _ => None,
    }
}

impl<'a> Piece<'a> {
    pub fn new(segment: &'a Segment, steps: &'a [Step], results: Vec<u32>) -> Piece<'a> {
        let mut piece = Piece { segment, steps, results, args: Vec::new(), places: HashMap::new() };
        let mut own: Vec<u32> = Vec::new();
        for step in steps {
            for arg in &step.args {
                arg.each(&mut |source| {
                    if let Some(place) = place_of(source)
                        && !matches!(place, Place::Made(n) if own.contains(&n))
                    {
                        piece.take(place);
                    }
                });
            }
            own.extend(step.outs.iter().flat_map(Out::numbers));
        }
        piece
    }

    fn take(&mut self, place: Place) {
        if self.places.contains_key(&place) {
            return;
        }
        let value = match place {
            Place::Input(i) => Value::Tensor(self.segment.inputs[i as usize].tensor.clone()),
            Place::Made(i) => Value::Tensor(self.segment.made[i as usize].tensor.clone()),
            Place::Number(i) => plain(&self.segment.numbers[i as usize]),
        };
        self.places.insert(place, self.args.len() as u32);
        self.args.push(value);
    }

    /// Names of the arguments, for guards.
    pub fn names(&self) -> Vec<Arc<str>> {
        (0..self.args.len()).map(|i| format!("input{i}").into()).collect()
    }

    /// Calls the steps with `given` in the places of the arguments; the piece's results.
    pub fn replay(&self, given: &[Value]) -> Result<Vec<Value>> {
        let mut made: HashMap<u32, Tensor> = HashMap::new();
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
                made.extend(out.numbers().zip(tensors));
            }
        }
        let result = |n: &u32| made.get(n).cloned().map(Value::Tensor).ok_or_else(lost);
        self.results.iter().map(result).collect()
    }

    fn value(&self, source: &Source, given: &[Value], made: &HashMap<u32, Tensor>) -> Result<Value> {
        let tensor =
            |source: &Source| self.value(source, given, made).and_then(|v| v.into_tensor().ok_or_else(lost));
        match source {
            Source::Literal(value) => Ok(value.clone()),
            Source::List(items) => Ok(Value::Tensors(items.iter().map(tensor).collect::<Result<_>>()?)),
            Source::Optional(items) => {
                let item = |source: &Option<Source>| source.as_ref().map(tensor).transpose();
                Ok(Value::OptTensors(items.iter().map(item).collect::<Result<_>>()?))
            }
            Source::Made(n) if made.contains_key(n) => Ok(Value::Tensor(made[n].clone())),
            one => {
                let at = place_of(one).and_then(|place| self.places.get(&place)).ok_or_else(lost)?;
                let value = given.get(*at as usize).ok_or_else(lost)?;
                Ok(match one {
                    Source::Number(i) => like(&self.segment.numbers[*i as usize], value),
                    _ => value.clone(),
                })
            }
        }
    }

    /// Ops, literals and who reads what, as words.
    pub fn key(&self) -> Box<[u64]> {
        let mut local: HashMap<u32, u32> = HashMap::new();
        let mut words: Vec<u64> = vec![u64::from(self.segment.grad), self.steps.len() as u64];
        for step in self.steps {
            words.extend([u64::from(step.op.id().0), step.args.len() as u64]);
            step.args.iter().for_each(|source| self.encode(source, &local, &mut words));
            for n in step.outs.iter().flat_map(Out::numbers) {
                local.insert(n, local.len() as u32);
            }
        }
        words.extend(self.results.iter().map(|n| u64::from(local.get(n).copied().unwrap_or(u32::MAX))));
        words.into()
    }

    fn encode(&self, source: &Source, local: &HashMap<u32, u32>, words: &mut Vec<u64>) {
        match source {
            Source::Made(n) if local.contains_key(n) => words.extend([1, u64::from(local[n])]),
            Source::Literal(value) => encode_literal(value, words),
            Source::List(items) => {
                words.extend([3, items.len() as u64]);
                items.iter().for_each(|item| self.encode(item, local, words));
            }
            Source::Optional(items) => {
                words.extend([4, items.len() as u64]);
                for item in items {
                    words.push(item.is_some().into());
                    item.iter().for_each(|item| self.encode(item, local, words));
                }
            }
            Source::Number(i) => {
                let kind = matches!(self.segment.numbers[*i as usize], Value::Scalar(_));
                words.extend([5, kind.into(), self.at(Place::Number(*i))]);
            }
            Source::Input(i) => words.extend([2, self.at(Place::Input(*i))]),
            Source::Made(i) => words.extend([2, self.at(Place::Made(*i))]),
        }
    }

    fn at(&self, place: Place) -> u64 {
        self.places.get(&place).map_or(u64::MAX, |at| u64::from(*at))
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
