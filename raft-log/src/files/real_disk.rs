//! The disk seam over a directory of the operating system.
//!
//! ```text
//!   data directory/
//!     lock     held exclusively while a process has it open
//!     …        everything else
//! ```
//!
//! Promise: two processes never have one directory open at the same time.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::disk::{Disk, DiskFile};

const LOCK: &str = "lock";

/// A directory of the operating system, held exclusively.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    dir: File,
    /// The lock goes with the file.
    _lock: File,
}

impl RealDisk {
    /// Opens a directory, makes it if there is none, and locks it against other processes.
    ///
    /// # Errors
    /// `WouldBlock` when another process has it.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        if !root.is_dir() {
            fs::create_dir_all(&root)?;
            if let Some(parent) = root.canonicalize()?.parent() {
                File::open(parent)?.sync_all()?;
            }
        }
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(root.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    format!(
                        "{} is in use by another process: stop it, or choose another data directory",
                        root.display()
                    ),
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self { dir: File::open(&root)?, root, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.root
    }
}

impl Disk for RealDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(self.root.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.root.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string()
                && name != LOCK
                && entry.file_type()?.is_file()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_directory_is_held_by_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("data");
        let first = RealDisk::open(&root).unwrap();
        let second = RealDisk::open(&root).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::WouldBlock);
        assert!(second.to_string().contains("in use by another process"));
        drop(first);
        RealDisk::open(&root).unwrap();
    }

    #[test]
    fn files_are_written_listed_renamed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        let mut file = disk.create("b").unwrap();
        file.write_zeros(0, 300_000).unwrap();
        file.write_at(1000, b"xyz").unwrap();
        file.sync().unwrap();
        disk.rename("b", "c").unwrap();
        disk.create("a").unwrap();
        disk.sync_dir().unwrap();
        assert_eq!(disk.list().unwrap(), ["a", "c"]);
        let mut back = [0; 5];
        disk.open("c").unwrap().read_at(999, &mut back).unwrap();
        assert_eq!(&back, b"\0xyz\0");
        assert_eq!(file.size().unwrap(), 300_000);
        disk.remove("a").unwrap();
        assert_eq!(disk.open("a").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
