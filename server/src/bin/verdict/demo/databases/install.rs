//! Where a server's programs are, and what to install if they are nowhere.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::Brand;

/// The program that makes a server's files, and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Programs {
    pub(super) make: PathBuf,
    pub(super) server: PathBuf,
}

#[derive(Debug, PartialEq, Eq, Error)]
#[error(
    "{brand} is not installed here: {program} is neither in PATH nor in {usual}. On Debian and Ubuntu: apt-get install \
     {package}. On other systems: {page}"
)]
pub(crate) struct NotInstalled {
    brand: Brand,
    program: &'static str,
    usual: &'static str,
    package: &'static str,
    page: &'static str,
}

/// Debian keeps each version in a folder of its own, none of them in PATH.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";
/// Daemons are not in everybody's PATH.
const MARIADB_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/bin"];

/// PATH first: who put it there means it.
pub(super) fn find(brand: Brand) -> Result<Programs, NotInstalled> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
    match brand {
        Brand::Postgres => folders.extend(versions(Path::new(POSTGRES_VERSIONS))),
        Brand::Mariadb => folders.extend(MARIADB_FOLDERS.map(PathBuf::from)),
    }
    find_in(brand, &folders)
}

fn find_in(brand: Brand, folders: &[PathBuf]) -> Result<Programs, NotInstalled> {
    let found = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    let missing = |program| match brand {
        Brand::Postgres => NotInstalled {
            brand,
            program,
            usual: "/usr/lib/postgresql/*/bin",
            package: "postgresql",
            page: "https://www.postgresql.org/download/",
        },
        Brand::Mariadb => NotInstalled {
            brand,
            program,
            usual: "/usr/sbin and /usr/bin",
            package: "mariadb-server",
            page: "https://mariadb.org/download/",
        },
    };
    match brand {
        // Both of one version.
        Brand::Postgres => {
            let whole = |folder: &&PathBuf| ["initdb", "postgres"].iter().all(|name| folder.join(name).is_file());
            let folder = folders.iter().find(whole).ok_or_else(|| missing("initdb"))?;
            Ok(Programs { make: folder.join("initdb"), server: folder.join("postgres") })
        }
        Brand::Mariadb => Ok(Programs {
            server: found("mariadbd").ok_or_else(|| missing("mariadbd"))?,
            make: found("mariadb-install-db").ok_or_else(|| missing("mariadb-install-db"))?,
        }),
    }
}

/// The newest first.
fn versions(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: &str| name.parse::<f64>().ok();
    let mut versions: Vec<(f64, PathBuf)> =
        entries.filter_map(|entry| Some((number(entry.file_name().to_str()?)?, entry.path().join("bin")))).collect();
    versions.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    versions.into_iter().map(|(_, folder)| folder).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn the_newest_whole_postgresql_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for path in ["9.6/bin/initdb", "9.6/bin/postgres", "15/bin/initdb", "15/bin/postgres", "17/bin/initdb"] {
            touch(&at(path));
        }
        touch(&at("notes/bin/postgres"));
        let folders = versions(folder.path());
        assert_eq!(folders, [at("17/bin"), at("15/bin"), at("9.6/bin")]);
        let found = find_in(Brand::Postgres, &folders).unwrap();
        assert_eq!(found, Programs { make: at("15/bin/initdb"), server: at("15/bin/postgres") });
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_install() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().to_owned()];
        let says = |brand| find_in(brand, &folders).unwrap_err().to_string();
        let postgres = says(Brand::Postgres);
        assert!(postgres.contains("initdb is neither in PATH nor in /usr/lib/postgresql/*/bin"), "{postgres}");
        assert!(postgres.contains("apt-get install postgresql") && postgres.contains("https://www.postgresql.org"));
        touch(&folder.path().join("mariadbd"));
        let mariadb = says(Brand::Mariadb);
        assert!(mariadb.contains("MariaDB is not installed here: mariadb-install-db is neither"), "{mariadb}");
        assert!(mariadb.contains("apt-get install mariadb-server") && mariadb.contains("https://mariadb.org"));
        touch(&folder.path().join("mariadb-install-db"));
        find_in(Brand::Mariadb, &folders).unwrap();
    }
}
