//! The one binary; see the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    strata::main()
}
