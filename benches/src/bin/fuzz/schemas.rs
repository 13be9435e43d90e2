//! Schema texts: pieces of the grammar in any order, and damaged declarations. A text that parses prints as itself.

use super::Random;
use super::calls::Choices;
use tp_dispatch::Schema;

static PIECES: &[&str] = include!("../../../../crates/tp-dispatch/tests/data/schema_pieces.in");
const DECLARATIONS: [&str; 6] = [
    "tp::add(Tensor x1, Tensor x2, *, Scalar alpha=1) -> Tensor",
    "m::f.out(Tensor(a!) self, int[2] size=[1, 2], *, ScalarType? dtype=None) -> Tensor(a!)",
    "n::g(Tensor[] xs, str mode=\"mean\", float? eps=1e-5) -> (Tensor values, Tensor[] rest)",
    "o::h((Tensor, int)[] pairs, Dict(str, Tensor) named) -> ()",
    "p::i(Tensor(a -> *) x, Device device=\"cpu\", SymInt[] shape=[]) -> Tensor(a)[]",
    "q::j(Any value, bool flag=False, int n=-9223372036854775808) -> Union[int, str]",
];

fn text(random: &mut Random) -> String {
    if random.below(2) == 0 {
        return (0..random.below(40)).map(|_| PIECES[random.below(PIECES.len())]).collect();
    }
    let mut text: Vec<char> = DECLARATIONS[random.below(DECLARATIONS.len())].chars().collect();
    for _ in 0..=random.below(4) {
        let at = random.below(text.len() + 1);
        let longest = if random.below(4) == 0 { 40 } else { 3 };
        let to = at + random.below(longest.min(text.len() + 1 - at));
        match random.below(4) {
            0 => drop(text.drain(at..to)),
            1 => text.insert(at, char::from_u32(random.below(0x300) as u32).unwrap_or('?')),
            2 => {
                let piece = text[at..to].to_vec();
                text.splice(at..at, piece);
            }
            _ => text.truncate(at.max(1)),
        }
        text.truncate(2000);
        if text.is_empty() {
            break;
        }
    }
    // Nesting without end must be refused before the stack is.
    if random.below(256) == 0 {
        let deep = ["[", "(", "Tensor[", "Dict(", "?"][random.below(5)].repeat(1 + random.below(5000));
        return text.iter().collect::<String>() + &deep;
    }
    text.into_iter().collect()
}

/// One text: an error that points into it, or a schema whose print parses to the same.
pub fn step(random: &mut Random) -> Result<bool, String> {
    let text = text(random);
    match Schema::parse(&text) {
        Ok(schema) => {
            let printed = schema.to_string();
            match Schema::parse(&printed) {
                Ok(again) if again == schema => Ok(true),
                _ => Err(format!("{text:?} prints as {printed:?}")),
            }
        }
        Err(e) if text.is_char_boundary(e.offset()) => Ok(false),
        Err(e) => Err(format!("{text:?}: the error points to byte {}", e.offset())),
    }
}
