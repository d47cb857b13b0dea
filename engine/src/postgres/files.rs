//! Files that the server reads: written so that they are there in whole, or as before, whatever happens to the machine.

use super::error::Error;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, fchown};
use std::path::Path;

/// User and group id of the server, if they are not the wrapper's own.
pub(super) type Owner = Option<(u32, u32)>;

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error + use<'_> {
    |source| Error::File { path: path.to_owned(), source }
}

/// Replaces a file durably. Only the server's user reads it.
pub(super) fn replace(path: &Path, text: &[u8], owner: Owner) -> Result<(), Error> {
    write(path, text, owner, true)
}

/// Replaces a file that is written again before each start: it need not outlive the machine, and waits for no disk.
pub(super) fn swap(path: &Path, text: &[u8], owner: Owner) -> Result<(), Error> {
    write(path, text, owner, false)
}

fn write(path: &Path, text: &[u8], owner: Owner, lasts: bool) -> Result<(), Error> {
    let write = || -> io::Result<()> {
        let draft = path.with_added_extension("new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&draft)?;
        if let Some((user, group)) = owner {
            fchown(&file, Some(user), Some(group))?;
        }
        file.write_all(text)?;
        if lasts {
            file.sync_all()?;
        }
        std::fs::rename(&draft, path)?;
        if lasts { sync(path.parent().unwrap_or(Path::new("/"))) } else { Ok(()) }
    };
    write().map_err(failed(path))
}

/// Makes a file durable, or the names in a directory.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes a file or a directory with all in it, durably, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    let removed =
        if path.is_dir() && !path.is_symlink() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Ok(()) => sync(path.parent().unwrap_or(Path::new("/"))).map_err(failed(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(path)(error)),
    }
}

/// Makes a directory that only the server's user can enter, or makes one such.
pub(super) fn make_directory(path: &Path, owner: Owner) -> Result<(), Error> {
    let make = || -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o700))?;
        owner.map_or(Ok(()), |(user, group)| chown(path, Some(user), Some(group)))
    };
    make().map_err(failed(path))
}

/// Closes a file to all but its user, if it is there. A volume's group is given all files at each mount, and neither libpq nor PostgreSQL uses
/// a secret that a group can read.
pub(super) fn close_to_others(path: &Path) {
    let close = || -> io::Result<()> {
        // The server's user may have put a link there.
        let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(path)?;
        let is_open = file.metadata()?.permissions().mode() & 0o077 != 0;
        if is_open { file.set_permissions(PermissionsExt::from_mode(0o600)) } else { Ok(()) }
    };
    match close() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "others may read this file, so that the server may not use it");
        }
        _ => {}
    }
}

/// A file's text; `None` if there is none.
pub(super) fn read(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { path: path.to_owned(), source }),
    }
}

/// A value in a mounted Secret. Editors end a file with a line feed, which is no part of it.
pub(super) fn secret(directory: &Path, name: &str) -> Result<String, Error> {
    let path = directory.join(name);
    let text = std::fs::read_to_string(&path).map_err(|source| Error::File { path: path.clone(), source })?;
    let value = text.trim_end_matches(['\n', '\r']).to_owned();
    if value.is_empty() || value.contains(['\0', '\n', '\r']) {
        return Err(Error::Unusable(format!("{} is empty, or has more than one line", path.display())));
    }
    Ok(value)
}
