//! As whom a server runs, and that it ends with the demo. What makes a server's files ends within seconds of a demo that is
//! killed meanwhile, by itself.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Stdio,
};

use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use tokio::process::Command;

use super::{Brand, ServerError};

/// The user that a server runs as, and owns its files. None: the demo's own.
#[derive(Clone, Debug)]
pub(super) struct Owner(Option<User>);

#[derive(Clone, Debug)]
struct User {
    name: &'static str,
    user: u32,
    group: u32,
}

/// Of util-linux: changes the user, and has the kernel kill what it starts when the demo is killed. Without it a server
/// of a demo that is killed outlives it.
const SETPRIV: &str = "/usr/bin/setpriv";

impl Owner {
    pub(super) fn of(brand: Brand) -> Result<Self, ServerError> {
        if !geteuid().is_root() {
            return Ok(Self(None));
        }
        let name = match brand {
            Brand::Postgres => "postgres",
            Brand::Mariadb => "mysql",
        };
        let found = id("-u", name).zip(id("-g", name)).filter(|_| Path::new(SETPRIV).exists());
        let (user, group) = found.ok_or(ServerError::NoUser { brand, user: name })?;
        Ok(Self(Some(User { name, user, group })))
    }

    /// Makes a folder that is its own, and lets it come there: through the demo's folder, in which it can list nothing.
    pub(super) fn opens(&self, folder: &Path) -> Result<(), ServerError> {
        let made = || {
            fs::DirBuilder::new().mode(0o700).create(folder)?;
            let (Self(Some(User { user, group, .. })), Some(above)) = (self, folder.parent()) else { return Ok(()) };
            let mode = fs::metadata(above)?.permissions().mode();
            fs::set_permissions(above, fs::Permissions::from_mode(mode | 0o011))?;
            chown(folder, Some(*user), Some(*group))
        };
        made().map_err(|source| ServerError::Write { path: folder.to_owned(), source })
    }

    /// Writes a file that it alone can read.
    pub(super) fn writes(&self, path: &Path, text: &str) -> Result<(), ServerError> {
        let written = || {
            use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
            let mut file = fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
            file.write_all(text.as_bytes())?;
            let Self(Some(User { user, group, .. })) = self else { return Ok(()) };
            chown(path, Some(*user), Some(*group))
        };
        written().map_err(|source: io::Error| ServerError::Write { path: path.to_owned(), source })
    }

    /// How the program is run.
    pub(super) fn command(&self, program: &Path, arguments: Vec<String>) -> (PathBuf, Vec<String>) {
        if !Path::new(SETPRIV).exists() {
            return (program.to_owned(), arguments);
        }
        let mut all = Vec::new();
        if let Self(Some(User { user, group, .. })) = self {
            all.extend([format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]);
        }
        // After the change of the user, which would undo it.
        all.extend(["--pdeathsig".to_owned(), "KILL".to_owned(), program.display().to_string()]);
        all.extend(arguments);
        (SETPRIV.into(), all)
    }

    /// Runs it to its end.
    pub(super) async fn make(&self, program: &Path, arguments: Vec<String>) -> Result<(), ServerError> {
        let (run, arguments) = self.command(program, arguments);
        let failed = |source| ServerError::Run { program: program.to_owned(), source };
        let mut command = Command::new(run);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.current_dir("/").process_group(0).kill_on_drop(true).spawn().map_err(failed)?;
        let mut group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
        let output = child.wait_with_output().await.map_err(failed)?;
        group.0 = None;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).trim().to_owned());
        let hint = match self {
            Self(None) => "it said:\n".to_owned(),
            Self(Some(User { name, .. })) => {
                format!("it runs as the user {name}, who must be able to reach the demo's folder; it said:\n")
            }
        };
        Err(ServerError::Make { program: program.to_owned(), status: output.status, hint, said: said.join("\n") })
    }
}

/// A program and what it has started, which end if it is not waited for to its end.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // If it has ended meanwhile there is nothing to do.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn id(which: &str, name: &str) -> Option<u32> {
    let output = std::process::Command::new("id").args([OsStr::new(which), OsStr::new(name)]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
