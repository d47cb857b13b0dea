//! `kaa install`: brings this executable into another container's image, by way of a shared volume.

use super::Error;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The running executable, however it was called and even if its file has been replaced since.
const SELF: &str = "/proc/self/exe";

/// Copies this executable into a directory, for an initContainer that brings it into any database image.
#[derive(Clone, Debug, clap::Args)]
pub struct InstallArgs {
    /// Where to: it becomes DIR/kaa. The directory is made if it is missing.
    #[arg(value_name = "DIR", env = "KAA_INSTALL_DIR")]
    pub directory: PathBuf,
}

/// Installs, and gives the exit code.
pub async fn run(args: InstallArgs) -> Result<i32, Error> {
    let target = args.directory.join("kaa");
    let bytes = copy(&args.directory, &target).map_err(|source| Error::Install { path: target.clone(), source })?;
    println!("Installed kaa {} as {} ({bytes} bytes).", env!("CARGO_PKG_VERSION"), target.display());
    Ok(0)
}

/// Puts the copy in place in one step, so that a container that starts meanwhile finds a whole executable or none.
fn copy(directory: &Path, target: &Path) -> io::Result<u64> {
    std::fs::create_dir_all(directory)?;
    // By process id, so that two that install into one volume do not write into each other's draft.
    let draft = directory.join(format!(".kaa.{}.tmp", std::process::id()));
    let copied = (|| {
        let mut file = File::create(&draft)?;
        let bytes = io::copy(&mut File::open(SELF)?, &mut file)?;
        file.set_permissions(Permissions::from_mode(0o755))?;
        file.sync_all()?;
        std::fs::rename(&draft, target)?;
        Ok(bytes)
    })();
    if copied.is_err() {
        // What is left over of a failure is only in the way; the failure itself is what is told.
        let _ = std::fs::remove_file(&draft);
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_whole_executable_and_can_be_repeated() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("bin");
        let target = directory.join("kaa");
        for _ in 0..2 {
            let bytes = copy(&directory, &target).unwrap();
            let found = std::fs::metadata(&target).unwrap();
            assert_eq!((bytes, 0o755), (found.len(), found.permissions().mode() & 0o777));
        }
        assert_eq!(1, std::fs::read_dir(&directory).unwrap().count(), "no draft stays");
    }
}
