//! The tile executor against the reference interpreter: bit for bit, on every instruction set of the machine, over
//! random programs, dtypes, sizes, strides and alignments.

use tp_expr::eval::eval;
use tp_expr::{ExprError, Isa, Operand, Prim, Program, ProgramBuilder, ScalarExpr, Strided, TileKernel};
use tp_tensor::{DType, Scalar};

/// xorshift64*: reproducible, and enough for choosing test cases.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// A value of `dtype`: special, ordinary, or any bits at all.
    fn bits(&mut self, dtype: DType) -> u64 {
        let special =
            [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40, 300.0];
        match self.below(4) {
            0 => Scalar::Float(self.pick(&special)).to_bits(dtype),
            1 => Scalar::Int(self.below(7) as i64 - 3).to_bits(dtype),
            2 => Scalar::Float((self.below(20_000) as f64 - 10_000.0) / 777.0).to_bits(dtype),
            _ => Scalar::from_bits(self.next(), dtype).to_bits(dtype),
        }
    }
}

const UNARY: &[&str] = &[
    "-x",
    "abs(x)",
    "~x",
    "sqrt(x)",
    "floor(x)",
    "ceil(x)",
    "trunc(x)",
    "rint(x)",
    "exp(x)",
    "log(x)",
    "tanh(x)",
    "sigmoid(x)",
    "erf(x)",
    "sin(x)",
    "cos(x)",
    "log1p(x)",
    "expm1(x)",
    "atan(x)",
    "relu(x)",
    "sign(x)",
    "isnan(x)",
    "isfinite(x)",
    "signbit(x)",
    "square(x)",
    "rsqrt(x)",
    "clamp(x, -1, 2)",
    "x * 0.5 + 1",
    "x + x * x",
    "x // 3",
    "x % -3",
    "x << 1",
    "x >> 2",
    "cast_bool(x)",
    "-abs(cast_float(x))",
    "cast(x, uint8)",
    "cast(x, int8)",
    "cast(x, int16)",
    "cast(x, int32)",
    "cast(x, int64)",
    "cast(x, float16)",
    "cast(x, bfloat16)",
    "cast(x, float32)",
    "cast(x, float64)",
    "0.5 * x * (1 + tanh(0.79788456 * (x + 0.044715 * x * x * x)))",
];
const BINARY: &[&str] = &[
    "x + y",
    "x - y",
    "x * y",
    "x / y",
    "x // y",
    "x % y",
    "max(x, y)",
    "min(x, y)",
    "x == y",
    "x != y",
    "x < y",
    "x <= y",
    "x > y",
    "x >= y",
    "x & y",
    "x | y",
    "x ^ y",
    "x << y",
    "x >> y",
    "x ** y",
    "atan2(x, y)",
    "hypot(x, y)",
    "copysign(x, y)",
    "fmod(x, y)",
    "select(x > y, x, 0 * x)",
    "fma(x, y, x)",
    "fma(x, 2, y)",
    "select(x < 0, y, 1)",
];

fn random_program(rng: &mut Rng) -> Program {
    let mut b = ProgramBuilder::new();
    let mut values: Vec<u32> = (0..1 + rng.below(4)).map(|_| b.input(rng.pick(&DType::ALL))).collect();
    for _ in 0..1 + rng.below(12) {
        let (x, y) = (rng.pick(&values), rng.pick(&values));
        let (text, params, args) = if rng.below(2) == 0 {
            (rng.pick(UNARY), &["x"][..], vec![Operand::Value(x)])
        } else if rng.below(4) == 0 {
            let scalar =
                rng.pick(&[Scalar::Int(2), Scalar::Float(-1.5), Scalar::Bool(true), Scalar::Int(-7)]);
            (rng.pick(BINARY), &["x", "y"][..], vec![Operand::Value(x), Operand::Scalar(scalar)])
        } else {
            (rng.pick(BINARY), &["x", "y"][..], vec![Operand::Value(x), Operand::Value(y)])
        };
        match b.apply(&ScalarExpr::parse(text, params).unwrap(), &args) {
            Ok(id) => values.push(id),
            // An operation or a number that these dtypes do not have; the next one may.
            Err(ExprError::Type { .. } | ExprError::Number(_)) => {}
            Err(other) => panic!("{text}: {other}"),
        }
    }
    let mut outputs = vec![*values.last().unwrap()];
    for _ in 0..rng.below(3) {
        outputs.push(rng.pick(&values));
    }
    b.finish(&outputs).unwrap()
}

/// Memory of an operand over an iteration shape, with its bytes at an odd address in one case of three.
struct Memory {
    bytes: Vec<u8>,
    base: usize,
    strides: Vec<isize>,
    width: usize,
}

