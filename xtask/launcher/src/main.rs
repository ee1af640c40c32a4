//! `cargo xtask` and `cargo dev` begin here: brings back compiled packages, builds programs beside strata, then hands over.

use std::{
    ffi::OsString,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::Instant,
};

use catalog::{Shelf, Tool};
use launcher::{
    cache,
    dependencies::{Key, Store},
    profile_folder, programs,
};

/// How this program starts itself, with the arguments of `strata dev`, to build programs in the background.
const PROGRAMS: &str = "programs";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let task = arguments.next();
    let rest: Vec<OsString> = arguments.collect();
    let result = match task.as_deref().and_then(|task| task.to_str()) {
        Some("xtask") => xtask(&rest),
        Some("dev") => dev(&rest),
        Some(PROGRAMS) => programs::build(&shelf(), programs::needed(&rest)),
        _ => Err(io::Error::other("use it as `cargo xtask …` or `cargo dev …`")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes xtask, compiled first where it changed.
fn xtask(arguments: &[OsString]) -> io::Result<()> {
    restore();
    // Not `--quiet`: the first build takes minutes, and so may one after an update.
    let mut xtask = cargo(["run", "--package", "xtask"]);
    // CI builds a checkout once: what makes the next build quick would only fill the disk, and no debugger runs there. Without
    // line tables our own crates took 4 min 56 s on two cores instead of 6 min 2 s; a panic names its line all the same.
    if std::env::var_os("CI").is_some_and(|ci| ci == "true") {
        xtask.envs([("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "false")]);
    }
    Err(xtask.arg("--").args(arguments).exec())
}

/// Becomes `strata dev`, compiled first where it changed; what a first start needs is built meanwhile.
fn dev(arguments: &[OsString]) -> io::Result<()> {
    restore();
    let missing = programs::missing(&shelf(), programs::needed(arguments));
    let builder = missing.first().map(|first| {
        // Without Go nothing will run, however long strata is compiled.
        programs::check_go(Path::new("go"), first)?;
        start_builder(&missing, arguments)
    });
    let builder = builder.transpose()?;
    let status = cargo(["build", "--package", "strata"]).status()?;
    if !status.success() {
        // It ends after the program that it is at, which the next start then need not build.
        drop(builder);
        return Err(io::Error::other(format!("strata was not built: {status}")));
    }
    // The builder's standard input ends with our own program: strata takes over where it is.
    Err(Command::new(profile_folder()?.join("strata")).arg("dev").args(arguments).exec())
}

fn start_builder(missing: &[&Tool], arguments: &[OsString]) -> io::Result<Child> {
    let names = missing.iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ");
    eprintln!("first start: building {names} beside strata, once; README.md says how long that takes");
    let mut builder = Command::new(std::env::current_exe()?);
    builder.arg(PROGRAMS).args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
}

fn shelf() -> Shelf {
    Shelf::new(&cache())
}

/// Without kept packages everything is compiled, so a failure only costs time.
fn restore() {
    let started = Instant::now();
    let restored = profile_folder().and_then(|target| Store::new(&cache()).restore(|| Key::of(&root()), &target));
    match restored {
        Ok(true) => eprintln!("compiled dependencies restored in {:.1} s", started.elapsed().as_secs_f64()),
        Ok(false) => {}
        Err(error) => eprintln!("cannot restore compiled dependencies: {error}"),
    }
}

fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).arg("--manifest-path").arg(root().join("Cargo.toml"));
    cargo
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the launcher lies in xtask, in the repository").to_owned()
}
