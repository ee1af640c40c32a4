//! The one binary; see the library beside it.

use std::process::ExitCode;

/// The same in every build: the image's musl has an allocator that is slow and gives nothing back. How it works stands
/// in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    strata::main()
}
