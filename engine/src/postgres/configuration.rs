//! The server's configuration. All of it is in `conf`, outside the data, so that neither a copy nor a rewind replaces
//! it.
//!
//! What must not change while the server runs is on the command line, out of reach of `ALTER SYSTEM`. What changes with
//! the role is in `kaa.conf` and takes effect by a reload.

use super::control_file;
use super::credentials::Known;
use super::error::Error;
use super::files;
use super::hba::{self, Admits, Own};
use super::messages::LINE_PREFIX;
use super::processes::SERVER;
use super::reading::space;
use super::{Settings, Source, certificates, credentials, sizes};
use kaa_core::domain::ids::ArchiveId;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The superuser that `initdb` makes, and that this wrapper is at the server.
pub(super) const SUPERUSER: &str = "kaa";
/// The rule under which no commit is released: no server connects under this name.
pub(super) const NONE: &str = "ANY 1 (kaa_none)";
/// What names of members and of their slots begin with.
pub(super) const PREFIX: &str = "kaa_";
/// What the user's own settings may change.
const DEFAULTS: &str = "\
max_connections = 100
shared_buffers = 128MB
dynamic_shared_memory_type = posix
max_standby_streaming_delay = 5s
synchronous_commit = on
";

impl Settings {
    /// The data.
    pub(super) fn pgdata(&self) -> PathBuf {
        self.directory.join("pgdata")
    }

    /// The directory of the Unix socket. All processes that are not the server's itself work in it.
    pub(super) fn run(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// The directory of the configuration.
    pub(super) fn conf(&self) -> PathBuf {
        self.directory.join("conf")
    }
}

/// What a reload changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Changeable {
    /// Who may connect.
    pub admits: Admits,
    /// `synchronous_standby_names`.
    pub rule: String,
    /// `primary_conninfo` and `primary_slot_name` of a standby that follows.
    pub follows: Option<(String, String)>,
}

impl Changeable {
    /// That of a server which follows no other, releases nothing and admits no client.
    pub fn fenced() -> Self {
        Self { admits: Admits::Wrapper, rule: NONE.to_owned(), follows: None }
    }

    /// Writes it, with what is mounted. `number` is a parameter's value by which a session shows that it was made
    /// after the reload. `refused`: why the user's parameters are not used if they have this text. Gives a sentence for each thing that is
    /// mounted and not used.
    pub fn write(
        &self,
        settings: &Settings,
        number: u64,
        own: &mut Own,
        refused: impl FnOnce(&str) -> Option<String>,
    ) -> Result<Vec<String>, Error> {
        let replication = credentials::keep(settings)?;
        if let Some(why) = &replication.complaint {
            tracing::error!(why, "the Secret of the replication role is not used");
        }
        let (own, own_refused) = own.write(settings, self.admits);
        let tablespaces = control_file::has_tablespaces(&settings.pgdata())?.then(|| TABLESPACES.to_owned());
        let parameters = copy_parameters(settings, refused)?;
        let complaints = [parameters, certificates::copy(settings)?, own_refused, tablespaces];
        self.write_files(settings, number, &replication, &own)?;
        Ok(complaints.into_iter().flatten().chain(replication.complaint).collect())
    }

    /// Writes that no client is let in. This has no time for what is mounted.
    pub fn write_closed(&self, settings: &Settings, number: u64) -> Result<(), Error> {
        self.write_files(settings, number, &credentials::known(settings), "")
    }

    fn write_files(&self, settings: &Settings, number: u64, replication: &Known, own: &str) -> Result<(), Error> {
        let Self { admits, rule, follows } = self;
        let (conninfo, slot) = follows.as_ref().map_or(("", ""), |(conninfo, slot)| (conninfo, slot));
        let text = format!(
            "kaa.reload = {number}\nsynchronous_standby_names = {}\nprimary_conninfo = {}\nprimary_slot_name = {}\n{}",
            quoted(rule),
            quoted(conninfo),
            quoted(slot),
            certificates::lines(settings)
        );
        strip_automatic(settings)?;
        let lines = hba::lines(*admits, settings, replication, own)?;
        // First who may connect: the number shows that the server has read both.
        files::swap(&settings.conf().join("pg_hba.conf"), lines.as_bytes(), settings.user)?;
        files::swap(&settings.conf().join("kaa.conf"), text.as_bytes(), settings.user)
    }
}

/// What an operator is told of tablespaces.
pub(super) const TABLESPACES: &str = "the database has tablespaces, which Kaa does not support: a standby ends where it replays CREATE TABLESPACE, \
    and cannot be copied. Move all tables to pg_default and drop the tablespaces";

