//! The name and the password of the replication role, from its Secret. The last good ones stay on the volume: a Secret that lacks a file
//! must not keep a primary from changing its rule or from closing.

use super::configuration::SUPERUSER;
use super::error::Error;
use super::files::{self, secret};
use super::{Server, Settings};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The replication role.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Replication {
    pub name: String,
    pub password: String,
}

/// Passwords are not shown.
impl std::fmt::Debug for Replication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replication").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What is known of the replication role.
pub(super) struct Known {
    /// `None` if the Secret is of no use and no earlier one was kept.
    pub role: Option<Replication>,
    /// Why this is not what is mounted.
    pub complaint: Option<String>,
}

impl Settings {
    /// The file with the replication role's password, as libpq reads it.
    pub(super) fn passfile(&self) -> PathBuf {
        self.conf().join("replication.pass")
    }

    /// The name and the password that were good last, each on a line. One file: they belong together.
    fn kept_replication(&self) -> PathBuf {
        self.conf().join("replication.last")
    }

    /// Whether standbys can be let connect.
    ///
    /// # Errors
    /// If the Secret of the replication role is of no use, and the volume has no earlier one. A primary would learn that only after it
    /// was promoted.
    pub fn check_replication(&self) -> Result<(), Error> {
        needed(known(self)).map(drop)
    }
}

impl Server {
    /// As [`Settings::check_replication`].
    pub(super) fn check_replication(&self) -> Result<(), Error> {
        self.settings.check_replication()
    }
}

/// Whether a role of this name exists in every database cluster, or may come to.
pub(super) fn is_reserved(name: &str) -> bool {
    name == SUPERUSER || name.starts_with("pg_") || ["public", "none"].contains(&name)
}

fn mounted(settings: &Settings) -> Result<Replication, Error> {
    let directory = &settings.replication;
    let role = Replication { name: secret(directory, "username")?, password: secret(directory, "password")? };
    if is_reserved(&role.name) {
        let path = directory.join("username");
        return Err(Error::Unusable(format!(
            "{}: {} is a reserved name: choose another one",
            path.display(),
            role.name
        )));
    }
    Ok(role)
}

/// The role that was kept. A file that cannot be read, or is not whole, is as none.
fn kept(settings: &Settings) -> Option<Replication> {
    let text = files::read(&settings.kept_replication()).ok()??;
    let (name, password) = text.strip_suffix('\n')?.split_once('\n')?;
    Some(Replication { name: name.to_owned(), password: password.to_owned() })
}

/// What is mounted, or was good last.
pub(super) fn known(settings: &Settings) -> Known {
    let why = match mounted(settings) {
        Ok(role) => return Known { role: Some(role), complaint: None },
        Err(why) => why,
    };
    let role = kept(settings);
    let meanwhile = if role.is_some() {
        "the last good name and password of the replication role stay. Bring it back into the Secret"
    } else {
        "no standby can connect, and this server does not become the primary, before the Secret of the replication role has a username and a \
         password"
    };
    Known { role, complaint: Some(format!("{why}: {meanwhile}")) }
}

/// The same; what is good is kept on the volume, and the password is where libpq reads it.
///
/// # Errors
/// If it cannot be written.
pub(super) fn keep(settings: &Settings) -> Result<Known, Error> {
    // A step and a reading may do it at once, and the drafts of the files have one name.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known(settings);
    if let Some(Replication { name, password }) = &known.role {
        replace(settings, settings.kept_replication(), &format!("{name}\n{password}\n"))?;
        let escaped = password.replace('\\', "\\\\").replace(':', "\\:");
        replace(settings, settings.passfile(), &format!("*:*:*:*:{escaped}\n"))?;
    }
    Ok(known)
}

/// The role, for what cannot be done without.
///
/// # Errors
/// If there is none.
pub(super) fn needed(known: Known) -> Result<Replication, Error> {
    let Known { role, complaint } = known;
    role.ok_or_else(|| Error::Unusable(complaint.unwrap_or_default()))
}

/// Writes a file if its text is another one.
fn replace(settings: &Settings, path: PathBuf, text: &str) -> Result<(), Error> {
    let is_same = files::read(&path).is_ok_and(|before| before.as_deref() == Some(text));
    if is_same { Ok(()) } else { files::replace(&path, text.as_bytes(), settings.user) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn directories() -> (TempDir, TempDir, Settings) {
        let (secret, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let settings = Settings { replication: secret.path().to_owned(), ..Settings::of_test(volume.path()) };
        std::fs::create_dir(settings.conf()).unwrap();
        (secret, volume, settings)
    }

    fn mount(secret: &TempDir, name: &str, password: &str) {
        std::fs::write(secret.path().join("username"), name).unwrap();
        std::fs::write(secret.path().join("password"), password).unwrap();
    }

    #[test]
    fn the_last_good_name_and_password_stay_together() {
        let (secret, _volume, settings) = directories();
        mount(&secret, "replicator\n", "a:b\\c\n");
        let good = keep(&settings).unwrap();
        assert_eq!(good.complaint, None);
        for (file, wrong) in [("username", None), ("password", None), ("password", Some("")), ("username", Some("kaa"))]
        {
            mount(&secret, "other", "another");
            match wrong {
                None => std::fs::remove_file(secret.path().join(file)).unwrap(),
                Some(text) => std::fs::write(secret.path().join(file), text).unwrap(),
            }
            let known = keep(&settings).unwrap();
            assert_eq!(known.role, good.role, "{file}");
            let complaint = known.complaint.unwrap();
            let path = secret.path().join(file).display().to_string();
            assert!(complaint.contains(&path) && complaint.contains("last good"), "{complaint}");
            assert_eq!(std::fs::read_to_string(settings.passfile()).unwrap(), "*:*:*:*:a\\:b\\\\c\n");
        }
        mount(&secret, "other", "another");
        let known = keep(&settings).unwrap();
        assert_eq!((known.role.unwrap().name.as_str(), known.complaint), ("other", None));
        assert_eq!(std::fs::read_to_string(settings.passfile()).unwrap(), "*:*:*:*:another\n");
    }

    #[test]
    fn without_any_the_file_and_the_way_out_are_named() {
        let (secret, _volume, settings) = directories();
        mount(&secret, "replicator", "secret");
        std::fs::remove_file(secret.path().join("password")).unwrap();
        let known = known(&settings);
        assert_eq!(known.role, None);
        let why = settings.check_replication().unwrap_err().to_string();
        assert_eq!(Some(&why), known.complaint.as_ref());
        assert!(why.contains("/password cannot be used: No such file"), "{why}");
        assert!(why.ends_with("before the Secret of the replication role has a username and a password"), "{why}");
        std::fs::write(settings.kept_replication(), "half").unwrap();
        assert!(settings.check_replication().is_err(), "what is not whole is none");
    }
}
