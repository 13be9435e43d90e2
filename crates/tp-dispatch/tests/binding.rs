//! Binding arguments to schemas: whatever is given for whatever schema is bound or refused, and never a panic.

use proptest::collection::vec;
use proptest::prelude::*;
use std::path::Path;
use std::sync::LazyLock;
use tp_dispatch::bind::Params;
use tp_dispatch::{Arg, Schema};
use tp_tensor::{DType, Device, Scalar, Tensor};

static DECLARATIONS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/torch-schemas.txt");
    std::fs::read_to_string(path).unwrap().lines().map(str::to_string).collect()
});

/// One of everything an argument can be; tensors with strides that only an empty or a one-element axis may have.
fn argument(kind: u8, number: i64, tensors: &[Tensor]) -> Arg<'_> {
    match kind % 12 {
        0 => Arg::None,
        1 => Arg::Tensor(&tensors[0]),
        2 => Arg::Tensors(tensors),
        3 => Arg::Scalar(Scalar::Int(number)),
        4 => Arg::Scalar(Scalar::Float(f64::from_bits(number as u64))),
        5 => Arg::Int(number),
        6 => Arg::Bool(number % 2 == 0),
        7 => Arg::Float(f64::from_bits(number as u64)),
        8 => Arg::DType(DType::F32),
        9 => Arg::Device(Device::CPU),
        10 => Arg::Ints(&[i64::MAX, i64::MIN, 1 << 62]),
        _ => Arg::Str(""),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn any_arguments_are_bound_or_refused(
        line in 0usize..10_000,
        given in vec((any::<u8>(), any::<i64>()), 0..12),
        name in "\\PC{0,8}",
        stride in any::<i64>(),
    ) {
        let text = &DECLARATIONS[line % DECLARATIONS.len()];
        let schema = Schema::parse(text).unwrap();
        let Ok(params) = Params::compile(&schema) else { return Ok(()) };
        let tensors = [
            Tensor::fake(&[0, 1 << 62], &[stride, stride], DType::U8, Device::CPU, 1).unwrap(),
            Tensor::fake(&[1], &[stride], DType::F64, Device::CPU, 2).unwrap(),
        ];
        let args: Vec<Arg<'_>> = given.iter().map(|&(kind, n)| argument(kind, n, &tensors)).collect();
        match params.fill("ns::f", &args) {
            Ok(filled) => {
                prop_assert_eq!(filled.len(), params.len());
                prop_assert!(args.len() >= params.required || params.all[args.len()..].iter().all(|p| p.default.is_some()));
            }
            Err(e) => prop_assert!(e.code().starts_with("TP10"), "{}", e.code()),
        }
        let _ = (params.closest(&name), params.index(&name), params.name(given.len()));
    }
}
