//! Writing in place: values, versions, overlap, and what is refused.

mod common;

use common::*;
use tp_dispatch::{Arg, ErrorKind};
use tp_tensor::storage::StorageOwner;
use tp_tensor::{DType, Device, Layout, Tensor};

#[test]
fn writes_bumps_and_returns_the_argument() {
    let x = f32s(&[3], &[1., 2., 3.]);
    let out = run("add_", &[t(&x), t(&f32s(&[], &[10.]))]);
    assert!(out.same(&x));
    assert_eq!((values(&x), x.storage().version()), (vec![11., 12., 13.], 1));
    run("mul_.Scalar", &[t(&x), float(2.0)]);
    run("sub_", &[t(&x), t(&x)]);
    assert_eq!((values(&x), x.storage().version()), (vec![0., 0., 0.], 3));
    run("fill_", &[t(&x), float(7.0)]);
    run("div_", &[t(&x), t(&i64s(&[3], &[1., 2., 4.]))]);
    assert_eq!(values(&x), [7., 3.5, 1.75]);
    run("zero_", &[t(&x)]);
    assert_eq!(values(&x), [0.; 3]);
    let low = tensor(&[2], DType::BF16, &[1., 2.]);
    run("add_", &[t(&low), t(&f32s(&[2], &[0.5, 0.25]))]);
    assert_eq!((low.dtype(), values(&low)), (DType::BF16, vec![1.5, 2.25]));
    let bytes = tensor(&[2], DType::U8, &[250., 1.]);
    run("add_.Scalar", &[t(&bytes), int(10)]);
    assert_eq!(values(&bytes), [4., 11.]);
}

#[test]
fn views_see_the_write() {
    let x = iota(&[2, 3], DType::F32);
    let column = view(&x, Ok(x.layout().select(1, 1).unwrap()));
    run("mul_.Scalar", &[t(&column), int(10)]);
    assert_eq!((values(&x), x.storage().version()), (vec![0., 10., 2., 3., 40., 5.], 1));
    let turned = view(&x, Ok(x.layout().permute(&[1, 0]).unwrap()));
    run("copy_", &[t(&turned), t(&iota(&[3, 2], DType::I32))]);
    assert_eq!(values(&x), [0., 2., 4., 1., 3., 5.]);
    run("copy_", &[t(&x), t(&f32s(&[3], &[7., 8., 9.]))]);
    assert_eq!(values(&x), [7., 8., 9., 7., 8., 9.]);
}

#[test]
fn overlapping_source_and_destination() {
    let part =
        |x: &Tensor, from: i64, to: i64| view(x, Ok(x.layout().slice(0, Some(from), Some(to), 1).unwrap()));
    let x = iota(&[6], DType::F32);
    run("copy_", &[t(&part(&x, 1, 6)), t(&part(&x, 0, 5))]);
    assert_eq!(values(&x), [0., 0., 1., 2., 3., 4.]);
    let x = iota(&[6], DType::F32);
    run("add_", &[t(&part(&x, 1, 6)), t(&part(&x, 0, 5))]);
    assert_eq!(values(&x), [0., 1., 3., 5., 7., 9.]);
    let m = iota(&[3, 3], DType::I64);
    let turned = view(&m, Ok(m.layout().permute(&[1, 0]).unwrap()));
    run("copy_", &[t(&m), t(&turned)]);
    assert_eq!(values(&m), [0., 3., 6., 1., 4., 7., 2., 5., 8.]);
    run("add_", &[t(&m), t(&view(&m, Ok(m.layout().permute(&[1, 0]).unwrap())))]);
    assert_eq!(values(&m), [0., 4., 8., 4., 8., 12., 8., 12., 16.]);
}

#[test]
fn refusals() {
    let x = f32s(&[3], &[1., 2., 3.]);
    let wide = view(&x, Ok(x.layout().expand(&[2, 3]).unwrap()));
    let refused = |name: &str, args: &[Arg<'_>]| {
        let e = call(name, args).unwrap_err();
        assert_eq!(e.op(), Some(format!("tp::{name}").as_str()));
        e.kind()
    };
    assert_eq!(refused("add_.Scalar", &[t(&wide), int(1)]), ErrorKind::Value);
    assert_eq!(refused("copy_", &[t(&wide), t(&x)]), ErrorKind::Value);
    assert_eq!(refused("add_", &[t(&x), t(&wide)]), ErrorKind::Shape);
    assert_eq!(refused("copy_", &[t(&x), t(&wide)]), ErrorKind::Shape);
    let i = i64s(&[3], &[1., 2., 3.]);
    assert_eq!(refused("add_", &[t(&i), t(&x)]), ErrorKind::DType);
    assert_eq!(refused("div_.Scalar", &[t(&i), int(2)]), ErrorKind::DType);
    assert_eq!(refused("fill_", &[t(&i), float(1e300)]), ErrorKind::Value);
    assert_eq!(refused("floor_divide_.Scalar", &[t(&i), int(0)]), ErrorKind::DivisionByZero);
    assert_eq!((values(&i), x.storage().version(), i.storage().version()), (vec![1., 2., 3.], 0, 0));

    struct Keeps(#[allow(dead_code)] Box<[f32]>);
    impl StorageOwner for Keeps {}
    let mut memory: Box<[f32]> = Box::new([1.0, 2.0]);
    let data = memory.as_mut_ptr().cast::<u8>();
    let layout = Layout::contiguous(&[2]);
    let frozen = unsafe {
        Tensor::from_foreign(data, 8, &layout, DType::F32, Device::CPU, Box::new(Keeps(memory)), true)
    };
    let frozen = frozen.unwrap();
    assert_eq!(refused("zero_", &[t(&frozen)]), ErrorKind::Value);
    assert_eq!(values(&frozen), [1., 2.]);
}

#[test]
fn a_failed_division_leaves_no_trace() {
    let x = i64s(&[2], &[5., 6.]);
    let zero = i64s(&[2], &[1., 0.]);
    let e = call("remainder_", &[t(&x), t(&zero)]).unwrap_err();
    assert_eq!((e.kind(), x.storage().version()), (ErrorKind::DivisionByZero, 0));
    assert_eq!(values(&x), [5., 6.]);
}
