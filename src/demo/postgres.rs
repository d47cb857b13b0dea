//! The database of `manifests/postgres` on this machine: which programs its servers are, as which user they run, and where clients
//! find them.
//!
//! A server's pod is a loopback address here, and its volume a directory of this machine. PostgreSQL does not run as root: if this
//! process does, the servers run as another user, who has to get to the directories.

use super::manifests::{self, Part, change};
use embedded_kubernetes::object;
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::Store;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{User, geteuid};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The name of the database, its StatefulSet and its Service.
pub const DATABASE: &str = "shop";
/// How many servers it has.
pub const SERVERS: usize = 3;
/// Their port.
const PORT: u16 = 5432;
/// Where Debian's packages are, each in a directory named for its major version.
const PACKAGES: &str = "/usr/lib/postgresql";
/// The programs that the wrapper runs.
const PROGRAMS: [&str; 6] = ["postgres", "initdb", "pg_controldata", "pg_basebackup", "pg_rewind", "pg_waldump"];
/// The user and group of the servers if this process is root and there is no user `postgres`: Debian's user without any files.
const NO_FILES: (u32, u32) = (65534, 65534);
/// The most bytes of a socket's path.
const SOCKET_PATH: usize = 107;
/// What stands behind the directory of the Kubernetes in the path of a server's socket; the zeros are the UID of a claim.
const SOCKET: &str = "/volumes/00000000-0000-0000-0000-000000000000/run/.s.PGSQL.5432";
/// The length of passwords: 192 bits cannot be guessed.
const PASSWORD_BYTES: usize = 24;
/// The permission to pass through a directory, or to execute a file, for users that are neither its owner nor of its group.
const PASS: u32 = 0o001;

/// Why PostgreSQL cannot run here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is none.
    #[error(
        "PostgreSQL is not installed: {PACKAGES}/*/bin is missing. Install the Debian package postgresql-15, or name the directory of its programs: --postgres BINDIR"
    )]
    NotInstalled,
    /// A directory without it.
    #[error("{} has no {program}: name the directory with all programs of a PostgreSQL server, as in {PACKAGES}/15/bin", bin.display())]
    NoProgram {
        /// The directory.
        bin: PathBuf,
        /// What is missing.
        program: &'static str,
    },
    /// The system takes no path of that length.
    #[error(
        "{} is too long a path: a server's socket below it would have {} bytes, and the system takes {SOCKET_PATH}. Give a --dir of at most {} bytes",
        .0.display(), .0.as_os_str().len() + SOCKET.len(), SOCKET_PATH - SOCKET.len()
    )]
    TooLong(PathBuf),
    /// A directory that the servers' user cannot pass.
    #[error("user {user}, as whom the servers run, cannot pass through {}: give another directory, or `chmod o+x` this one", path.display())]
    Closed {
        /// The user's id.
        user: u32,
        /// The directory.
        path: PathBuf,
    },
    /// A directory that cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Directory {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No passwords.
    #[error("the system gives no random bytes for passwords")]
    Random,
    /// Programs that the wrapper would refuse.
    #[error("{0}. Another directory of programs: --postgres BINDIR")]
    Unsupported(Box<kaa_engine::postgres::Error>),
    /// Our own manifests.
    #[error(transparent)]
    Manifests(#[from] manifests::Error),
}

/// A PostgreSQL that is installed on this machine.
#[derive(Clone, Debug)]
pub struct Installed {
    bin: PathBuf,
    /// User and group id of the servers, if this process is root.
    user: Option<(u32, u32)>,
}

/// The role of the application, and the one that standbys connect as.
pub struct Roles {
    application: String,
    replication: String,
}

impl Installed {
    /// The one in the directory that was asked for, or the newest one of Debian's packages.
    ///
    /// # Errors
    /// If there is none, or one that Kaa does not support.
    pub fn find(asked: Option<&Path>) -> Result<Self, Error> {
        let bin = match asked {
            Some(bin) => {
                std::path::absolute(bin).map_err(|source| Error::Directory { path: bin.to_owned(), source })?
            }
            None => newest(Path::new(PACKAGES)).ok_or(Error::NotInstalled)?,
        };
        if let Some(program) = PROGRAMS.into_iter().find(|program| !bin.join(program).is_file()) {
            return Err(Error::NoProgram { bin, program });
        }
        kaa_engine::postgres::check_programs(&bin).map_err(|source| Error::Unsupported(Box::new(source)))?;
        let of_server = || match User::from_name("postgres") {
            Ok(Some(user)) => (user.uid.as_raw(), user.gid.as_raw()),
            Ok(None) | Err(_) => NO_FILES,
        };
        Ok(Self { bin, user: geteuid().is_root().then(of_server) })
    }