impl Memory {
    fn new(rng: &mut Rng, shape: &[usize], dtype: DType, kind: usize) -> Memory {
        let width = dtype.itemsize();
        let mut strides = vec![0_isize; shape.len()];
        // Contiguous, every second element, reversed, transposed; a broadcast has stride 0 everywhere.
        let gap = if kind == 1 { 2 } else { 1 };
        let mut extent = gap;
        let order: Vec<usize> =
            if kind == 3 { (0..shape.len()).collect() } else { (0..shape.len()).rev().collect() };
        if kind != 4 {
            for dim in order {
                strides[dim] = extent;
                extent *= shape[dim].max(1) as isize;
            }
        }
        let mut base = 0;
        if kind == 2 {
            for (stride, &size) in strides.iter_mut().zip(shape) {
                base += size.saturating_sub(1) * *stride as usize;
                *stride = -*stride;
            }
        }
        let skew = rng.pick(&[0, 0, 1]);
        let count = extent as usize + 1;
        let mut bytes = vec![0; count * width + skew];
        for i in 0..count {
            bytes[skew + i * width..][..width].copy_from_slice(&rng.bits(dtype).to_le_bytes()[..width]);
        }
        Memory { bytes, base: skew + base * width, strides, width }
    }

    fn offset(&self, index: &[usize]) -> usize {
        let steps: isize = index.iter().zip(&self.strides).map(|(&i, &s)| i as isize * s).sum();
        (self.base as isize + steps * self.width as isize) as usize
    }

    fn get(&self, index: &[usize]) -> u64 {
        let mut word = [0; 8];
        word[..self.width].copy_from_slice(&self.bytes[self.offset(index)..][..self.width]);
        u64::from_le_bytes(word)
    }

    fn strided(&mut self) -> Strided<'_> {
        Strided { ptr: unsafe { self.bytes.as_mut_ptr().add(self.base) }, strides: &self.strides }
    }
}

fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut out = vec![vec![]];
    for &size in shape {
        out = out.into_iter().flat_map(|i| (0..size).map(move |k| [&i[..], &[k]].concat())).collect();
    }
    out
}

fn same(dtype: DType, a: u64, b: u64) -> bool {
    let nan = |bits| matches!(Scalar::from_bits(bits, dtype), Scalar::Float(v) if v.is_nan());
    let truth = |bits: u64| dtype.is_bool() && bits != 0;
    a == b || (nan(a) && nan(b)) || (truth(a) && truth(b))
}

fn isas() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
}

/// Runs `program` on every ISA over fresh outputs and compares each element with `eval`.
fn check(rng: &mut Rng, program: &Program, shape: &[usize], kinds: &[usize]) {
    let mut inputs: Vec<Memory> = program
        .inputs()
        .iter()
        .map(|&dtype| {
            let kind = rng.pick(kinds);
            Memory::new(rng, shape, dtype, kind)
        })
        .collect();
    let all = indices(shape);
    let expected: Result<Vec<_>, ExprError> = all
        .iter()
        .map(|index| eval(program, &inputs.iter().map(|m| m.get(index)).collect::<Vec<_>>()))
        .collect();
    let dtypes: Vec<DType> = program.output_dtypes().collect();
    for isa in isas() {
        let kernel = TileKernel::compile_for(program, isa).unwrap();
        assert_eq!(kernel.isa(), isa);
        let mut outputs: Vec<Memory> = dtypes
            .iter()
            .map(|&dtype| {
                let kind = rng.pick(&[0, kinds[0], 1, 2, 3]);
                Memory::new(rng, shape, dtype, kind)
            })
            .collect();
        let ins: Vec<Strided<'_>> = inputs.iter_mut().map(Memory::strided).collect();
        let outs: Vec<Strided<'_>> = outputs.iter_mut().map(Memory::strided).collect();
        let result = unsafe { kernel.run(shape, &ins, &outs) };
        match &expected {
            Err(error) => assert_eq!(result.as_ref(), Err(error), "{program}"),
            Ok(expected) => {
                result.unwrap();
                for (index, want) in all.iter().zip(expected) {
                    for ((memory, &want), &dtype) in outputs.iter().zip(want).zip(&dtypes) {
                        let got = memory.get(index);
                        assert!(same(dtype, got, want), "{isa:?} {index:?} {got:#x} {want:#x}\n{program}");
                    }
                }
            }
        }
    }
}

#[test]
fn random_programs_contiguous() {
    let mut rng = Rng(0x1234_5678_9abc_def1);
    for round in 0..700 {
        let program = random_program(&mut rng);
        let size = [0, 1, 3, 7, 8, 31, 64, 65, 257][round % 9];
        check(&mut rng, &program, &[size], &[0, 0, 0, 4]);
    }
}

