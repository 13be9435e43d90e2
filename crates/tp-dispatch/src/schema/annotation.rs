//! Types and signatures as Python writes them, for messages to people who call an op: `list[int] | None` and not
//! `SymInt[]?`. Nothing reads these texts back; schema text is `print`'s.

use super::{ArgType, Argument, DefaultValue, Schema};

impl ArgType {
    /// The annotation that stands for the type in a Python signature.
    pub fn annotation(&self) -> String {
        use ArgType as T;
        match self {
            T::Int | T::SymInt => "int".into(),
            T::Bool | T::SymBool => "bool".into(),
            T::Scalar | T::Number => "int | float".into(),
            T::ScalarType => "dtype".into(),
            T::Device => "device".into(),
            T::NoneType => "None".into(),
            T::Optional(inner) => format!("{} | None", inner.annotation()),
            // One value will do in place of such a list.
            T::List(element, Some(1)) => format!("{0} | list[{0}]", element.annotation()),
            T::List(element, _) => format!("list[{}]", element.annotation()),
            T::Tuple(items) => format!("tuple[{}]", joined(items, ", ")),
            T::Dict(pair) => format!("dict[{}, {}]", pair.0.annotation(), pair.1.annotation()),
            T::Union(members) => joined(members, " | "),
            other => other.to_string(),
        }
    }
}

fn joined(types: &[ArgType], between: &str) -> String {
    types.iter().map(ArgType::annotation).collect::<Vec<_>>().join(between)
}

impl Schema {
    /// The parameters as a Python signature: `(x: Tensor, axis: int | None = None, *, keepdims: bool = False)`.
    pub fn python_signature(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        for (i, a) in self.arguments().iter().enumerate() {
            if i == self.positional_count() {
                parts.push("*".into());
            }
            parts.push(parameter(a));
        }
        format!("({})", parts.join(", "))
    }
}

fn parameter(a: &Argument) -> String {
    let default = a.default().map(|d| format!(" = {}", value(d))).unwrap_or_default();
    format!("{}: {}{default}", a.name(), a.ty().annotation())
}

fn value(d: &DefaultValue) -> String {
    match d {
        DefaultValue::Float(v) => format!("{v:?}"),
        DefaultValue::List(items) => format!("[{}]", items.iter().map(value).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_defaults_read_as_python() {
        let text = "m::f(Tensor x, Tensor?[] ts, SymInt[1]? axis=None, float[2] e=[1., 2.5], Scalar s=1, *, \
                    ScalarType? dtype=None, Device? device=None, bool b=False, float c=0., str t=\"a\", \
                    Dict(str, int) d) -> Tensor";
        let s = Schema::parse(text).unwrap();
        assert_eq!(
            s.python_signature(),
            "(x: Tensor, ts: list[Tensor | None], axis: int | list[int] | None = None, e: list[float] = [1.0, 2.5], \
             s: int | float = 1, *, dtype: dtype | None = None, device: device | None = None, b: bool = False, \
             c: float = 0.0, t: str = \"a\", d: dict[str, int])"
        );
    }
}
