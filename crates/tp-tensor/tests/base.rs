//! Views and what they are views of.

use tp_tensor::layout::overlaps;
use tp_tensor::{DType, Device, Layout, Tensor};

fn base() -> Tensor {
    Tensor::empty(&[4], DType::F32, Device::CPU).unwrap()
}

fn view(of: &Tensor) -> Tensor {
    of.view(&Layout { offset: of.offset() + 1, ..Layout::contiguous(&[of.numel() - 1]) }).unwrap()
}

#[test]
fn a_view_of_a_view_knows_the_root() {
    let x = base();
    let (y, apart) = (view(&x), x.detach());
    assert!(y.base().is_none() && apart.base().is_none());
    y.link(&x);
    let z = view(&y);
    z.link(&y);
    assert!(y.base().unwrap().same(&x) && z.base().unwrap().same(&x));
    assert_eq!((x.ref_count(), x.storage().live_headers()), (3, 4));
    drop(y);
    assert_eq!(x.ref_count(), 2);
}

#[test]
fn a_root_lives_as_long_as_its_views() {
    let x = base();
    let y = view(&x);
    y.link(&x);
    let id = x.id();
    drop(x);
    assert_eq!((y.base().unwrap().id(), y.base().unwrap().ref_count()), (id, 1));
    y.unlink();
    assert!(y.base().is_none());
    assert_eq!(y.storage().live_headers(), 1);
}

#[test]
fn only_what_shares_memory_is_linked() {
    let (x, other) = (base(), base());
    let y = view(&x);
    y.link(&other);
    assert!(y.base().is_none());
    x.link(&y);
    assert!(x.base().is_none());
    y.link(&x);
    y.link(&x);
    assert_eq!(x.ref_count(), 2);
    assert!(!y.hand_over_base() && y.handed_base().is_none());
}

#[test]
fn layouts_whose_elements_share_a_place() {
    assert!(overlaps(&[3, 2], &[0, 1]) && overlaps(&[3, 3], &[2, 1]) && overlaps(&[2], &[0]));
    assert!(!overlaps(&[3, 2], &[2, 1]) && !overlaps(&[2, 3], &[1, 2]) && !overlaps(&[1, 0], &[0, 0]));
}