/// Whether a server was started here by this wrapper before.
pub(super) fn was_written(settings: &Settings) -> bool {
    settings.conf().join("kaa.conf").exists()
}

/// A path in a configuration file.
pub(super) fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// A value in a configuration file.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "''"))
}

/// Removes from `postgresql.auto.conf` what Kaa decides. It has precedence over all files, and travels with copies and
/// rewinds.
fn strip_automatic(settings: &Settings) -> Result<(), Error> {
    let path = settings.pgdata().join("postgresql.auto.conf");
    let Some(text) = files::read(&path)? else { return Ok(()) };
    let stripped: String = text.split_inclusive('\n').filter(|line| !is_owned(line)).collect();
    if stripped == text {
        return Ok(());
    }
    tracing::warn!("postgresql.auto.conf sets what Kaa decides: removed");
    files::replace(&path, stripped.as_bytes(), settings.user)
}

/// How fast a server recovers, and not what it recovers: parameters that the user decides, for all their names.
const USERS_OWN: [&str; 2] = ["recovery_init_sync_method", "recovery_prefetch"];

/// The words of a line that sets a parameter, in lower case: first its name, then its value.
fn words(line: &str) -> impl Iterator<Item = String> {
    let text = if line.trim_start().starts_with('#') { "" } else { line };
    let words = text.split(|it: char| !it.is_alphanumeric() && it != '_').filter(|word| !word.is_empty());
    words.map(str::to_lowercase)
}

/// Whether a line has no commit of any session wait for standbys that does not ask for it. That is for a session, a role or a database to
/// decide whose commits may be lost.
fn weakens(line: &str) -> bool {
    let mut words = words(line);
    let waits = ["on", "remote_apply", "true", "yes", "1"];
    words.next().is_some_and(|name| name == "synchronous_commit")
        && words.next().is_none_or(|value| !waits.contains(&value.as_str()))
}

/// What is said of such a line.
const WEAKENS: &str = "is not used: clients would be told of commits that no standby has. Set it for a session, a role or a database whose \
    commits may be lost";

/// Whether a line sets a parameter that Kaa decides.
fn is_owned(line: &str) -> bool {
    let Some(name) = words(line).next() else { return false };
    if weakens(line) {
        return true;
    }
    let decided = ["synchronous_standby_names", "primary_conninfo", "primary_slot_name", "kaa", "include"];
    decided.contains(&name.as_str())
        || (["recovery_", "restore_", "archive_", "include_"].iter().any(|prefix| name.starts_with(prefix))
            && !USERS_OWN.contains(&name.as_str()))
        || OWNED.iter().any(|(owned, _)| *owned == name)
        || [
            "listen_addresses",
            "port",
            "unix_socket_directories",
            "unix_socket_group",
            "unix_socket_permissions",
            "data_directory",
            "hba_file",
            "ident_file",
            "config_file",
            "external_pid_file",
            "ssl",
            "ssl_cert_file",
            "ssl_key_file",
            "ssl_ca_file",
            "allow_alter_system",
            "promote_trigger_file",
        ]
        .contains(&name.as_str())
}

/// Copies the user's own settings to where the server can read them, without what Kaa decides. Gives a sentence if they are
/// of no use, and the last good ones stay.
fn copy_parameters(settings: &Settings, refused: impl FnOnce(&str) -> Option<String>) -> Result<Option<String>, Error> {
    let path = parameters(settings);
    let before = files::read(&path)?;
    let meanwhile = if before.is_some() { "the last good ones stay" } else { "the server runs without them" };
    let text = match settings.parameters.as_deref().map(mounted_parameters).transpose() {
        Ok(text) => text.unwrap_or_default(),
        Err(why) => {
            tracing::error!(why, meanwhile, "the user's parameters are not used");
            return Ok(Some(format!("the mounted parameters are not used: {why}; {meanwhile}")));
        }
    };
    let (owned, text) = split(&text);
    let weakened = owned.iter().find(|line| weakens(line)).map(|line| format!("mounted parameters: {line} {WEAKENS}"));
    for line in owned {
        tracing::warn!(line, "a parameter that Kaa decides: not used");
    }
    let refused = refused(&text);
    if before.as_deref() == Some(&text) {
        // The server uses them since it started: it accepted no session then that could try them.
        let refused = refused.map(|why| format!("no client can connect with the mounted parameters: {why}"));
        return Ok(refused.or(weakened));
    }
    let wrong = refused.map_or_else(|| check_parameters(settings, &text), |why| Ok(Some(why)))?;
    match &wrong {
        None => files::replace(&path, text.as_bytes(), settings.user)?,
        Some(why) => tracing::error!(why, meanwhile, "the user's parameters are not used"),
    }
    Ok(wrong.map(|why| format!("the mounted parameters are not used: {why}; {meanwhile}")).or(weakened))
}

