//! The guard by itself: `strata guard` for the tests of this crate, which have no strata.

fn main() -> std::process::ExitCode {
    runtime::child::guard::main(std::env::args_os().skip(1))
}
