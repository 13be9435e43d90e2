//! The text form of a program, and the fingerprint made of it.

use std::fmt::{self, Write};

use tp_tensor::DType;

use super::Program;
use crate::prim::Prim;

struct List<I>(I);

impl<I: Iterator<Item = DType> + Clone> fmt::Display for List<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, dtype) in self.0.clone().enumerate() {
            write!(f, "{}{dtype}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs = self.outputs.iter().map(|&id| self.instrs[id as usize].dtype);
        writeln!(f, "program({}) -> ({})", List(self.inputs.iter().copied()), List(outputs))?;
        for (k, instr) in self.instrs.iter().enumerate() {
            write!(f, "%{k}:{} = {}", instr.dtype, instr.prim)?;
            match instr.prim {
                Prim::Input => write!(f, " {}", instr.imm)?,
                Prim::Const => write!(f, " 0x{:01$x}", instr.imm, 2 * instr.dtype.itemsize())?,
                _ => {}
            }
            for id in instr.args() {
                write!(f, " %{id}")?;
            }
            f.write_char('\n')?;
        }
        f.write_str("return")?;
        for id in &self.outputs {
            write!(f, " %{id}")?;
        }
        f.write_char('\n')
    }
}

/// FNV-1a over 128 bits, fed by `write!`.
struct Fnv(u128);

impl Write for Fnv {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for byte in s.bytes() {
            self.0 = (self.0 ^ byte as u128).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        Ok(())
    }
}

impl Program {
    /// A hash of the text form: equal programs have equal fingerprints, in every process and on every machine.
    pub fn fingerprint(&self) -> u128 {
        let mut hash = Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        // The sink never fails, and neither does the formatting.
        let _ = write!(hash, "{self}");
        hash.0
    }
}
