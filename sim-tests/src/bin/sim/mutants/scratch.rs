//! A scratch copy of the tree with all patches applied, built once. Each bug in it waits for its switch.
//!
//! Only files that changed are written anew, so that a second build is quick; and what the workspace depends on is
//! shared with the simulation's own build.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// What the workspace consists of.
const TREE: [&str; 8] = ["Cargo.toml", "Cargo.lock", "proto", "raft-log", "server", "client", "sim-tests", "examples"];
const PACKAGES: [&str; 6] =
    ["verdict-proto", "verdict-raft-log", "verdict-protocol", "verdict-server", "verdict-client", "verdict-sim-tests"];
/// The program of the scratch copy: its name is its own, so that it does not take the place of `sim`.
const PROGRAM: &str = "sim-mutants";

/// Whether every patch fits; how many there are.
pub(super) fn check(root: &Path) -> Result<usize, String> {
    let fresh = root.join("target/mutants/fresh");
    apply_all(root, &fresh)
}

/// Makes and builds the scratch copy, and returns its program.
pub(super) fn build(root: &Path) -> Result<PathBuf, String> {
    let (fresh, tree) = (root.join("target/mutants/fresh"), root.join("target/mutants/tree"));
    apply_all(root, &fresh)?;
    settle(&fresh, &tree).map_err(|error| format!("the scratch copy cannot be written: {error}"))?;
    let target = root.join("target/sim");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--locked", "--quiet", "--profile", "sim", "-p", "verdict-sim-tests", "--bin", PROGRAM]);
    cargo.arg("--target-dir").arg(&target).current_dir(&tree).env("RUSTFLAGS", "--cfg madsim");
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS");
    // Seeds are quick, and building is not.
    for name in PACKAGES {
        cargo.args(["--config", &format!("profile.sim.package.{name}.opt-level=1")]);
    }
    let status = cargo.status().map_err(|error| format!("cargo does not run: {error}"))?;
    if !status.success() {
        return Err(format!(
            "the patched copy in {} does not build: a patch fits and no longer means the same; refresh it",
            tree.display()
        ));
    }
    Ok(target.join("sim").join(PROGRAM))
}

fn apply_all(root: &Path, fresh: &Path) -> Result<usize, String> {
    let unwritable = |error: io::Error| format!("the scratch copy cannot be written: {error}");
    if fresh.exists() {
        fs::remove_dir_all(fresh).map_err(unwritable)?;
    }
    for part in TREE {
        copy(&root.join(part), &fresh.join(part)).map_err(unwritable)?;
    }
    let folder = root.join("sim-tests/mutants");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let patches: BTreeSet<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    for patch in &patches {
        let mut git = Command::new("git");
        git.arg("apply").arg(patch).current_dir(fresh);
        // It must not find the repository that the scratch copy lies in: then it applies to that.
        git.env("GIT_CEILING_DIRECTORIES", root.join("target/mutants"));
        let output = git.output().map_err(|error| format!("git does not run: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "{} does not fit any more: refresh it (by hand, or with git apply --reject and git diff -U2) so that it \
                 puts the same bug into what the code is now\n{}",
                patch.display(),
                String::from_utf8_lossy(&output.stderr)
            ));
        }
    }
    Ok(patches.len())
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_file() {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        return fs::copy(from, to).map(drop);
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_name() != "target" {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Makes `tree` what `fresh` is, and leaves alone what is the same.
fn settle(fresh: &Path, tree: &Path) -> io::Result<()> {
    fs::create_dir_all(tree)?;
    let mut wanted = BTreeSet::new();
    for entry in fs::read_dir(fresh)? {
        let entry = entry?;
        let (from, to) = (entry.path(), tree.join(entry.file_name()));
        wanted.insert(entry.file_name());
        if from.is_dir() {
            settle(&from, &to)?;
        } else {
            let content = fs::read(&from)?;
            if !fs::read(&to).is_ok_and(|there| there == content) {
                fs::write(&to, content)?;
            }
        }
    }
    for entry in fs::read_dir(tree)? {
        let entry = entry?;
        if !wanted.contains(&entry.file_name()) {
            if entry.path().is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
        }
    }
    Ok(())
}
