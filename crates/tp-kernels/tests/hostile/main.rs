//! Whatever the arguments are, a built-in op gives a result or an ordinary error: no panic, no internal error, no
//! write out of bounds. `make fuzz` draws far more calls from the same generator.

mod calls;

use calls::{Choices, one_call, ops};
use proptest::collection::vec;
use proptest::prelude::*;
use tp_dispatch::{ErrorKind, Value};

/// Choices that proptest made and can shrink; at the end of the list always the first.
struct Recorded<'a> {
    numbers: &'a [u32],
    next: usize,
}

impl Choices for Recorded<'_> {
    fn below(&mut self, n: usize) -> usize {
        let number = self.numbers.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        number as usize % n
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_call_gives_a_result_or_an_ordinary_error(numbers in vec(any::<u32>(), 0..80)) {
        tp_kernels::register_all().unwrap();
        let (op, result) = one_call(&mut Recorded { numbers: &numbers, next: 0 }, &ops());
        match result {
            Ok(rets) => {
                for value in &rets {
                    if let Value::Tensor(t) = value {
                        prop_assert!(t.ndim() <= 64, "{}", op.full_name());
                        prop_assert!(!t.is_fake() || t.device().is_meta(), "{}", op.full_name());
                    }
                }
            }
            Err(e) => {
                prop_assert!(!matches!(e.kind(), ErrorKind::Internal), "{}: {e:?}", op.full_name());
                prop_assert!(e.code() != "TP4002", "{}: {e:?}", op.full_name());
            }
        }
    }
}