#[test]
fn random_programs_strided() {
    let mut rng = Rng(0x0dd0_5eed_1bad_beef);
    for _ in 0..500 {
        let program = random_program(&mut rng);
        let rank = rng.below(4);
        let shape: Vec<usize> = (0..rank).map(|_| rng.pick(&[1, 2, 5, 9])).collect();
        check(&mut rng, &program, &shape, &[0, 1, 2, 3, 4]);
    }
}

#[test]
fn sizes_around_a_tile() {
    let mut rng = Rng(0xfeed_face_cafe_f00d);
    for size in [1023, 1024, 1025, 2048, 2049, 4100] {
        for _ in 0..4 {
            let program = random_program(&mut rng);
            check(&mut rng, &program, &[size], &[0, 1, 4]);
            check(&mut rng, &program, &[3, size / 3], &[0, 3]);
            check(&mut rng, &program, &[2, 33, size / 60], &[0, 1, 2, 3, 4]);
        }
    }
}

#[test]
fn every_primitive_on_every_dtype_it_has() {
    let mut rng = Rng(0x5ca1_ab1e_0000_0001);
    let mut pairs = 0;
    for &prim in Prim::ALL {
        for dtype in DType::ALL {
            let params = &["x: any", "y: any", "z: any"][..prim.arity().max(1)];
            let names = ["x", "y", "z"][..prim.arity().max(1)].join(", ");
            let Ok(expr) = ScalarExpr::parse(&format!("{prim}({names})"), params) else { continue };
            let types = vec![tp_expr::ArgType::Tensor(dtype); params.len()];
            let Ok(program) = expr.program(&types) else { continue };
            pairs += 1;
            check(&mut rng, &program, &[101], &[0]);
            check(&mut rng, &program, &[19], &[0, 4]);
            check(&mut rng, &program.expand(), &[37], &[0]);
        }
    }
    assert!(pairs > 300, "{pairs}");
}

#[test]
fn every_cast() {
    let mut rng = Rng(0x00c0_ffee_0000_0007);
    for from in DType::ALL {
        for to in DType::ALL {
            let mut b = ProgramBuilder::new();
            let x = b.input(from);
            let y = b.cast(x, to).unwrap();
            let program = b.finish(&[y]).unwrap();
            check(&mut rng, &program, &[1500], &[0]);
        }
    }
}

#[test]
fn an_output_may_be_an_inputs_memory() {
    let texts = ["x + y", "0.5 * x * (1 + tanh(x + y * x))", "x", "y - select(x > y, x, y)"];
    for text in texts {
        let expr = ScalarExpr::parse(text, &["x", "y"]).unwrap();
        let types = [tp_expr::ArgType::Tensor(DType::F32); 2];
        let mut b = ProgramBuilder::new();
        let (x, y) = (b.input(DType::F32), b.input(DType::F32));
        let out = b.apply(&expr, &[Operand::Value(x), Operand::Value(y)]).unwrap();
        let sum = ScalarExpr::parse("x + y", &["x", "y"]).unwrap();
        // A second output that reads both inputs again, after the first was written over one of them.
        let again = b.apply(&sum, &[Operand::Value(x), Operand::Value(y)]).unwrap();
        let both = TileKernel::compile(&b.finish(&[out, again]).unwrap()).unwrap();
        let single = TileKernel::compile(&expr.program(&types).unwrap()).unwrap();
        for n in [1, 8, 63, 1000, 5000] {
            let a: Vec<f32> = (0..n).map(|i| i as f32 * 0.37 - 40.0).collect();
            let c: Vec<f32> = (0..n).map(|i| 17.0 - i as f32 * 0.11).collect();
            let mut want = [vec![0_f32; n], vec![0_f32; n]];
            let inputs = [a.as_ptr() as *const u8, c.as_ptr() as *const u8];
            let outs = [want[0].as_mut_ptr() as *mut u8, want[1].as_mut_ptr() as *mut u8];
            unsafe { both.run_flat(n, &inputs, 0, &outs).unwrap() };

            let (mut in_place, mut other) = (a.clone(), vec![0_f32; n]);
            let ptr = in_place.as_mut_ptr() as *mut u8;
            let inputs = [ptr as *const u8, c.as_ptr() as *const u8];
            unsafe { both.run_flat(n, &inputs, 0, &[ptr, other.as_mut_ptr() as *mut u8]).unwrap() };
            assert_eq!((&in_place, &other), (&want[0], &want[1]), "{text} {n}");

            let mut in_place = a.clone();
            let ptr = in_place.as_mut_ptr() as *mut u8;
            unsafe { single.run_flat(n, &[ptr as *const u8, inputs[1]], 0, &[ptr]).unwrap() };
            assert_eq!(in_place, want[0], "{text} {n}");

            // Every second element, in place.
            let mut spaced: Vec<f32> = a.iter().flat_map(|&v| [v, -1.0]).collect();
            let x = Strided { ptr: spaced.as_mut_ptr() as *mut u8, strides: &[2] };
            let y = Strided { ptr: c.as_ptr() as *mut u8, strides: &[1] };
            unsafe { single.run(&[n], &[x, y], &[x]).unwrap() };
            let got: Vec<f32> = spaced.iter().step_by(2).copied().collect();
            assert_eq!(got, want[0], "{text} {n}");
            assert!(spaced.iter().skip(1).step_by(2).all(|&v| v == -1.0));
        }
    }
}

