//! Symbolic sizes: expressions in normal form against plain arithmetic, what ranges and checks decide, and runs.

use proptest::prelude::*;
use std::sync::Arc;
use tp_tensor::symbols::{self, Binding, Check, Misfit, Poly, Promise, Relation, Shapes, Statement, Symbols};
use tp_tensor::{DType, Device, Dim, Layout, TensorError, TensorSpec, layout};

fn table(ranges: &[(i64, Option<i64>)]) -> (Arc<Symbols>, Vec<i64>) {
    let table = Symbols::new();
    let sizes = ranges.iter().map(|(low, high)| table.declare(*low, *high).raw()).collect();
    (table, sizes)
}

fn check(table: &Symbols, left: i64, relation: Relation, right: i64) {
    let statement = table.statement(left, relation, right).unwrap();
    table.check(Check { statement, message: None, at: None });
}

/// An expression over u0 and u1 as text, and its value for two numbers.
fn expression() -> impl Strategy<Value = String> {
    let leaf =
        prop_oneof![Just("u0".to_string()), Just("u1".to_string()), (0i64..9).prop_map(|v| v.to_string())];
    leaf.prop_recursive(3, 12, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) + ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) - ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) * ({b})")),
            (inner, 1i64..5).prop_map(|(a, by)| format!("({a})//{by}")),
        ]
    })
}

fn value(poly: &Poly, at: [i64; 2]) -> Option<i64> {
    poly.eval(&|id| Dim::symbol(id).as_unbacked().map(|u| at[u as usize]))
}

/// The same by Python's rules, straight from the text.
fn reference(text: &str, at: [i64; 2]) -> i64 {
    let bytes = text.as_bytes();
    if !text.starts_with('(') {
        return match text {
            "u0" => at[0],
            "u1" => at[1],
            number => number.parse().unwrap(),
        };
    }
    let mut depth = 0;
    let close = bytes.iter().position(|b| {
        depth += i32::from(*b == b'(') - i32::from(*b == b')');
        depth == 0
    });
    let close = close.unwrap();
    let (left, rest) = (reference(&text[1..close], at), &text[close + 1..]);
    if let Some(by) = rest.strip_prefix("//") {
        return left.div_euclid(by.parse().unwrap());
    }
    let right = reference(&rest[4..rest.len() - 1], at);
    match &rest[1..2] {
        "+" => left + right,
        "-" => left - right,
        _ => left * right,
    }
}

