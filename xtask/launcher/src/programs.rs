//! Builds what `strata dev up` needs while strata itself is still being compiled.

use std::{
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

use catalog::{FIRST_START, GO_ENVIRONMENT, Shelf, Tool};

/// Builds programs in the order of their use until all are there or standard input ends: then strata is compiled, and
/// builds the rest itself. A failure ends it as well; strata meets it again and says what to do.
pub fn build(shelf: &Shelf) -> io::Result<()> {
    let is_taken_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_taken_over);
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        seen.store(true, Ordering::Relaxed);
    });
    for tool in missing(shelf) {
        if is_taken_over.load(Ordering::Relaxed) {
            break;
        }
        build_one(shelf, tool)?;
    }
    Ok(())
}

/// What a first start would have to build, in the order of use.
pub fn missing(shelf: &Shelf) -> Vec<&'static Tool> {
    missing_of(shelf, |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty()))
}

/// What the user names in the environment is strata's business: it looks at its version as well.
fn missing_of(shelf: &Shelf, is_set: impl Fn(&str) -> bool) -> Vec<&'static Tool> {
    let tools = FIRST_START.iter().filter_map(|name| Tool::named(name));
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
    go(&module, tool, &partial)?;
    fs::rename(&partial, &finished)?;
    eprintln!("built {} {} in {} s, beside strata", tool.name, tool.version(), started.elapsed().as_secs());
    Ok(())
}

fn go(module: &Path, tool: &Tool, out: &Path) -> io::Result<()> {
    let log = File::create(module.join(format!("{}.log", tool.name)))?;
    let mut go = Command::new("go");
    go.args(tool.go_arguments(out)).envs(GO_ENVIRONMENT).current_dir(module);
    let status = go.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("go build of {} failed", tool.name))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tools: &[&Tool]) -> Vec<&'static str> {
        tools.iter().map(|tool| tool.name).collect()
    }

    #[test]
    fn what_is_there_or_named_by_the_user_is_not_built() {
        let cache = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(cache.path());
        assert_eq!(names(&missing_of(&shelf, |_| false)), FIRST_START);
        fs::create_dir_all(shelf.folder()).unwrap();
        fs::write(shelf.program(Tool::named("kwok").unwrap()), "").unwrap();
        let is_set = |variable: &str| ["KUBEBUILDER_ASSETS", "STRATA_HELM"].contains(&variable);
        let left = names(&missing_of(&shelf, is_set));
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
}