#[test]
fn a_scalar_input_may_lie_inside_the_output() {
    let expr = ScalarExpr::parse("x * y + y", &["x", "y"]).unwrap();
    let kernel =
        TileKernel::compile(&expr.program(&[tp_expr::ArgType::Tensor(DType::F32); 2]).unwrap()).unwrap();
    for n in [4, 5000] {
        let mut x: Vec<f32> = (0..n).map(|i| i as f32 + 2.0).collect();
        let want: Vec<f32> = x.iter().map(|v| v * 2.0 + 2.0).collect();
        let ptr = x.as_mut_ptr() as *mut u8;
        unsafe { kernel.run_flat(n, &[ptr as *const u8, ptr as *const u8], 2, &[ptr]).unwrap() };
        assert_eq!(x, want);
    }
}

#[test]
fn large_arrays_are_split_over_threads_with_the_same_result() {
    let expr = ScalarExpr::parse("x * y - 1", &["x", "y"]).unwrap();
    let kernel =
        TileKernel::compile(&expr.program(&[tp_expr::ArgType::Tensor(DType::I64); 2]).unwrap()).unwrap();
    let n = 1_000_003;
    let x: Vec<i64> = (0..n as i64).collect();
    let mut out = vec![0_i64; n];
    let inputs = [x.as_ptr() as *const u8; 2];
    unsafe { kernel.run_flat(n, &inputs, 0, &[out.as_mut_ptr() as *mut u8]).unwrap() };
    assert!(out.iter().enumerate().all(|(i, &v)| v == (i * i) as i64 - 1));

    let divide = ScalarExpr::parse("100 // x", &["x"]).unwrap();
    let kernel =
        TileKernel::compile(&divide.program(&[tp_expr::ArgType::Tensor(DType::I64)]).unwrap()).unwrap();
    let result = unsafe { kernel.run_flat(n, &inputs[..1], 0, &[out.as_mut_ptr() as *mut u8]) };
    assert_eq!(result, Err(ExprError::DivisionByZero));
    assert_eq!(kernel.inputs(), [DType::I64]);
    assert_eq!(kernel.outputs(), [DType::I64]);
}

#[test]
fn constants_and_identities_fill_and_copy() {
    let constant = ScalarExpr::parse("2.5", &[]).unwrap().program(&[]).unwrap();
    let kernel = TileKernel::compile(&constant).unwrap();
    for n in [1, 64, 5000] {
        let mut out = vec![0_f32; n];
        unsafe { kernel.run_flat(n, &[], 0, &[out.as_mut_ptr() as *mut u8]).unwrap() };
        assert_eq!(out, vec![2.5; n]);
    }
    let mut b = ProgramBuilder::new();
    let (_, y) = (b.input(DType::F32), b.input(DType::I16));
    let one = b.constant(DType::Bool, 1);
    let kernel = TileKernel::compile(&b.finish(&[y, one, y]).unwrap()).unwrap();
    for n in [3, 3000] {
        let y: Vec<i16> = (0..n as i16).collect();
        let (mut first, mut flags, mut second) = (vec![0_i16; n], vec![0_u8; n], vec![0_i16; n]);
        let outputs = [first.as_mut_ptr() as *mut u8, flags.as_mut_ptr(), second.as_mut_ptr() as *mut u8];
        let unused = [0_f32; 1];
        let inputs = [unused.as_ptr() as *const u8, y.as_ptr() as *const u8];
        unsafe { kernel.run_flat(n, &inputs, 1, &outputs).unwrap() };
        assert_eq!((&first, &second, flags), (&y, &y, vec![1; n]));
    }
}

#[test]
fn wrong_calls_are_errors() {
    let expr = ScalarExpr::parse("x + 1", &["x"]).unwrap();
    let kernel =
        TileKernel::compile(&expr.program(&[tp_expr::ArgType::Tensor(DType::F32)]).unwrap()).unwrap();
    let mut x = [1_f32; 4];
    let ptr = x.as_mut_ptr() as *mut u8;
    let flat = unsafe { kernel.run_flat(4, &[], 0, &[ptr]) };
    assert_eq!(flat, Err(ExprError::Arity { what: "kernel".into(), want: 2, got: 1 }));
    let short = Strided { ptr, strides: &[] };
    assert!(matches!(unsafe { kernel.run(&[4], &[short], &[short]) }, Err(ExprError::Invalid(_))));
    assert_eq!(x, [1.0; 4]);
}
