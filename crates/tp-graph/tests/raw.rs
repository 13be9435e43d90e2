//! Raw kernels: the packed calling convention, both loop patterns, splitting of large ranges, background builds.

mod support;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::*;
use tp_dispatch::{Arg, CodegenMarker, FallbackReason, Result, Rets, Value};
use tp_graph::backend::{Backend, Capability, Lowered, Pending, Region};
use tp_graph::raw::RawKernel;
use tp_graph::region::KernelLayout;
use tp_graph::{Built, CompileOptions, CompiledFunction};
use tp_tensor::{Device, Tensor};

#[repr(C)]
#[derive(Clone, Copy)]
struct Cell {
    type_index: i32,
    pad: u32,
    value: u64,
}

/// What a flat kernel has done; its address is the kernel's handle.
#[derive(Default)]
struct Counts {
    calls: AtomicUsize,
    elements: AtomicUsize,
}

/// `out[i] = 2 * in[i] + 1` over lo..hi.
unsafe extern "C" fn flat(handle: *mut c_void, args: *const Cell, n: i32, _ret: *mut Cell) -> i32 {
    // SAFETY: the caller passes `n` cells.
    let args = unsafe { std::slice::from_raw_parts(args, n as usize) };
    let types: Vec<i32> = args.iter().map(|c| c.type_index).collect();
    if types != [4, 4, 1, 1] || handle.is_null() {
        return 7;
    }
    // SAFETY: the handle is a leaked `Counts`.
    let counts = unsafe { &*handle.cast::<Counts>() };
    counts.calls.fetch_add(1, Ordering::SeqCst);
    let (x, y) = (args[0].value as *const f32, args[1].value as *mut f32);
    for i in args[2].value as usize..args[3].value as usize {
        // SAFETY: in range.
        unsafe { *y.add(i) = *x.add(i) * 2.0 + 1.0 };
    }
    counts.elements.fetch_add((args[3].value - args[2].value) as usize, Ordering::SeqCst);
    0
}

/// The same over two loops with input strides.
unsafe extern "C" fn strided(_: *mut c_void, args: *const Cell, n: i32, _ret: *mut Cell) -> i32 {
    // SAFETY: the caller passes `n` cells.
    let args = unsafe { std::slice::from_raw_parts(args, n as usize) };
    // in, out, lo, hi, size_1, stride_0, stride_1
    if args.len() != 7 || args.iter().any(|c| c.pad != 0) {
        return 9;
    }
    let (x, y) = (args[0].value as *const f32, args[1].value as *mut f32);
    let int = |k: usize| args[k].value as i64 as isize;
    for i in int(2)..int(3) {
        for j in 0..int(4) {
            // SAFETY: in range.
            unsafe { *y.offset(i * int(4) + j) = *x.offset(i * int(5) + j * int(6)) * 2.0 + 1.0 };
        }
    }
    0
}

struct Compiler {
    pending: Option<Arc<Pending>>,
    counts: &'static Counts,
}

fn kernel(layout: KernelLayout, counts: &'static Counts) -> Arc<RawKernel> {
    let address = match layout {
        KernelLayout::Flat { .. } => flat as *const () as usize,
        KernelLayout::Strided { .. } => strided as *const () as usize,
    };
    let marker = CodegenMarker {
        executor: "tvm".into(),
        kernel: "k".into(),
        proof: Some("abc".into()),
        device: Device::CPU,
    };
    let handle = std::ptr::from_ref(counts) as usize;
    // SAFETY: the functions above follow the convention for the one program of these tests.
    Arc::new(unsafe { RawKernel::new(address, handle, layout, Arc::new(marker), Arc::new(())) })
}

impl Backend for Compiler {
    fn name(&self) -> &str {
        "tvm"
    }
    fn probe(&self) -> Capability {
        Capability::available("tvm")
    }
    fn supports(&self, region: &Region) -> std::result::Result<(), FallbackReason> {
        assert_eq!(region.ops.len(), 2);
        Ok(())
    }
    fn lower(&self, region: &Region) -> std::result::Result<Lowered, FallbackReason> {
        Ok(self
            .pending
            .clone()
            .map_or_else(|| Lowered::Raw(kernel(region.layout, self.counts)), Lowered::Pending))
    }
}

fn compiled(pending: Option<Arc<Pending>>) -> (CompiledFunction, &'static Counts) {
    install();
    let counts: &Counts = Box::leak(Box::default());
    let backends: Vec<Arc<dyn Backend>> = vec![Arc::new(Compiler { pending, counts })];
    (CompiledFunction::new(CompileOptions { backends, ..CompileOptions::default() }), counts)
}

