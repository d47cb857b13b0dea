//! A volume whose power can be cut, and the process in which it is mounted.
//!
//! The volume is an ext4 on a loop device. The cut is ext4's own shutdown without a flush of its journal: from that moment
//! nothing more is written to the device, what was not synced stays in memory, and every sync fails. Mounted again, it is
//! what a machine finds after a loss of power: the device as it was, and its journal replayed.
//!
//! A device's own cache is not played: what was written to it stays. So a sync that is missing is found, and not one that
//! the kernel does not pass on.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in the process that may mount.
const APART: &str = "KAA_TEST_APART";
/// Bytes of a volume. The file has no more than was written.
const SIZE: u64 = 2 << 30;
/// `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`, which needs no program that may not be installed.
const SHUTDOWN: &str =
    "open(my $it, '<', $ARGV[0]) or die $!; my $how = pack('L', 2); ioctl($it, 0x8004587d, $how) or die $!;";

/// Runs this test again in namespaces of its own, and gives whether this is that run. Its mounts and processes end with
/// it, however it ends, and a loop device that is not mounted is none any more.
///
/// Only root can do so; where that is not possible it is said, and the test does not run.
pub fn apart(test: &str) -> bool {
    if std::env::var_os(APART).is_some() {
        return true;
    }
    if testkit::postgres().is_none() {
        return false;
    }
    if !super::lab::is_root() {
        testkit::postgres::not_run("only root can mount a volume and cut its power");
        return false;
    }
    let mut command = Command::new("unshare");
    // The shell stays and reaps what the test leaves behind. What is in memory goes as well.
    let script = "mount -t tmpfs none /dev/shm && \"$@\"; exit $?";
    let words = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh"];
    command.args(words).arg(std::env::current_exe().unwrap()).env(APART, "1");
    command.args(["--exact", "--nocapture", &format!("postgres::real::{test}")]);
    let output = command.output().unwrap_or_else(|error| panic!("unshare, of util-linux: {error}"));
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprintln!("{said}");
    assert!(output.status.success(), "{:?}, signal {:?}", output.status.code(), output.status.signal());
    assert!(said.contains("1 passed"), "the test was not found: {test}");
    false
}

fn run(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).output().map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{program} {words:?}: {}", text(&output.stderr)))
    }
}

/// A volume, mounted until this is dropped.
pub struct Device {
    backing: PathBuf,
    at: PathBuf,
}

/// Cuts the power of a device; it may be done from a thread of its own.
pub fn cut(at: &Path) {
    run("perl", &["-e", SHUTDOWN, at.to_str().unwrap()]).unwrap();
}

/// Has a device take no writes, or take them again.
pub fn freeze(at: &Path, frozen: bool) {
    run("fsfreeze", &[if frozen { "--freeze" } else { "--unfreeze" }, at.to_str().unwrap()]).unwrap();
}

impl Device {
    /// Makes a volume in a file, and mounts it.
    pub fn new(backing: PathBuf, at: PathBuf) -> Self {
        std::fs::File::create(&backing).unwrap().set_len(SIZE).unwrap();
        run("mkfs.ext4", &["-q", "-F", backing.to_str().unwrap()]).unwrap();
        let device = Self { backing, at };
        device.mount();
        device
    }

    fn mount(&self) {
        let name = run("losetup", &["--find", "--show", self.backing.to_str().unwrap()]).unwrap();
        let mounted = run("mount", &[&name, self.at.to_str().unwrap()]);
        // While it is mounted this says that it is to be given up with the mount.
        run("losetup", &["--detach", &name]).unwrap();
        mounted.unwrap();
    }

    /// Where it is mounted.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// The power is back. No process uses the volume.
    pub fn restore(&self) {
        run("umount", &[self.at.to_str().unwrap()]).unwrap();
        self.mount();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Also while a test fails and its processes still run.
        let _ = run("umount", &["--lazy", self.at.to_str().unwrap_or_default()]);
    }
}
