//! Lays the functions of a call side by side: `calls.ld` says which, benches/callgrind/layout.py writes it. Linkers that
//! somebody chose may not know such scripts, and without it everything works, only slower.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=calls.ld");
    let var = |name| env::var(name).unwrap_or_default();
    let is_gnu = var("CARGO_CFG_TARGET_OS") == "linux" && var("CARGO_CFG_TARGET_ENV") == "gnu";
    let is_default =
        env::var_os("RUSTC_LINKER").is_none() && !var("CARGO_ENCODED_RUSTFLAGS").contains("link");
    if is_gnu && is_default && var("PROFILE") == "release" {
        println!("cargo:rustc-link-arg-cdylib=-T{}/calls.ld", var("CARGO_MANIFEST_DIR"));
    }
}
