//! `Algebra`: the primitives that the float32 transcendentals are written over, so that one text of each function
//! serves two readers. `Native` computes it on Rust scalars (and, inlined in a loop, on vectors); the program builder
//! records it as instructions. Both therefore give the same bits.

/// Operations by operand: bare names on float32 (`F`), `i*` on int32 (`I`), `d*` on float64 (`D`), `l*` on int64 (`L`).
pub trait Algebra {
    type F: Copy;
    type D: Copy;
    type I: Copy;
    type L: Copy;
    type B: Copy;

    fn f32(&mut self, value: f32) -> Self::F;
    fn f64(&mut self, value: f64) -> Self::D;
    fn i32(&mut self, value: i32) -> Self::I;
    fn i64(&mut self, value: i64) -> Self::L;

    fn add(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn div(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn fma(&mut self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn neg(&mut self, a: Self::F) -> Self::F;
    fn abs(&mut self, a: Self::F) -> Self::F;
    fn floor(&mut self, a: Self::F) -> Self::F;
    fn lt(&mut self, a: Self::F, b: Self::F) -> Self::B;
    fn eq(&mut self, a: Self::F, b: Self::F) -> Self::B;
    fn select(&mut self, c: Self::B, a: Self::F, b: Self::F) -> Self::F;

    fn iadd(&mut self, a: Self::I, b: Self::I) -> Self::I;
    fn isub(&mut self, a: Self::I, b: Self::I) -> Self::I;
    fn iand(&mut self, a: Self::I, b: Self::I) -> Self::I;
    fn ior(&mut self, a: Self::I, b: Self::I) -> Self::I;
    fn ishl(&mut self, a: Self::I, count: Self::I) -> Self::I;
    fn ishr(&mut self, a: Self::I, count: Self::I) -> Self::I;

    fn dadd(&mut self, a: Self::D, b: Self::D) -> Self::D;
    fn dsub(&mut self, a: Self::D, b: Self::D) -> Self::D;
    fn dmul(&mut self, a: Self::D, b: Self::D) -> Self::D;
    fn ddiv(&mut self, a: Self::D, b: Self::D) -> Self::D;
    fn dfma(&mut self, a: Self::D, b: Self::D, c: Self::D) -> Self::D;
    fn dneg(&mut self, a: Self::D) -> Self::D;
    fn dabs(&mut self, a: Self::D) -> Self::D;
    fn dsqrt(&mut self, a: Self::D) -> Self::D;
    fn drint(&mut self, a: Self::D) -> Self::D;
    fn dlt(&mut self, a: Self::D, b: Self::D) -> Self::B;
    fn deq(&mut self, a: Self::D, b: Self::D) -> Self::B;
    fn dselect(&mut self, c: Self::B, a: Self::D, b: Self::D) -> Self::D;

    fn ladd(&mut self, a: Self::L, b: Self::L) -> Self::L;
    fn lsub(&mut self, a: Self::L, b: Self::L) -> Self::L;
    fn lor(&mut self, a: Self::L, b: Self::L) -> Self::L;
    fn lshl(&mut self, a: Self::L, count: Self::L) -> Self::L;
    fn lshr(&mut self, a: Self::L, count: Self::L) -> Self::L;

    fn and(&mut self, a: Self::B, b: Self::B) -> Self::B;
    fn or(&mut self, a: Self::B, b: Self::B) -> Self::B;
    fn not(&mut self, a: Self::B) -> Self::B;

    fn bits(&mut self, a: Self::F) -> Self::I;
    fn float_of(&mut self, a: Self::I) -> Self::F;
    fn dbits(&mut self, a: Self::D) -> Self::L;
    fn double_of(&mut self, a: Self::L) -> Self::D;
    fn widen(&mut self, a: Self::F) -> Self::D;
    fn narrow(&mut self, a: Self::D) -> Self::F;
    fn int_to_float(&mut self, a: Self::I) -> Self::F;
}

/// The algebra of Rust scalars.
pub struct Native;

macro_rules! native {
    ($($name:ident($($arg:ident: $t:ty),*) -> $r:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(&mut self, $($arg: $t),*) -> $r {
            $body
        }
    )*};
}

impl Algebra for Native {
    type F = f32;
    type D = f64;
    type I = i32;
    type L = i64;
    type B = bool;

    native! {
        f32(value: f32) -> f32 = value;
        f64(value: f64) -> f64 = value;
        i32(value: i32) -> i32 = value;
        i64(value: i64) -> i64 = value;

        add(a: f32, b: f32) -> f32 = a + b;
        sub(a: f32, b: f32) -> f32 = a - b;
        mul(a: f32, b: f32) -> f32 = a * b;
        div(a: f32, b: f32) -> f32 = a / b;
        fma(a: f32, b: f32, c: f32) -> f32 = a.mul_add(b, c);
        neg(a: f32) -> f32 = -a;
        abs(a: f32) -> f32 = a.abs();
        floor(a: f32) -> f32 = a.floor();
        lt(a: f32, b: f32) -> bool = a < b;
        eq(a: f32, b: f32) -> bool = a == b;
        select(c: bool, a: f32, b: f32) -> f32 = if c { a } else { b };

        iadd(a: i32, b: i32) -> i32 = a.wrapping_add(b);
        isub(a: i32, b: i32) -> i32 = a.wrapping_sub(b);
        iand(a: i32, b: i32) -> i32 = a & b;
        ior(a: i32, b: i32) -> i32 = a | b;
        ishl(a: i32, count: i32) -> i32 = a.wrapping_shl(count as u32);
        ishr(a: i32, count: i32) -> i32 = a.wrapping_shr(count as u32);

        dadd(a: f64, b: f64) -> f64 = a + b;
        dsub(a: f64, b: f64) -> f64 = a - b;
        dmul(a: f64, b: f64) -> f64 = a * b;
        ddiv(a: f64, b: f64) -> f64 = a / b;
        dfma(a: f64, b: f64, c: f64) -> f64 = a.mul_add(b, c);
        dneg(a: f64) -> f64 = -a;
        dabs(a: f64) -> f64 = a.abs();
        dsqrt(a: f64) -> f64 = a.sqrt();
        drint(a: f64) -> f64 = a.round_ties_even();
        dlt(a: f64, b: f64) -> bool = a < b;
        deq(a: f64, b: f64) -> bool = a == b;
        dselect(c: bool, a: f64, b: f64) -> f64 = if c { a } else { b };

        ladd(a: i64, b: i64) -> i64 = a.wrapping_add(b);
        lsub(a: i64, b: i64) -> i64 = a.wrapping_sub(b);
        lor(a: i64, b: i64) -> i64 = a | b;
        lshl(a: i64, count: i64) -> i64 = a.wrapping_shl(count as u32);
        lshr(a: i64, count: i64) -> i64 = a.wrapping_shr(count as u32);

        and(a: bool, b: bool) -> bool = a & b;
        or(a: bool, b: bool) -> bool = a | b;
        not(a: bool) -> bool = !a;

        bits(a: f32) -> i32 = a.to_bits() as i32;
        float_of(a: i32) -> f32 = f32::from_bits(a as u32);
        dbits(a: f64) -> i64 = a.to_bits() as i64;
        double_of(a: i64) -> f64 = f64::from_bits(a as u64);
        widen(a: f32) -> f64 = a as f64;
        narrow(a: f64) -> f32 = a as f32;
        int_to_float(a: i32) -> f32 = a as f32;
    }
}
