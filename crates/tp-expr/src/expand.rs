//! The float32 transcendentals, and those of float64 that are no calls of the C library (`wide`), each one written once over an `Algebra`: as instructions for backends
//! (`Program::expand`) and as inlined code for the native executors. Error bounds are stated at each function and
//! held by the tests here.

pub mod algebra;
mod double;
mod single;
mod trig;
mod wide;

use algebra::Algebra;
pub use wide::expand_wide;

use crate::prim::Prim;

/// The expansion of `prim` on float32; `y` is ignored by the unary ones. `None` if `prim` is no transcendental.
#[inline(always)]
pub fn expand_with<A: Algebra>(a: &mut A, prim: Prim, x: A::F, y: A::F) -> Option<A::F> {
    Some(match prim {
        Prim::Exp => single::exp(a, x),
        Prim::Exp2 => double::exp2(a, x),
        Prim::Expm1 => double::expm1(a, x),
        Prim::Log => single::log(a, x),
        Prim::Log2 => double::log_scaled(a, x, std::f64::consts::LOG2_E),
        Prim::Log10 => double::log_scaled(a, x, std::f64::consts::LOG10_E),
        Prim::Log1p => double::log1p(a, x),
        Prim::Sigmoid => single::sigmoid(a, x),
        Prim::Tanh => single::tanh(a, x),
        Prim::Erf => single::erf(a, x),
        Prim::Sin => trig::sin(a, x),
        Prim::Cos => trig::cos(a, x),
        Prim::Tan => trig::tan(a, x),
        Prim::Asin => trig::asin(a, x),
        Prim::Acos => trig::acos(a, x),
        Prim::Atan => trig::atan(a, x),
        Prim::Sinh => double::sinh(a, x),
        Prim::Cosh => double::cosh(a, x),
        Prim::Asinh => double::asinh(a, x),
        Prim::Acosh => double::acosh(a, x),
        Prim::Atanh => double::atanh(a, x),
        Prim::Atan2 => trig::atan2(a, x, y),
        Prim::Hypot => double::hypot(a, x, y),
        Prim::Pow => double::pow(a, x, y),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::algebra::Native;
    use super::*;

    fn native(prim: Prim, x: f32, y: f32) -> f32 {
        expand_with(&mut Native, prim, x, y).unwrap()
    }

    /// The distance of `got` from the exact value, in units of float32's last place at that value.
    fn ulps(got: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        if got.is_nan() || rounded.is_nan() {
            return if got.is_nan() && rounded.is_nan() { 0.0 } else { f64::INFINITY };
        }
        if got == rounded {
            // Equal zeros must agree in sign as well.
            return if got == 0.0 && got.is_sign_negative() != rounded.is_sign_negative() {
                1e9
            } else {
                0.0
            };
        }
        if rounded.is_infinite() || got.is_infinite() {
            let limit = f32::MAX as f64;
            return if exact.abs() > limit { (exact.abs() - limit) / 2f64.powi(104) } else { f64::INFINITY };
        }
        let exponent = exact.abs().log2().floor().max(-126.0);
        (got as f64 - exact).abs() / 2f64.powf(exponent - 23.0)
    }

    /// Every exponent and sign with many mantissas, the special values, and a dense sweep where the work is done.
    fn samples() -> impl Iterator<Item = f32> {
        let spread = (0..=u32::MAX).step_by(2503).map(f32::from_bits);
        let dense = (-400_000..400_000).map(|i| i as f32 * 2.5e-4 + 1.1e-5);
        let special = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN];
        let around_one =
            (0..20_000).flat_map(|i| [1.0 + i as f32 * f32::EPSILON, 1.0 - i as f32 * f32::EPSILON]);
        spread.chain(dense).chain(special).chain(around_one)
    }

    fn worst(prim: Prim, exact: impl Fn(f64) -> f64) -> (f64, f32) {
        samples()
            .map(|x| (ulps(native(prim, x, x), exact(x as f64)), x))
            .fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
    }

    unsafe extern "C" {
        safe fn erf(x: f64) -> f64;
    }

    /// The bounds that the documentation states.
    #[test]
    fn unary_functions_are_within_their_bounds() {
        let sigmoid = |x: f64| {
            let z = (-x.abs()).exp();
            (if x < 0.0 { z } else { 1.0 }) / (1.0 + z)
        };
        type Exact<'a> = &'a dyn Fn(f64) -> f64;
        let table: [(Prim, f64, Exact<'_>); 21] = [
            (Prim::Exp, 1.0, &f64::exp),
            (Prim::Exp2, 0.51, &f64::exp2),
            (Prim::Expm1, 0.51, &f64::exp_m1),
            (Prim::Log, 1.0, &f64::ln),
            (Prim::Log2, 0.51, &f64::log2),
            (Prim::Log10, 0.51, &f64::log10),
            (Prim::Log1p, 0.51, &f64::ln_1p),
            (Prim::Sigmoid, 3.0, &sigmoid),
            (Prim::Tanh, 1.5, &f64::tanh),
            (Prim::Erf, 1.5, &|x| erf(x)),
            (Prim::Sin, 2.0, &f64::sin),
            (Prim::Cos, 2.0, &f64::cos),
            (Prim::Tan, 1.0, &f64::tan),
            (Prim::Asin, 0.51, &f64::asin),
            (Prim::Acos, 0.51, &f64::acos),
            (Prim::Atan, 0.51, &f64::atan),
            (Prim::Sinh, 0.51, &f64::sinh),
            (Prim::Cosh, 0.51, &f64::cosh),
            (Prim::Asinh, 0.51, &f64::asinh),
            (Prim::Acosh, 0.51, &f64::acosh),
            (Prim::Atanh, 0.51, &f64::atanh),
        ];
        let failures: Vec<String> = table
            .iter()
            .filter_map(|&(prim, bound, exact)| {
                let (error, x) = worst(prim, exact);
                (error > bound).then(|| format!("{prim}({x:e}): {error} ulp, bound {bound}"))
            })
            .collect();
        assert!(failures.is_empty(), "{failures:#?}");
    }

    #[test]
    fn binary_functions_are_within_their_bounds_and_have_ieee_specials() {
        let inf = f32::INFINITY;
        let special = [
            0.0,
            -0.0,
            0.5,
            -0.5,
            1.0,
            -1.0,
            2.0,
            -2.0,
            3.0,
            -3.0,
            2.5,
            1e-40,
            -1e-40,
            1e30,
            -1e30,
            16_777_216.0,
            16_777_217.0,
            inf,
            -inf,
            f32::NAN,
            f32::MAX,
            f32::MIN_POSITIVE,
        ];
        let spread: Vec<f32> = (0..=u32::MAX).step_by(9_000_011).map(f32::from_bits).collect();
        let near: Vec<f32> = (1..400).map(|i| i as f32 * 0.0617).collect();
        let values: Vec<f32> = special.into_iter().chain(spread).chain(near).collect();
        type Exact = fn(f64, f64) -> f64;
        let table: [(Prim, f64, Exact); 3] =
            [(Prim::Pow, 1.0, f64::powf), (Prim::Atan2, 0.51, f64::atan2), (Prim::Hypot, 0.51, f64::hypot)];
        for (prim, bound, exact) in table {
            for &x in &values {
                for &y in &values {
                    let (got, want) = (native(prim, x, y), exact(x as f64, y as f64));
                    assert!(ulps(got, want) <= bound, "{prim}({x:e}, {y:e}) = {got:e}, exact {want:e}");
                }
            }
        }
    }

    #[test]
    fn instructions_and_native_code_give_the_same_bits() {
        use crate::eval::eval;
        use crate::expr::{ArgType, ScalarExpr};
        use tp_tensor::DType;
        for &prim in Prim::ALL.iter().filter(|p| p.is_transcendental()) {
            let params = &["x", "y"][..prim.arity()];
            let expr = ScalarExpr::parse(&format!("{prim}({})", params.join(", ")), params).unwrap();
            let types = vec![ArgType::Tensor(DType::F32); prim.arity()];
            let program = expr.program(&types).unwrap().expand();
            assert!(program.is_closed(), "{prim}");
            program.verify().unwrap();
            for (i, x) in samples().step_by(9973).enumerate() {
                let y = (i as f32 - 100.0) * 0.37;
                let args = [x.to_bits() as u64, y.to_bits() as u64];
                let got = f32::from_bits(eval(&program, &args[..prim.arity()]).unwrap()[0] as u32);
                let want = native(prim, x, y);
                assert!(
                    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                    "{prim}({x:e}, {y:e})"
                );
            }
        }
    }
}