fn call(f: &CompiledFunction, x: &Tensor) -> Result<Tensor> {
    let args = [t(x)];
    let mut rets = Rets::new();
    if f.call(&args, &mut rets)?.is_none() {
        let built = f.build(&args, &names(&["x"]), &[], &mut |inputs| {
            let y = op("tp::mul.Scalar", &[t(inputs[0].tensor().unwrap()), num(2.0)]);
            Ok((vec![Value::Tensor(op("tp::add.Scalar", &[t(&y), num(1.0)]))], Box::new(())))
        })?;
        let Built::Entry(entry) = built else { panic!("eager") };
        assert!(entry.run(&args, &mut rets)?);
    }
    Ok(rets.pop().unwrap().into_tensor().unwrap())
}

#[test]
fn flat_kernels_cover_every_element_once_and_are_built_once() {
    let (f, counts) = compiled(None);
    for n in [3usize, 1, 8, 200_000] {
        let x = tensor(&(0..n).map(|i| i as f32).collect::<Vec<_>>(), &[n as i64]);
        counts.elements.store(0, Ordering::SeqCst);
        let y = call(&f, &x).unwrap();
        assert_eq!(counts.elements.load(Ordering::SeqCst), n);
        assert_eq!(values(&y), (0..n).map(|i| i as f32 * 2.0 + 1.0).collect::<Vec<_>>());
    }
    let before = counts.calls.load(Ordering::SeqCst);
    assert_eq!(values(&call(&f, &tensor(&[], &[0])).unwrap()), Vec::<f32>::new());
    assert_eq!(counts.calls.load(Ordering::SeqCst), before);
    assert_eq!(f.builds().len(), 1);
    assert_eq!((&*f.builds()[0].backend, &*f.builds()[0].hash), ("tvm", "abc"));
    let run = f.last_run().unwrap();
    assert_eq!(&*run.forward[0].marker.executor, "tvm");
    assert_eq!(run.forward[0].reason, None);
}

#[test]
fn strided_inputs_get_another_kernel() {
    let (f, _) = compiled(None);
    let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let xt = op("tp::transpose", &[t(&x), Arg::Int(0), Arg::Int(1)]);
    assert_eq!(values(&call(&f, &xt).unwrap()), [3.0, 9.0, 5.0, 11.0, 7.0, 13.0]);
    let every_second = op("tp::slice", &[t(&xt), Arg::Int(0), Arg::Int(0), Arg::Int(3), Arg::Int(2)]);
    assert_eq!(values(&call(&f, &every_second).unwrap()), [3.0, 9.0, 7.0, 13.0]);
    assert_eq!(f.builds().len(), 1);
    assert_eq!(f.entries().len(), 2);
}

#[test]
fn a_background_build_runs_native_until_it_is_there() {
    let pending = Pending::new();
    let (f, counts) = compiled(Some(pending.clone()));
    let x = tensor(&[1.0, 2.0], &[2]);
    assert_eq!(values(&call(&f, &x).unwrap()), [3.0, 5.0]);
    let run = f.last_run().unwrap();
    assert_eq!(&*run.forward[0].marker.executor, "native");
    assert_eq!(run.forward[0].reason, Some(FallbackReason::Compiling { backend: "tvm".into() }));
    pending.set(Ok(Lowered::Raw(kernel(KernelLayout::Flat { scalars: 0 }, counts))));
    assert_eq!(values(&call(&f, &x).unwrap()), [3.0, 5.0]);
    let run = f.last_run().unwrap();
    assert_eq!(&*run.forward[0].marker.executor, "tvm");
    assert_eq!(run.forward[0].reason, None);
}

#[test]
fn a_failing_kernel_is_an_error_that_names_it() {
    install();
    struct Wrong;
    impl Backend for Wrong {
        fn name(&self) -> &str {
            "wrong"
        }
        fn probe(&self) -> Capability {
            Capability::available("wrong")
        }
        fn supports(&self, _: &Region) -> std::result::Result<(), FallbackReason> {
            Ok(())
        }
        fn lower(&self, region: &Region) -> std::result::Result<Lowered, FallbackReason> {
            let marker = CodegenMarker {
                executor: "wrong".into(),
                kernel: "k".into(),
                proof: None,
                device: Device::CPU,
            };
            let address = flat as *const () as usize;
            // SAFETY: the function refuses a null handle.
            Ok(Lowered::Raw(Arc::new(unsafe {
                RawKernel::new(address, 0, region.layout, Arc::new(marker), Arc::new(()))
            })))
        }
    }
    let f = CompiledFunction::new(CompileOptions {
        backends: vec![Arc::new(Wrong)],
        ..CompileOptions::default()
    });
    let e = call(&f, &tensor(&[1.0], &[1])).unwrap_err();
    assert_eq!(e.to_string(), "the compiled kernel wrong:k on cpu failed with code 7");
}
