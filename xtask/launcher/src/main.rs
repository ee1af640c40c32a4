//! `cargo xtask` begins here: brings back compiled packages, then hands over to xtask itself.

use std::{
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

use launcher::{
    cache,
    dependencies::{Key, Store, own_crates},
};

fn main() -> ExitCode {
    let error = run();
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

/// Comes back only with an error.
fn run() -> io::Error {
    restore();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["run", "--quiet", "--package", "xtask", "--manifest-path"]).arg(root().join("Cargo.toml")).arg("--");
    cargo.args(std::env::args_os().skip(1)).exec()
}

/// Without kept packages everything is compiled, so a failure only costs time.
fn restore() {
    let started = Instant::now();
    let restored =
        Key::of(&root()).and_then(|key| Store::new(&cache()).restore(&key, &target()?, &own_crates(&root())));
    match restored {
        Ok(true) => eprintln!("compiled dependencies restored in {:.1} s", started.elapsed().as_secs_f64()),
        Ok(false) => {}
        Err(error) => eprintln!("cannot restore compiled dependencies: {error}"),
    }
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the launcher lies in xtask, in the repository").to_owned()
}

/// The folder of the profile that we were built in ourselves.
fn target() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    program.parent().map(Path::to_owned).ok_or_else(|| io::Error::other("this program lies in no folder"))
}
