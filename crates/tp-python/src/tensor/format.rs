//! Numbers as text, all of one tensor in one style: the shortest digits that read back as the same value, aligned on
//! the point, in scientific form where the magnitudes differ too much. The rules are NumPy's.

use tp_tensor::scalar::{bf16, f16};
use tp_tensor::{DType, Scalar};

/// Digits after the point beyond which a number is rounded.
const PRECISION: usize = 8;

/// One style for all of the elements that are shown.
pub struct Style {
    kind: Kind,
    width: usize,
}

enum Kind {
    Plain,
    Float { dtype: DType, scientific: bool, left: usize, right: usize },
}

impl Style {
    pub fn of(dtype: DType, shown: &[Scalar]) -> Style {
        if !dtype.is_float() {
            let width = shown.iter().map(|s| s.to_string().len()).max().unwrap_or(0);
            return Style { kind: Kind::Plain, width };
        }
        let values: Vec<f64> = shown.iter().map(|s| s.to::<f64>()).collect();
        let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        let scientific = needs_exponent(&finite);
        let (mut left, mut right) = (0, 0);
        for &v in &finite {
            let text = digits(v, dtype, scientific);
            let mantissa = text.split('e').next().unwrap_or(&text);
            let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
            left = left.max(whole.len());
            right = right.max(fraction.len());
        }
        let style = Style { kind: Kind::Float { dtype, scientific, left, right }, width: 0 };
        let width = values.iter().map(|v| style.float(*v).len()).max().unwrap_or(0);
        Style { width, ..style }
    }

    pub fn element(&self, s: Scalar) -> String {
        let text = match self.kind {
            Kind::Plain => s.to_string(),
            Kind::Float { .. } => self.float(s.to::<f64>()),
        };
        format!("{text:>width$}", width = self.width)
    }

    /// Aligned on the point; specials stand to the right.
    fn float(&self, v: f64) -> String {
        let Kind::Float { dtype, scientific, left, right } = self.kind else { return v.to_string() };
        if !v.is_finite() {
            return special(v).to_string();
        }
        let text = digits(v, dtype, scientific);
        let (mantissa, exponent) = match text.split_once('e') {
            Some((m, e)) => (m, format!("e{e}")),
            None => (&*text, String::new()),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        // In scientific form zeros fill the fraction, else blanks do.
        if scientific {
            format!("{whole:>left$}.{fraction:0<right$}{exponent}")
        } else {
            format!("{whole:>left$}.{fraction:<right$}")
        }
    }
}

fn special(v: f64) -> &'static str {
    if v.is_nan() {
        "nan"
    } else if v > 0.0 {
        "inf"
    } else {
        "-inf"
    }
}

fn needs_exponent(finite: &[f64]) -> bool {
    let nonzero = || finite.iter().map(|v| v.abs()).filter(|v| *v != 0.0);
    let (Some(max), Some(min)) = (nonzero().reduce(f64::max), nonzero().reduce(f64::min)) else {
        return false;
    };
    max >= 1e8 || min < 1e-4 || max / min > 1000.0
}

/// The shortest decimal that reads back as `v` in its dtype, rounded to the precision; no trailing zeros after the
/// point, and always a point.
fn digits(v: f64, dtype: DType, scientific: bool) -> String {
    if scientific {
        let text = shortest(v, dtype);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let long = mantissa.split_once('.').is_some_and(|(_, f)| f.len() > PRECISION);
        let rounded = if long { format!("{v:.PRECISION$e}") } else { String::new() };
        let (mantissa, exponent) = rounded.split_once('e').unwrap_or((mantissa, exponent));
        let sign = if exponent.starts_with('-') { '-' } else { '+' };
        return format!("{}e{sign}{:0>2}", trimmed(mantissa), exponent.trim_start_matches('-'));
    }
    let plain = positional(&shortest(v, dtype));
    let long = plain.split_once('.').is_some_and(|(_, f)| f.len() > PRECISION);
    if long { trimmed(&format!("{v:.PRECISION$}")) } else { trimmed(&plain) }
}

fn trimmed(text: &str) -> String {
    match text.split_once('.') {
        Some((whole, fraction)) => format!("{whole}.{}", fraction.trim_end_matches('0')),
        None => format!("{text}."),
    }
}

/// Shortest digits in `d.ddde±x` form.
fn shortest(v: f64, dtype: DType) -> String {
    match dtype {
        DType::F64 => format!("{v:e}"),
        DType::F32 => format!("{:e}", v as f32),
        DType::F16 => fewest(v, |x| f64::from(f16::from_f64(x)) == v),
        _ => fewest(v, |x| f64::from(bf16::from_f64(x)) == v),
    }
}

/// Half precision: five digits are always enough.
fn fewest(v: f64, same: impl Fn(f64) -> bool) -> String {
    let exact = format!("{v:e}");
    (0..5)
        .map(|n| format!("{v:.n$e}"))
        .find(|text| text.parse::<f64>().is_ok_and(&same))
        .map_or(exact, |text| text)
}

/// `d.ddde±x` without the exponent.
fn positional(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |m| ("-", m));
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    let point = 1 + exponent;
    if point <= 0 {
        return format!("{sign}0.{}{digits}", "0".repeat(point.unsigned_abs() as usize));
    }
    let point = point as usize;
    if digits.len() <= point {
        return format!("{sign}{digits}{}", "0".repeat(point - digits.len()));
    }
    format!("{sign}{}.{}", &digits[..point], &digits[point..])
}