/// The user's own parameters as the server uses them.
pub(super) fn parameters(settings: &Settings) -> PathBuf {
    settings.conf().join("user.conf")
}

/// Those with which the server was last started.
pub(super) fn started_parameters(settings: &Settings) -> PathBuf {
    settings.conf().join("started.conf")
}

/// What Kaa decides of the text of the user's file, and the rest of it.
fn split(text: &str) -> (Vec<&str>, String) {
    let (owned, rest): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| is_owned(line));
    (owned, rest.iter().flat_map(|line| [*line, "\n"]).collect())
}

/// The text of the user's file. One that is not there is not one without parameters: the mount may be wrong.
fn mounted_parameters(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The parameters that name the libraries which each session loads.
const SESSION_LIBRARIES: [&str; 2] = ["session_preload_libraries", "local_preload_libraries"];

/// The mounted parameters without those that Kaa decides, if sessions may have to load a library by them.
pub(super) fn loading(settings: &Settings) -> Option<String> {
    let (_, text) = split(&mounted_parameters(settings.parameters.as_deref()?).ok()?);
    let lower = text.to_lowercase();
    SESSION_LIBRARIES.iter().any(|name| lower.contains(name)).then_some(text)
}

/// What each session would load with these settings, by the names of the parameters; `None` if the server would not start with them.
pub(super) fn session_libraries(settings: &Settings, text: &str) -> Result<Option<Vec<(&'static str, String)>>, Error> {
    let mut values = Vec::new();
    for name in SESSION_LIBRARIES {
        match printed(settings, text, name) {
            Ok(value) => values.push((name, value)),
            Err(Error::Program { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(values))
}

/// Why the server would not start with these settings, or would ignore all of its configuration at a reload.
fn check_parameters(settings: &Settings, text: &str) -> Result<Option<String>, Error> {
    match printed(settings, text, "port") {
        Ok(_) => Ok(None),
        Err(Error::Program { said, .. }) => Ok(Some(said)),
        Err(error) => Err(error),
    }
}

/// The value of a parameter at a server with these settings.
fn printed(settings: &Settings, text: &str, name: &str) -> Result<String, Error> {
    let (checked, conf) = (settings.conf().join("checked.conf"), settings.conf().join("check.conf"));
    files::swap(&checked, text.as_bytes(), settings.user)?;
    files::swap(&conf, format!("{DEFAULTS}include = 'checked.conf'\n").as_bytes(), settings.user)?;
    let (conf, pgdata) = (format!("config_file={}", conf.display()), settings.pgdata());
    let arguments = ["-C".as_ref(), name.as_ref(), "-c".as_ref(), conf.as_ref(), "-D".as_ref(), pgdata.as_os_str()];
    control_file::printed(settings, SERVER, &arguments)
}

/// Writes the files that do not change with the role.
pub(super) fn write_base(settings: &Settings) -> Result<(), Error> {
    files::make_directory(&settings.conf(), settings.user)?;
    files::make_directory(&settings.run(), settings.user)?;
    for secret in [settings.passfile(), settings.certificate("tls.key")] {
        files::close_to_others(&secret);
    }
    let sizes = sizes::lines(space(&settings.directory)?.size);
    let text = format!("{DEFAULTS}{sizes}include_if_exists = 'user.conf'\ninclude = 'kaa.conf'\n");
    files::replace(&settings.conf().join("postgresql.conf"), text.as_bytes(), settings.user)?;
    files::replace(&settings.conf().join("pg_ident.conf"), b"", settings.user)
}

/// Parameters on the command line.
///
/// `restart_after_crash`: the postmaster would recover and open by itself, and show commits that wait. `recovery_*` and
/// `restore_command`: a fenced server must not be moved by what an archive has. The timeouts bound the wait for a
/// frozen peer.
const OWNED: &[(&str, &str)] = &[
    ("restart_after_crash", "off"),
    ("wal_level", "replica"),
    ("wal_log_hints", "on"),
    ("hot_standby", "on"),
    ("full_page_writes", "on"),
    ("fsync", "on"),
    ("max_wal_senders", "20"),
    ("max_replication_slots", "20"),
    ("superuser_reserved_connections", "8"),
    ("recovery_target_timeline", "latest"),
    ("recovery_target", ""),
    ("recovery_target_lsn", ""),
    ("recovery_target_name", ""),
    ("recovery_target_time", ""),
    ("recovery_target_xid", ""),
    ("recovery_min_apply_delay", "0"),
    ("restore_command", ""),
    ("archive_mode", "off"),
    ("wal_sender_timeout", "5s"),
    ("wal_receiver_timeout", "5s"),
    ("wal_retrieve_retry_interval", "250ms"),
    ("wal_receiver_status_interval", "1s"),
    ("logging_collector", "off"),
    ("log_destination", "stderr"),
    ("lc_messages", "C"),
    // The wrapper reads the log.
    ("log_error_verbosity", "default"),
    ("log_line_prefix", LINE_PREFIX),
    // `pg_hba.conf` demands it.
    ("password_encryption", "scram-sha-256"),
    ("allow_in_place_tablespaces", "off"),
];

/// The first major version in which no superuser can change the rule or the source by `ALTER SYSTEM`. Before, such a change is
/// seen, and undone.
const NO_ALTER_SYSTEM: u32 = 17;

/// The first major version that no file of a user's choice promotes.
const NO_TRIGGER_FILE: u32 = 16;

/// The arguments of the server.
/// `limits` are those by which it has more than the configuration says. One that serves no readers may have less than the log
/// says that it replays.
pub(super) fn arguments(settings: &Settings, major: u32, limits: &[(&str, u64)], readers: bool) -> Vec<String> {
    let conf = |name: &str| settings.conf().join(name).display().to_string();
    let mut arguments = vec!["-D".to_owned(), settings.pgdata().display().to_string()];
    let mut set = |name: &str, value: &str| arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
    set("config_file", &conf("postgresql.conf"));
    set("hba_file", &conf("pg_hba.conf"));
    set("ident_file", &conf("pg_ident.conf"));
    set("unix_socket_directories", &settings.run().display().to_string());
    set("listen_addresses", &settings.listen);
    set("port", &settings.port.to_string());
    for (name, value) in OWNED {
        set(name, value);
    }
    if major < NO_TRIGGER_FILE {
        set("promote_trigger_file", "");
    }
    if major >= NO_ALTER_SYSTEM {
        set("allow_alter_system", "off");
    }
    for (name, limit) in limits {
        set(name, &limit.to_string());
    }
    if !readers {
        set("hot_standby", "off");
    }
    arguments
}

/// How a member is named in a generation. The name is given only after its log was compared with that generation's
/// primary's.
pub(super) fn member(archive: ArchiveId, generation: u32) -> String {
    format!("{PREFIX}{archive}_g{generation}")
}

/// The archive in a member's name, if it is one of this generation.
pub(super) fn archive_of(name: &str, generation: u32) -> Option<ArchiveId> {
    let archive = name.strip_prefix(PREFIX)?.strip_suffix(&format!("_g{generation}"))?;
    archive.parse().ok().map(ArchiveId)
}

/// The slot through which a member streams, so that its name has one sender: two of one name would count twice.
pub(super) fn slot(archive: ArchiveId) -> String {
    format!("{PREFIX}{archive}")
}

/// The rule that all of these members confirm, besides the primary.
pub(super) fn rule(members: &[ArchiveId], generation: u32) -> String {
    let names: std::collections::BTreeSet<String> = members.iter().map(|it| member(*it, generation)).collect();
    let list = names.iter().cloned().collect::<Vec<_>>().join(",");
    if names.is_empty() { String::new() } else { format!("ANY {} ({list})", names.len()) }
}

/// The names in a [`rule`], with commas between them.
pub(super) fn named(rule: &str) -> &str {
    rule.split_once('(').map_or("", |(_, names)| names.trim_end_matches(')'))
}

/// How to connect to a primary under this name. Writes the files that it names: the passfile, and the authority of certificates.
pub(super) fn conninfo(settings: &Settings, source: &Source, name: &str) -> Result<String, Error> {
    let user = credentials::needed(credentials::keep(settings)?)?.name;
    // A copy is made before any start. What is of no use is complained of at the next one.
    certificates::copy(settings)?;
    let quoted = |value: &str| format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"));
    let mut text = String::new();
    let port = source.port.to_string();
    let host = match &settings.domain {
        Some(domain) => format!("{}.{domain}", source.host),
        None => source.host.clone(),
    };
    let (mode, authority) = match &settings.tls {
        Some(_) if settings.needs_tls() => ("verify-full", settings.certificate("ca.crt").display().to_string()),
        Some(_) => ("prefer", String::new()),
        None => ("disable", String::new()),
    };
    let passfile = settings.passfile().display().to_string();
    let words = [
        ("host", host.as_str()),
        ("hostaddr", &source.address),
        ("port", &port),
        ("user", &user),
        ("passfile", &passfile),
        ("application_name", name),
        ("sslmode", mode),
        ("sslrootcert", &authority),
        ("connect_timeout", "3"),
        ("keepalives_idle", "3"),
        ("keepalives_interval", "1"),
        ("keepalives_count", "3"),
        ("tcp_user_timeout", "5000"),
    ];
    for (word, value) in words.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = write!(text, "{word}={} ", quoted(value));
    }
    Ok(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_rule_names_all_members_of_its_generation() {
        assert_eq!("", rule(&[], 7));
        assert_eq!("ANY 2 (kaa_2_g7,kaa_31_g7)", rule(&[ArchiveId(31), ArchiveId(2), ArchiveId(2)], 7));
        assert_eq!(["", "kaa_2_g7,kaa_31_g7"], ["", "ANY 2 (kaa_2_g7,kaa_31_g7)"].map(named));
        assert_eq!(Some(ArchiveId(31)), archive_of("kaa_31_g7", 7));
        assert_eq!([None; 4], ["kaa_31_g6", "kaa_31", "31_g7", "kaa_x_g7"].map(|name| archive_of(name, 7)));
    }

    #[test]
    fn parameters_that_kaa_decides_are_found_however_they_are_written() {
        for line in [
            "primary_conninfo = 'host=a'",
            " FSYNC off",
            "recovery_target_time='x'",
            "include 'a'",
            "port=1",
            "kaa.reload = 1",
            "data_directory '/other'",
            "ident_file = 'x'",
            "hba_file = 'x'",
            "Config_File = 'x'",
            "unix_socket_directories = ''",
            "unix_socket_permissions = 0000",
            "external_pid_file = '/tmp/x'",
            "include_if_exists 'a'",
            "include_dir = 'a'",
            "synchronous_commit = off",
            "Synchronous_Commit='remote_write'",
            "synchronous_commit local # fast",
        ] {
            assert!(is_owned(line), "{line}");
        }
        let users =
            ["# fsync = off", "", "work_mem = 4MB", "synchronous_commit = on", "synchronous_commit 'Remote_Apply'"];
        for line in users {
            assert!(!is_owned(line), "{line}");
        }
    }

    #[test]
    fn values_are_quoted() {
        assert_eq!(r"'a''b\\c'", quoted(r"a'b\c"));
    }

    /// As the kubelet does where the pod has an `fsGroup`.
    #[test]
    fn a_secret_that_a_mount_gave_to_the_group_of_the_volume_is_closed_to_it() {
        let volume = tempfile::tempdir().unwrap();
        let settings = Settings::of_test(volume.path());
        write_base(&settings).unwrap();
        let secrets = [settings.passfile(), settings.certificate("tls.key")];
        for path in &secrets {
            std::fs::write(path, "secret").unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o660)).unwrap();
        }
        write_base(&settings).unwrap();
        let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(secrets.each_ref().map(mode), [0o600; 2]);
    }

    #[test]
    fn a_file_of_parameters_that_cannot_be_read_leaves_the_last_good_one() {
        let (mounted, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = mounted.path().join("postgresql.conf");
        let settings = Settings { parameters: Some(file.clone()), ..Settings::of_test(volume.path()) };
        std::fs::create_dir(settings.conf()).unwrap();
        let complaint = || copy_parameters(&settings, |_| None).unwrap().unwrap();
        assert!(complaint().contains("postgresql.conf: No such file"), "{}", complaint());
        assert!(complaint().ends_with("the server runs without them"), "{}", complaint());
        let good = settings.conf().join("user.conf");
        std::fs::write(&good, "work_mem = 7MB\n").unwrap();
        assert!(complaint().ends_with("the last good ones stay"), "{}", complaint());
        std::fs::write(&file, b"work_mem = 9MB # \xff\n").unwrap();
        assert!(complaint().contains("UTF-8"), "{}", complaint());
        assert_eq!(std::fs::read_to_string(&good).unwrap(), "work_mem = 7MB\n");
        std::fs::write(&file, "work_mem = 7MB\nport = 1\n").unwrap();
        assert_eq!(copy_parameters(&settings, |_| None).unwrap(), None);
        std::fs::write(&file, "work_mem = 7MB\nsynchronous_commit = off\n").unwrap();
        assert!(complaint().starts_with("mounted parameters: synchronous_commit = off is not used"), "{}", complaint());
        assert_eq!(std::fs::read_to_string(&good).unwrap(), "work_mem = 7MB\n");
    }
}
