//! `kaa install`: brings the wrapper into another container's image, by way of a shared volume.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The running executable, however it was called and even if its file has been replaced since.
const SELF: &str = "/proc/self/exe";

/// The wrapper alone, which an image has beside `kaa`.
const WRAPPER: &str = "kaa-engine";

/// Why nothing was installed.
#[derive(Debug, thiserror::Error)]
#[error("cannot install as {}: {source}", path.display())]
pub struct Error {
    /// Where to.
    path: PathBuf,
    /// What went wrong.
    source: io::Error,
}

impl Error {
    /// EX_CANTCREAT of sysexits.h.
    pub fn exit_code(&self) -> i32 {
        73
    }
}

/// Copies the wrapper of database engines into a directory, for an initContainer that brings it into any database image.
#[derive(Clone, Debug, clap::Args)]
pub struct InstallArgs {
    /// Where to: the wrapper becomes DIR/kaa-engine, and DIR/kaa a link to it that accepts `engine`. Where no kaa-engine is
    /// beside this executable, as after `cargo run`, this executable becomes DIR/kaa. The directory is made if it is missing.
    #[arg(value_name = "DIR", env = "KAA_INSTALL_DIR")]
    pub directory: PathBuf,
}

/// Installs, and gives the exit code.
pub async fn run(args: InstallArgs) -> Result<i32, Error> {
    let beside = std::env::current_exe().ok().and_then(|kaa| Some(kaa.parent()?.join(WRAPPER)));
    let installed = install(&args.directory, beside.filter(|wrapper| wrapper.exists()).as_deref())?;
    println!("Installed kaa {} as {installed}.", crate::VERSION);
    Ok(0)
}

/// Installs the wrapper, or this executable where there is none; tells as what.
fn install(directory: &Path, wrapper: Option<&Path>) -> Result<String, Error> {
    let kaa = directory.join("kaa");
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error { path, source }
    };
    let Some(wrapper) = wrapper else {
        let bytes = copy(Path::new(SELF), &kaa).map_err(failed(&kaa))?;
        return Ok(format!("{} ({bytes} bytes: the whole agent, since {WRAPPER} is not beside it)", kaa.display()));
    };
    let target = directory.join(WRAPPER);
    let bytes = copy(wrapper, &target).map_err(failed(&target))?;
    put(&kaa, |draft| symlink(WRAPPER, draft)).map_err(failed(&kaa))?;
    Ok(format!("{} ({bytes} bytes), with the link kaa", target.display()))
}

/// An executable copy.
fn copy(from: &Path, target: &Path) -> io::Result<u64> {
    put(target, |draft| {
        let mut file = File::create(draft)?;
        let bytes = io::copy(&mut File::open(from)?, &mut file)?;
        file.set_permissions(Permissions::from_mode(0o755))?;
        file.sync_all()?;
        Ok(bytes)
    })
}

/// Puts what `make` makes in place in one step, so that a container that starts meanwhile finds it whole or as it was.
fn put<T>(target: &Path, make: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let (Some(directory), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    std::fs::create_dir_all(directory)?;
    // By process id, so that two that install into one volume do not write into each other's draft.
    let draft = directory.join(format!(".{}.{}.tmp", name.display(), std::process::id()));
    let made = make(&draft).and_then(|made| std::fs::rename(&draft, target).map(|()| made));
    if made.is_err() {
        // What is left over of a failure is only in the way; the failure itself is what is told.
        let _ = std::fs::remove_file(&draft);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_wrapper_the_copy_is_whole_executable_and_can_be_repeated() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("bin");
        for _ in 0..2 {
            let told = install(&directory, None).unwrap();
            let found = std::fs::metadata(directory.join("kaa")).unwrap();
            assert!(told.contains(&found.len().to_string()) && told.contains("the whole agent"), "{told}");
            assert_eq!(0o755, found.permissions().mode() & 0o777);
        }
        assert_eq!(1, std::fs::read_dir(&directory).unwrap().count(), "no draft stays");
    }

    #[test]
    fn the_wrapper_takes_the_place_of_the_whole_agent() {
        let root = tempfile::tempdir().unwrap();
        let (directory, wrapper) = (root.path().join("bin"), root.path().join("wrapper"));
        std::fs::write(&wrapper, "the wrapper").unwrap();
        install(&directory, None).unwrap();
        for _ in 0..2 {
            install(&directory, Some(&wrapper)).unwrap();
            assert_eq!("the wrapper", std::fs::read_to_string(directory.join("kaa")).unwrap());
            assert_eq!(Path::new(WRAPPER), std::fs::read_link(directory.join("kaa")).unwrap());
        }
        assert_eq!(2, std::fs::read_dir(&directory).unwrap().count(), "no draft stays");
    }

    #[test]
    fn where_nothing_can_be_made_the_error_names_the_file() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        let error = install(&root.path().join("file"), None).unwrap_err().to_string();
        assert!(error.contains("file/kaa"), "{error}");
    }
}
