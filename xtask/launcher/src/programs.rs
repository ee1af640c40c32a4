//! Builds what `strata dev up` needs while strata itself is still being compiled.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use catalog::{CHARTS, FIRST_START, GO_ENVIRONMENT, Shelf, Tool};

/// What the first run of `strata dev` with these arguments needs, in the order of use.
pub fn needed(arguments: &[OsString]) -> &'static [&'static str] {
    let has = |flag: &str| arguments.iter().any(|one| one == flag);
    let is_start = arguments.first().is_some_and(|first| first == "up") && !has("--help") && !has("-h");
    let is_named = |one: &OsString| one.as_encoded_bytes().starts_with(b"--kubeconfig=");
    match (is_start, has("--kubeconfig") || arguments.iter().any(is_named)) {
        (false, _) => &[],
        (true, true) => &CHARTS,
        (true, false) => &FIRST_START,
    }
}

/// Builds programs in the order of their use until all are there or standard input ends: then strata is compiled, and
/// builds the rest itself. A failure ends it as well; strata meets it again and says what to do.
pub fn build(shelf: &Shelf, names: &[&str]) -> io::Result<()> {
    let is_taken_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_taken_over);
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        seen.store(true, Ordering::Relaxed);
    });
    for tool in missing(shelf, names) {
        if is_taken_over.load(Ordering::Relaxed) {
            break;
        }
        build_one(shelf, tool)?;
    }
    Ok(())
}

/// Which of these programs have to be built.
pub fn missing(shelf: &Shelf, names: &[&str]) -> Vec<&'static Tool> {
    missing_of(shelf, names, |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty()))
}

/// What the user names in the environment is strata's business: it looks at its version as well.
fn missing_of(shelf: &Shelf, names: &[&str], is_set: impl Fn(&str) -> bool) -> Vec<&'static Tool> {
    let tools = names.iter().filter_map(|name| Tool::named(name));
    let is_named = |tool: &Tool| is_set(&tool.variable()) || tool.is_kubebuilder_asset && is_set("KUBEBUILDER_ASSETS");
    tools.filter(|tool| !is_named(tool) && !shelf.program(tool).is_file()).collect()
}

fn build_one(shelf: &Shelf, tool: &Tool) -> io::Result<()> {
    let module = shelf.write_module(tool)?;
    // Strata waits for this lock, and so does another start.
    let lock = File::create(shelf.lock(tool))?;
    lock.lock()?;
    let finished = shelf.program(tool);
    if finished.is_file() {
        return Ok(());
    }
    let started = Instant::now();
    let partial = module.join(tool.name);
    run_go(Path::new("go"), &module, tool, &partial)?;
    fs::rename(&partial, &finished)?;
    eprintln!("built {} {} in {} s, beside strata", tool.name, tool.version(), started.elapsed().as_secs());
    Ok(())
}

/// Whether there is a Go at all; its version is looked at with the first build.
pub fn check_go(go: &Path, first: &Tool) -> io::Result<()> {
    let version = Command::new(go).arg("version").stdin(Stdio::null()).output();
    version.map(drop).map_err(|error| no_go(go, first, &error))
}

fn no_go(go: &Path, tool: &Tool, error: &io::Error) -> io::Error {
    let (name, go) = (tool.name, go.display());
    io::Error::other(format!(
        "{name} has to be built and {go} cannot be run: {error}; install Go from your distribution or \
         https://go.dev/dl (README.md names the version)"
    ))
}

fn run_go(go: &Path, module: &Path, tool: &Tool, out: &Path) -> io::Result<()> {
    let path = module.join(format!("{}.log", tool.name));
    let log = File::create(&path)?;
    let mut command = Command::new(go);
    command.args(tool.go_arguments(out)).envs(GO_ENVIRONMENT).current_dir(module);
    let status = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).status();
    if status.map_err(|error| no_go(go, tool, &error))?.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("go build of {} failed; {} says why", tool.name, path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tools: &[&Tool]) -> Vec<&'static str> {
        tools.iter().map(|tool| tool.name).collect()
    }

    #[test]
    fn only_a_start_needs_programs_and_on_a_foreign_cluster_few() {
        let check = |line: &str, expected: &[&str]| {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(needed(&arguments), expected, "{line}");
        };
        check("up", &FIRST_START);
        check("up --detach --fresh", &FIRST_START);
        check("up --kubeconfig kind.yaml", &CHARTS);
        check("up --detach --kubeconfig=kind.yaml", &CHARTS);
        for line in ["", "up --help", "up -h", "up --kubeconfig kind.yaml --help", "down", "kubeconfig"] {
            check(line, &[]);
        }
    }

    #[test]
    fn what_is_there_or_named_by_the_user_is_not_built() {
        let cache = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(cache.path());
        assert_eq!(names(&missing_of(&shelf, &FIRST_START, |_| false)), FIRST_START);
        fs::create_dir_all(shelf.folder()).unwrap();
        fs::write(shelf.program(Tool::named("kwok").unwrap()), "").unwrap();
        let is_set = |variable: &str| ["KUBEBUILDER_ASSETS", "STRATA_HELM"].contains(&variable);
        let left = names(&missing_of(&shelf, &FIRST_START, is_set));
        assert_eq!(left, ["kube-controller-manager", "kube-scheduler", "registry", "capi"]);
    }

    #[test]
    fn a_program_that_another_process_built_meanwhile_is_left_as_it_is() {
        let cache = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(cache.path());
        let tool = Tool::named("etcd").unwrap();
        shelf.write_module(tool).unwrap();
        fs::write(shelf.program(tool), "theirs").unwrap();
        build_one(&shelf, tool).unwrap();
        assert_eq!(fs::read_to_string(shelf.program(tool)).unwrap(), "theirs");
    }

    #[test]
    fn without_go_the_message_says_so_and_names_the_remedy() {
        let module = tempfile::tempdir().unwrap();
        let (go, tool, out) = (Path::new("/nonexistent/go"), Tool::named("etcd").unwrap(), module.path().join("etcd"));
        for error in [run_go(go, module.path(), tool, &out), check_go(go, tool)] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("/nonexistent/go cannot be run") && error.contains("install Go"), "{error}");
        }
    }
}