    /// Prepares a directory for a Kubernetes whose pods run these servers. If they run as another user, everything that this process
    /// makes from now on can be passed through and executed by others, and neither listed nor read.
    ///
    /// # Errors
    /// If the directory's path is too long, or closed to the servers' user.
    pub fn prepare(&self, dir: &Path) -> Result<(), Error> {
        let path = dir.canonicalize().map_err(|source| Error::Directory { path: dir.to_owned(), source })?;
        if path.as_os_str().len() + SOCKET.len() > SOCKET_PATH {
            return Err(Error::TooLong(path));
        }
        let Some((user, _)) = self.user else { return Ok(()) };
        for on_the_way in path.ancestors().skip(1).chain(self.bin.ancestors()) {
            if mode(on_the_way)? & PASS == 0 {
                return Err(Error::Closed { user, path: on_the_way.to_owned() });
            }
        }
        umask(Mode::from_bits_truncate(0o066));
        // The second one is there if this is the directory of an earlier demo.
        for own in [path.clone(), path.join("volumes")].into_iter().filter(|own| own.exists()) {
            let open = Permissions::from_mode(mode(&own)? | PASS);
            std::fs::set_permissions(&own, open).map_err(|source| Error::Directory { path: own, source })?;
        }
        Ok(())
    }

    /// The objects of the database, with what is different on this machine: there are no images, each server has an address of its
    /// own, and the user of the manifests need not exist.
    ///
    /// # Errors
    /// If the manifests cannot be read.
    pub fn objects(&self, namespace: &str, roles: &Roles) -> Result<Vec<Value>, Error> {
        let mut objects = roles.secrets(namespace);
        objects.extend(manifests::objects(Part::Postgres, namespace)?);
        objects.extend(manifests::objects(Part::Routing, namespace)?);
        let image = manifests::image()?;
        change(&mut objects, "StatefulSet", DATABASE, |set| {
            let server = &mut set["spec"]["template"]["spec"]["containers"][0];
            server["image"] = json!(image);
            let Some(env) = server["env"].as_array_mut() else { return };
            env.retain(|variable| variable["name"] != "KAA_POSTGRES_BIN");
            env.push(json!({"name": "KAA_POSTGRES_BIN", "value": self.bin.display().to_string()}));
            env.push(json!({"name": "KAA_POSTGRES_LISTEN", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}));
            if let Some((user, group)) = self.user {
                env.push(json!({"name": "KAA_POSTGRES_USER", "value": format!("{user}:{group}")}));
            }
        });
        Ok(objects)
    }
}

impl Roles {
    /// New ones, with passwords that were never used.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { application: password()?, replication: password()? })
    }

    fn secrets(&self, namespace: &str) -> Vec<Value> {
        let secret = |of: &str, data: Value| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "stringData": data,
                "metadata": {"name": format!("{DATABASE}-{of}"), "namespace": namespace, "labels": {"database": DATABASE}},
            })
        };
        vec![
            secret("application", json!({"username": DATABASE, "password": self.application, "dbname": DATABASE})),
            secret("replication", json!({"username": "replication", "password": self.replication})),
        ]
    }

    /// Where the application finds the primary among the servers at these addresses, or the one server: a URL of libpq.
    pub fn url(&self, addresses: &[&str]) -> String {
        let hosts: Vec<String> = addresses.iter().map(|address| format!("{address}:{PORT}")).collect();
        let url = self.url_at(&hosts.join(","));
        if hosts.len() == 1 { url } else { format!("{url}?target_session_attrs=read-write") }
    }

    /// A URL of libpq for these hosts and ports.
    pub fn url_at(&self, hosts: &str) -> String {
        format!("postgresql://{DATABASE}:{}@{hosts}/{DATABASE}", self.application)
    }
}

/// The servers' pods in a namespace that have an address now, and these addresses, by name.
pub fn servers(store: &Store, namespace: &str) -> Vec<(String, String)> {
    let pods = store.list(Kind::Pod, Some(namespace)).filter(|pod| object::label(pod, "database") == Some(DATABASE));
    let placed = pods.map(|pod| (object::name(pod).to_owned(), object::text(pod, "/status/podIP").to_owned()));
    let mut placed: Vec<_> = placed.filter(|(_, address)| !address.is_empty()).collect();
    placed.sort();
    placed
}

/// The programs of the newest major version.
fn newest(packages: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(packages).ok()?.flatten();
    let majors = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let bin = |major: u32| packages.join(major.to_string()).join("bin");
    // Some packages bring tools only, as those of an extension do.
    majors.filter(|major| bin(*major).join("postgres").is_file()).max().map(bin)
}

