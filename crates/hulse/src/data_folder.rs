//! Who owns a data folder, and whether this version may open it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{OpenDiskError, RealDisk};
use thiserror::Error;

/// Names the folder's layout. A file of its own, so that a folder says what it is before anything in it is opened.
const FORMAT_FILE: &str = "FORMAT";
/// First words of [`FORMAT_FILE`]; the number that follows is the version of the layout.
const FORMAT_NAME: &str = "hulse data folder";
/// The newest layout this version writes and reads.
const FORMAT_VERSION: u32 = 1;
/// Written by [`RealDisk`], which holds the folder for us.
const LOCK_FILE: &str = "LOCK";

/// Why a folder was refused. Nothing in it was changed.
#[derive(Debug, Error)]
pub(crate) enum DataFolderError {
    #[error(transparent)]
    Unusable(#[from] OpenDiskError),
    #[error(
        "{} is not empty and is not a hulse data folder (no {FORMAT_FILE} file); choose an empty folder with --data-dir",
        root.display()
    )]
    Foreign { root: PathBuf },
    #[error(
        "the data folder {} has format version {found}, this version of hulse reads up to {FORMAT_VERSION}; \
         run the newer hulse that wrote it",
        root.display()
    )]
    Newer { root: PathBuf, found: u32 },
    #[error("cannot use the data folder {}", root.display())]
    Io { root: PathBuf, source: io::Error },
}

/// Takes the folder for this process, creating it if needed. With `wipe`, what a former run left is removed first; a
/// folder that is not ours is never wiped.
pub(crate) fn open(root: &Path, wipe: bool) -> Result<Arc<RealDisk>, DataFolderError> {
    let io = |source| DataFolderError::Io { root: root.to_owned(), source };
    check_format(root)?;
    let disk = RealDisk::open(root)?;
    if wipe {
        remove_all(root).map_err(io)?;
    }
    write_format(root).map_err(io)?;
    Ok(Arc::new(disk))
}

fn check_format(root: &Path) -> Result<(), DataFolderError> {
    let io = |source| DataFolderError::Io { root: root.to_owned(), source };
    match fs::read(root.join(FORMAT_FILE)) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let version = text.strip_prefix(FORMAT_NAME).and_then(|rest| rest.trim().parse().ok());
            match version {
                Some(found) if found > FORMAT_VERSION => Err(DataFolderError::Newer { root: root.to_owned(), found }),
                Some(_) => Ok(()),
                None => Err(DataFolderError::Foreign { root: root.to_owned() }),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // The lock file alone is what a first start leaves that was killed before it wrote the format.
            let names = match fs::read_dir(root) {
                Ok(names) => names,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(io(error)),
            };
            let mut names = names.map(|entry| entry.map(|entry| entry.file_name()));
            let ours = names.all(|name| {
                name.is_ok_and(|name| name == LOCK_FILE || name.to_string_lossy().starts_with(FORMAT_FILE))
            });
            if ours { Ok(()) } else { Err(DataFolderError::Foreign { root: root.to_owned() }) }
        }
        Err(error) => Err(io(error)),
    }
}

/// The format file appears whole or not at all, and before anything else in the folder.
fn write_format(root: &Path) -> io::Result<()> {
    let path = root.join(FORMAT_FILE);
    if path.exists() {
        return Ok(());
    }
    let new = root.join(format!("{FORMAT_FILE}.new"));
    let mut file = File::create(&new)?;
    writeln!(file, "{FORMAT_NAME} {FORMAT_VERSION}")?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(root)?.sync_all()
}

fn remove_all(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        // The format stays to the end: a wipe that is cut short must leave a folder that is still known as ours.
        if entry.file_name() == LOCK_FILE || entry.file_name() == FORMAT_FILE {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    match fs::remove_file(root.join(FORMAT_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_refused_until_the_first_lets_go() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path(), false).unwrap();
        assert!(matches!(open(folder.path(), false), Err(DataFolderError::Unusable(OpenDiskError::InUse { .. }))));
        drop(first);
        open(folder.path(), false).unwrap();
    }

    #[test]
    fn foreign_and_newer_folders_are_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.tex"), "x").unwrap();
        assert!(matches!(open(folder.path(), true), Err(DataFolderError::Foreign { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FORMAT_FILE), "hulse data folder 7\n").unwrap();
        assert!(matches!(open(folder.path(), true), Err(DataFolderError::Newer { found: 7, .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn wiping_removes_what_a_former_run_left() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path(), false).unwrap());
        fs::create_dir(folder.path().join("log")).unwrap();
        fs::write(folder.path().join("log/0.seg"), "x").unwrap();
        drop(open(folder.path(), true).unwrap());
        assert!(!folder.path().join("log").exists());
    }
}