proptest! {
    #[test]
    fn expressions_mean_what_they_say(text in expression(), a in 0i64..50, b in 0i64..50) {
        let (table, _) = table(&[(0, None), (0, None)]);
        let (poly, read) = table.parse_poly(&text).unwrap();
        prop_assert_eq!(read, text.len());
        prop_assert_eq!(value(&poly, [a, b]), Some(reference(&text, [a, b])));
    }

    #[test]
    fn what_is_printed_reads_back(text in expression()) {
        let (table, _) = table(&[(0, None), (0, None)]);
        let (poly, _) = table.parse_poly(&text).unwrap();
        let printed = poly.to_string();
        let (again, read) = table.parse_poly(&printed).unwrap();
        prop_assert_eq!((&again, read), (&poly, printed.len()), "{}", printed);
    }

    #[test]
    fn ranges_hold(text in expression(), a in 2i64..9, b in 0i64..5) {
        let (table, _) = table(&[(2, Some(8)), (0, Some(4))]);
        let (poly, _) = table.parse_poly(&text).unwrap();
        let (range, v) = (table.range(&poly), i128::from(value(&poly, [a, b]).unwrap()));
        prop_assert!(range.low <= v && v <= range.high, "{} in {:?}", v, range);
    }

    #[test]
    fn what_is_decided_is_true_of_every_run(text in expression(), k in -3i64..20, a in 2i64..9, b in 2i64..9) {
        let (table, u) = table(&[(0, None), (2, None)]);
        for (left, relation, right) in
            [(u[0], Relation::Ge, 2), (u[0], Relation::Le, 8), (u[1], Relation::Lt, 9), (u[1], Relation::Ne, u[0])]
        {
            check(&table, left, relation, right);
        }
        prop_assume!(a != b);
        let (poly, _) = table.parse_poly(&text).unwrap();
        for relation in Relation::ALL {
            let s = Statement { left: poly.clone(), relation, right: Poly::constant(k) };
            if let Some(known) = table.decide(&s) {
                prop_assert_eq!(known, relation.holds(value(&poly, [a, b]).unwrap(), k), "{}", s);
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[us0-9()+*/ -]{0,40}") {
        let _ = Symbols::new().parse(&text);
    }
}

#[test]
fn layouts_calculate_with_symbols() {
    let (table, u) = table(&[(2, Some(10))]);
    let _table = symbols::enter(table.clone());
    let shown = |raw: &[i64]| format!("{:?}", Dim::slice(raw));
    let x = Layout::contiguous(&[3, u[0], 4]);
    assert_eq!(shown(&x.strides), "[4*u0, 4, 1]");
    assert!(x.is_contiguous());
    let t = x.permute(&[1, 0, 2]).unwrap();
    assert!(!t.is_contiguous());
    assert_eq!(shown(&[x.select(0, 2).unwrap().offset]), "[8*u0]");
    let last = x.select(1, -1).unwrap();
    assert_eq!(shown(&[last.offset]), "[4*u0 - 4]");
    assert_eq!(shown(&x.slice(1, Some(1), None, 2).unwrap().sizes), "[3, u0//2, 4]");
    assert_eq!(shown(&x.slice(1, None, Some(2), 1).unwrap().sizes), "[3, 2, 4]");
    assert!(matches!(x.slice(1, None, Some(3), 1), Err(TensorError::Undecided(what)) if what == "3 <= u0"));
    assert!(matches!(x.select(1, 10), Err(TensorError::Index { .. })));
    assert_eq!(layout::broadcast(&[1, u[0]], &[5, u[0]]).unwrap().as_slice(), &[5, u[0]]);
    assert!(matches!(layout::broadcast(&[u[0]], &[11]), Err(TensorError::Broadcast { .. })));
    assert!(matches!(layout::broadcast(&[u[0]], &[5]), Err(TensorError::Undecided(_))));
    check(&table, u[0], Relation::Eq, 5);
    assert_eq!(layout::broadcast(&[u[0]], &[5]).unwrap().as_slice(), &[5]);
}

#[test]
fn equal_expressions_have_one_name_in_every_table() {
    let names = |texts: &[&str]| {
        let (table, _) = table(&[(0, None), (0, None)]);
        texts.iter().map(|t| table.parse(t).unwrap().0).collect::<Vec<i64>>()
    };
    let one = names(&["2*u0 + u1", "u0*u1"]);
    let other = names(&["u1*u0", "u1 + u0 + u0"]);
    assert_eq!(one, [other[1], other[0]]);
    assert_eq!(symbols::mul(Dim::unbacked(0).raw(), 2), Err(TensorError::Symbolic(Dim::unbacked(0).raw())));
}

#[test]
fn a_run_finds_its_sizes_and_is_held_to_them() {
    let (table, u) = table(&[(2, Some(10)), (0, None)]);
    check(&table, u[1], Relation::Lt, u[0]);
    let _table = symbols::enter(table.clone());
    let spec = |sizes: &[i64]| TensorSpec::contiguous(sizes, DType::F32, Device::CPU);
    let promise = |sizes: &[i64]| Promise::of(&table, &spec(sizes)).unwrap();
    let real = |sizes: &[i64]| tp_tensor::Tensor::empty(sizes, DType::F32, Device::CPU).unwrap();
    let fresh = || Binding::new(Arc::new(Shapes::of(&table)));
    let twice = symbols::add(symbols::mul(u[0], 2).unwrap(), 1).unwrap();

    let mut run = fresh();
    run.meet(&promise(&[3, twice]), &real(&[3, 9])).unwrap();
    assert_eq!(run.spec(&promise(&[u[0], 2]), &spec(&[u[0], 2])), Some(spec(&[4, 2])));
    assert_eq!(run.spec(&promise(&[u[1]]), &spec(&[u[1]])), None);
    run.meet(&promise(&[u[0], u[1]]), &real(&[4, 3])).unwrap();
    let (axis, misfit) = run.meet(&promise(&[2, u[0]]), &real(&[2, 5])).unwrap_err();
    assert_eq!((axis, misfit.to_string()), (1, "size 5, where u0 is 4".to_string()));

    let (_, misfit) = fresh().meet(&promise(&[twice]), &real(&[8])).unwrap_err();
    assert!(matches!(misfit, Misfit::Value { expected: None, .. }));
    let (_, misfit) = fresh().meet(&promise(&[u[0]]), &real(&[11])).unwrap_err();
    assert_eq!(misfit.to_string(), "size 11, the fake rule declared u0 in [2, 10]");
    let (_, misfit) = fresh().meet(&promise(&[u[0], u[1]]), &real(&[4, 4])).unwrap_err();
    assert!(matches!(misfit, Misfit::Check { left: 4, right: 4, .. }));
    assert!(Promise::of(&table, &spec(&[2, 3])).is_none());
}