/// In hexadecimal digits, which need no quoting in a URL.
fn password() -> Result<String, Error> {
    let mut bytes = [0; PASSWORD_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::Random)?;
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

fn mode(path: &Path) -> Result<u32, Error> {
    let metadata = path.metadata().map_err(|source| Error::Directory { path: path.to_owned(), source })?;
    Ok(metadata.permissions().mode())
}

#[cfg(test)]
mod tests {
    use super::{Error, Installed, PROGRAMS, Roles, SOCKET, SOCKET_PATH, newest};
    use serde_json::{Value, json};
    use std::path::{Path, PathBuf};

    fn install(bin: &Path) {
        std::fs::create_dir_all(bin).unwrap();
        PROGRAMS.iter().for_each(|program| std::fs::write(bin.join(program), "").unwrap());
    }

    #[test]
    fn the_newest_server_is_taken_and_an_absent_one_is_named() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(newest(root.path()), None);
        for major in ["9", "15", "common"] {
            install(&root.path().join(major).join("bin"));
        }
        std::fs::create_dir_all(root.path().join("17/bin")).unwrap();
        assert_eq!(newest(root.path()), Some(root.path().join("15/bin")), "17 has no server");
        assert!(Error::NotInstalled.to_string().contains("Debian package postgresql-15"));
        std::fs::remove_file(root.path().join("9/bin/initdb")).unwrap();
        let error = Installed::find(Some(&root.path().join("9/bin"))).unwrap_err();
        assert!(error.to_string().contains("9/bin has no initdb"), "{error}");
        // A program that says another version: one that was written just now may be busy when it is executed.
        let bin = root.path().join("15/bin");
        std::fs::remove_file(bin.join("postgres")).unwrap();
        std::os::unix::fs::symlink("/bin/echo", bin.join("postgres")).unwrap();
        let error = Installed::find(Some(&bin)).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert!(error.to_string().ends_with("Another directory of programs: --postgres BINDIR"), "{error}");
    }

    #[test]
    fn a_directory_whose_sockets_would_be_too_deep_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("d".repeat(SOCKET_PATH - SOCKET.len()));
        std::fs::create_dir(&deep).unwrap();
        let installed = Installed { bin: PathBuf::new(), user: None };
        let error = installed.prepare(&deep).unwrap_err();
        assert!(error.to_string().ends_with("Give a --dir of at most 44 bytes"), "{error}");
    }

    #[test]
    fn a_server_gets_the_programs_the_address_and_the_user_of_this_machine() {
        let roles = Roles { application: "secret".to_owned(), replication: String::new() };
        let installed = Installed { bin: "/pg/bin".into(), user: Some((7, 8)) };
        let objects = installed.objects("here", &roles).unwrap();
        let kinds: Vec<&Value> = objects.iter().map(|object| &object["kind"]).collect();
        assert_eq!(kinds, ["Secret", "Secret", "Service", "StatefulSet", "Service", "Service", "Role", "RoleBinding"]);
        let container = &objects[3]["spec"]["template"]["spec"]["containers"][0];
        let env = container["env"].as_array().unwrap();
        let of = |name: &str| env.iter().filter(|one| one["name"] == name).cloned().collect::<Vec<_>>();
        assert_eq!(of("KAA_POSTGRES_BIN"), [json!({"name": "KAA_POSTGRES_BIN", "value": "/pg/bin"})]);
        assert_eq!(of("KAA_POSTGRES_USER")[0]["value"], "7:8");
        assert_eq!(of("KAA_POSTGRES_LISTEN")[0]["valueFrom"]["fieldRef"]["fieldPath"], "status.podIP");
        // The pod outlasts the wrapper's patience, or the primary is killed while it hands over.
        let pod = &objects[3]["spec"]["template"]["spec"];
        assert_eq!((&pod["terminationGracePeriodSeconds"], &of("KAA_GRACE")[0]["value"]), (&json!(60), &json!("50")));
        assert_eq!(container["name"], of("KAA_CONTAINER")[0]["value"]);
    }

    #[test]
    fn clients_ask_all_servers_for_the_one_that_accepts_writes() {
        let roles = Roles { application: "secret".to_owned(), replication: String::new() };
        let all = "postgresql://shop:secret@127.1.1.2:5432,127.1.1.3:5432/shop?target_session_attrs=read-write";
        assert_eq!(roles.url(&["127.1.1.2", "127.1.1.3"]), all);
        assert_eq!(roles.url(&["127.1.1.2"]), "postgresql://shop:secret@127.1.1.2:5432/shop");
        let (one, other) = (Roles::new().unwrap(), Roles::new().unwrap());
        assert_ne!(one.application, other.application);
        assert_eq!(one.replication.len(), 48);
    }
}
