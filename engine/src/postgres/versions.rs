//! Which releases of PostgreSQL a server may be of.

use super::error::Error;
use super::processes::SERVER;
use std::fmt;
use std::path::Path;
use std::process::Command;

/// The first minor release of each major version in which a server that has just started knows that commits have to wait: before,
/// its sessions may look at the rule sooner than its checkpointer has, and acknowledge what no standby has. A later major version has it from
/// its first release on.
const LEAST: [(u32, u32); 4] = [(15, 13), (16, 9), (17, 5), (18, 0)];

/// A release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub major: u32,
    /// `None` before the first release: of a beta, say.
    minor: Option<u32>,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.minor {
            Some(minor) => write!(f, "{}.{minor}", self.major),
            None => write!(f, "{} before its first release", self.major),
        }
    }
}

impl Version {
    /// That in the output of a program with `--version`.
    pub fn parse(printed: &str) -> Option<Self> {
        let is_digit = |it: char| it.is_ascii_digit();
        let version = printed.split_whitespace().find(|word| word.starts_with(is_digit))?;
        let (major, rest) = version.split_once('.').unwrap_or((version, ""));
        let digits = |text: &str| text.split(|it| !is_digit(it)).next()?.parse().ok();
        // `17beta1` has no minor number, and `18.1` has no other one.
        Some(Self {
            major: digits(major)?,
            minor: digits(rest).filter(|_| major.bytes().all(|it| it.is_ascii_digit())),
        })
    }

    /// The release that is needed instead; `None` if this one will do.
    fn needs(self) -> Option<Self> {
        let (oldest, newest) = (LEAST[0], LEAST[LEAST.len() - 1]);
        let least = LEAST.into_iter().find(|(major, _)| *major == self.major);
        let (major, minor) = match least {
            Some(least) => least,
            None if self.major > newest.0 => return None,
            None => oldest,
        };
        let will_do = self.major == major && self.minor.is_some_and(|own| own >= minor);
        (!will_do).then_some(Self { major, minor: Some(minor) })
    }
}

/// The major version of the programs in a directory, if they are of a release that Kaa supports.
///
/// # Errors
/// If not, with a sentence for the operator; if they cannot be executed.
pub fn check_programs(bin: &Path) -> Result<u32, Error> {
    let program = bin.join(SERVER);
    let output = Command::new(&program).arg("--version").env("LC_ALL", "C").current_dir("/").output();
    let output = output.map_err(|source| Error::Execute { program: program.clone(), source })?;
    judge(bin, &String::from_utf8_lossy(&output.stdout))
}

fn judge(bin: &Path, printed: &str) -> Result<u32, Error> {
    let Some(version) = Version::parse(printed) else {
        return Err(Error::Unusable(format!(
            "{}/{SERVER} --version prints {:?}, which names no version: name the directory of the programs of a PostgreSQL server",
            bin.display(),
            printed.trim()
        )));
    };
    version.needs().map_or(Ok(version.major), |needed| Err(refused(bin, version, needed)))
}

fn refused(bin: &Path, version: Version, needed: Version) -> Error {
    let why = if version.major == needed.major {
        format!("Kaa needs {needed} at least: just after the start of an older one, commits may not wait for standbys")
    } else {
        format!("the oldest major version that Kaa supports is {}", needed.major)
    };
    Error::Unusable(format!(
        "the programs in {} are PostgreSQL {version}, and {why}. Use an image, or a package, with PostgreSQL {needed} or later",
        bin.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_prints_is_a_release() {
        let of = |text: &str| Version::parse(text).map(|it| (it.major, it.minor));
        assert_eq!(of("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n"), Some((15, Some(14))));
        assert_eq!(of("postgres (PostgreSQL) 18.1"), Some((18, Some(1))));
        assert_eq!(of("pg_controldata (PostgreSQL) 17beta1"), Some((17, None)));
        assert_eq!(of("postgres (PostgreSQL) 19devel"), Some((19, None)));
        assert_eq!(of("postgres (EnterpriseDB Advanced Server) 16.9.0"), Some((16, Some(9))));
        assert_eq!(of("postgres (PostgreSQL) 9.6.24"), Some((9, Some(6))));
        assert_eq!([of(""), of("postgres")], [None, None]);
    }

    #[test]
    fn an_older_release_is_told_what_is_needed_and_a_newer_one_will_do() {
        let needs = |major, minor| Version { major, minor }.needs().map(|it| it.to_string());
        for (major, minor) in LEAST {
            assert_eq!(needs(major, Some(minor)), None);
            assert_eq!(needs(major, Some(minor + 1)), None);
            assert_eq!(needs(major, None), Some(format!("{major}.{minor}")), "a beta");
        }
        assert_eq!(needs(15, Some(12)).as_deref(), Some("15.13"));
        assert_eq!(needs(17, Some(4)).as_deref(), Some("17.5"));
        assert_eq!(needs(14, Some(99)).as_deref(), Some("15.13"));
        assert_eq!([needs(19, Some(0)), needs(19, None)], [None, None]);
    }

    #[test]
    fn programs_of_an_older_release_are_refused_with_the_way_out() {
        let said = |printed: &str| judge(Path::new("/pg/bin"), printed).map_err(|error| error.to_string());
        assert_eq!(said("postgres (PostgreSQL) 15.13\n"), Ok(15));
        let old = said("postgres (PostgreSQL) 16.4\n").unwrap_err();
        assert!(old.starts_with("the programs in /pg/bin are PostgreSQL 16.4, and Kaa needs 16.9 at least"), "{old}");
        assert!(old.ends_with("Use an image, or a package, with PostgreSQL 16.9 or later"), "{old}");
        let older = said("postgres (PostgreSQL) 14.20\n").unwrap_err();
        assert!(older.contains("the oldest major version that Kaa supports is 15"), "{older}");
        assert!(said("nothing\n").unwrap_err().contains("/pg/bin/postgres --version prints \"nothing\""));
        assert!(matches!(check_programs(Path::new("/no/such/directory")), Err(Error::Execute { .. })));
    }
}
