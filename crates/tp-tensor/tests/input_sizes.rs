//! Sizes of inputs as symbols: what the capture's own sizes decide is a guard, and every later answer agrees with it.

use tp_tensor::symbols::{self, Poly, Relation, Statement, Symbols};
use tp_tensor::{Dim, Layout, layout};

fn guards(table: &Symbols) -> Vec<String> {
    table.guards().iter().map(|g| g.statement.to_string()).collect()
}

#[test]
fn what_ranges_leave_open_is_decided_by_the_size_at_hand_and_guarded() {
    let table = Symbols::new();
    let _table = symbols::enter(table.clone());
    let n = table.declare_input(2, None, 5).raw();
    assert_eq!(symbols::decide(n, Relation::Ge, 2), Some(true));
    assert_eq!(symbols::decide(n, Relation::Eq, 1), Some(false));
    assert!(table.guards().is_empty());
    assert_eq!(symbols::decide(n, Relation::Gt, 3), Some(true));
    assert_eq!(symbols::decide(n, Relation::Eq, 7), Some(false));
    // Follows from the first.
    assert_eq!(symbols::decide(n, Relation::Ge, 4), Some(true));
    assert_eq!(guards(&table), ["s0 > 3", "s0 != 7"]);
    assert_eq!(symbols::settled(n), Some(5));
    assert_eq!(symbols::decide(n, Relation::Lt, 6), Some(true));
    assert_eq!(guards(&table), ["s0 > 3", "s0 != 7", "s0 == 5"]);
}

#[test]
fn every_guard_holds_of_the_capture_and_all_answers_follow_from_the_guards() {
    let relations = Relation::ALL;
    for hint in 2..9i64 {
        for shift in -3..4i64 {
            for (i, first) in relations.into_iter().enumerate() {
                let table = Symbols::new();
                let _table = symbols::enter(table.clone());
                let n = table.declare_input(2, None, hint).raw();
                let mut answers = Vec::new();
                for (k, relation) in std::iter::once(first).chain(relations).enumerate() {
                    let right = hint + shift + (i + k) as i64 % 3 - 1;
                    answers.push((relation, right, symbols::decide(n, relation, right).unwrap()));
                }
                let holds = |s: &Statement, v: i64| {
                    let side = |p: &Poly| p.eval(&|_| Some(v)).unwrap();
                    s.relation.holds(side(&s.left), side(&s.right))
                };
                let table_guards = table.guards();
                assert!(table_guards.iter().all(|g| holds(&g.statement, hint)));
                for v in (2..20).filter(|v| table_guards.iter().all(|g| holds(&g.statement, *v))) {
                    assert!(answers.iter().all(|(r, right, answer)| r.holds(v, *right) == *answer));
                }
            }
        }
    }
}

#[test]
fn operands_that_must_agree_are_guarded_as_equal() {
    let table = Symbols::new();
    let _table = symbols::enter(table.clone());
    let (n, m) = (table.declare_input(2, None, 4).raw(), table.declare_input(2, None, 4).raw());
    assert_eq!(layout::broadcast(&[n, 1], &[m, 3]).unwrap().as_slice(), &[m, 3]);
    assert_eq!(layout::broadcast(&[n], &[4]).unwrap().as_slice(), &[4]);
    assert_eq!(guards(&table), ["s0 == s1", "s0 == 4"]);
    let other = table.declare_input(2, None, 9).raw();
    assert!(layout::broadcast(&[n], &[other]).is_err());
}

#[test]
fn sums_that_come_out_even_are_guarded() {
    let table = Symbols::new();
    let _table = symbols::enter(table.clone());
    let n = table.declare_input(2, None, 6).raw();
    let half = symbols::exact(n, 2).unwrap();
    assert_eq!(symbols::mul(half, 2).and_then(|p| symbols::require(p, Relation::Eq, n)), Ok(true));
    assert_eq!(guards(&table), ["s0 == 2*(s0//2)"]);
    assert!(symbols::exact(n, 4).is_err());
}

#[test]
fn a_view_of_other_sizes_is_one_where_the_strides_allow_it() {
    let table = Symbols::new();
    let _table = symbols::enter(table.clone());
    let n = table.declare_input(2, None, 6).raw();
    let x = Layout::contiguous(&[n, 3, 4]);
    let t = x.permute(&[1, 0, 2]).unwrap();
    assert!(t.symbolic_view(&[symbols::mul(n, 12).unwrap()]).unwrap().is_none());
    let split = t.symbolic_view(&[3, n, 2, 2]).unwrap().unwrap();
    assert_eq!(split.strides.as_slice(), &[4, 12, 2, 1]);
    let joined = x.select(0, 0).unwrap().symbolic_view(&[12]).unwrap().unwrap();
    assert_eq!(joined.strides.as_slice(), &[1]);
}

#[test]
fn after_the_capture_nothing_more_is_decided() {
    let table = Symbols::new();
    let _table = symbols::enter(table.clone());
    let n = table.declare_input(2, Some(8), 5).raw();
    table.close();
    assert_eq!(symbols::decide(n, Relation::Gt, 3), None);
    assert_eq!(symbols::decide(n, Relation::Le, 8), Some(true));
    assert_eq!(symbols::settled(n), None);
    assert!(table.guards().is_empty());
    // A copy, to verify the graph with, decides as the capture did.
    assert_eq!(table.fork().decide(&table.statement(n, Relation::Gt, 3).unwrap()), Some(true));
}

#[test]
fn statements_read_in_the_names_of_arguments() {
    let table = Symbols::new();
    let name = |id: u32| format!("x.shape[{id}]");
    for (text, named) in [
        ("s0", "x.shape[0]"),
        ("s0 - 2*(s0//2)", "x.shape[0] % 2"),
        ("2*s0*s1 + s1 - 3", "2*x.shape[0]*x.shape[1] + x.shape[1] - 3"),
        ("3*((s0 + 1)//4)", "3*((x.shape[0] + 1)//4)"),
        ("s0//2", "x.shape[0]//2"),
    ] {
        assert_eq!(table.parse_poly(text).unwrap().0.named(&name), named);
    }
    assert_eq!(Dim::symbol(0).to_string(), "s0");
}
