//! Servers below one directory, each on a loopback address of its own.

use kaa_core::domain::ids::ArchiveId;
use kaa_engine::postgres::{Begins, Data, Follows, Server, Settings, Source, check_programs};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use testkit::eventually_async;
use tokio_postgres::{Client, NoTls};

/// The user and the group that servers run as if the test is root.
const UNPRIVILEGED: u32 = 65534;
pub const REPLICATION_PASSWORD: &str = "it's : a \\ secret";
pub const APPLICATION_PASSWORD: &str = "another";

/// Where the data is: in memory if possible. What a killed process has written is there as well, and a disk would take
/// most of the time.
const PLACES: [&str; 2] = ["/dev/shm", "/tmp"];
/// Bytes that have to be free there.
const ROOM: u64 = 2 << 30;

/// Signs certificates.
pub struct Authority {
    parameters: CertificateParams,
    key: KeyPair,
    pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { parameters, key, pem }
    }
}

pub struct Lab {
    root: TempDir,
    _programs: TempDir,
    bin: PathBuf,
    shim: PathBuf,
    port: u16,
}

pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

fn secret(directory: &Path, values: &[(&str, &str)]) {
    std::fs::create_dir_all(directory).unwrap();
    for (name, value) in values {
        std::fs::write(directory.join(name), format!("{value}\n")).unwrap();
    }
}

/// Shared memory is below the directory: what a killed server leaves of it goes with that.
fn set_parameters(root: &Path, text: &str) {
    let text = format!("dynamic_shared_memory_type = mmap\n{text}");
    std::fs::write(root.join("parameters.conf"), text).unwrap();
}

/// A directory that the servers' user can enter.
fn directory_in(place: &str) -> TempDir {
    let directory = tempfile::Builder::new().prefix("kaa-pg.").tempdir_in(place).unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    directory
}

impl Drop for Lab {
    /// A server that was killed leaves a segment of shared memory by which the next one on its data finds its processes: a machine has a few
    /// thousand at most, and no next one comes.
    fn drop(&mut self) {
        for volume in std::fs::read_dir(self.root.path()).into_iter().flatten().flatten() {
            for data in ["pgdata", "pgdata.old"] {
                let Ok(text) = std::fs::read_to_string(volume.path().join(data).join("postmaster.pid")) else {
                    continue;
                };
                let Some(id) = text.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) else { continue };
                // Another server on the same data has removed it where that is said.
                let removed = std::process::Command::new("ipcrm").args(["-m", id]).output();
                assert!(
                    removed.is_ok() || std::thread::panicking(),
                    "ipcrm, of the Debian package util-linux: {removed:?}"
                );
            }
        }
    }
}

impl Lab {
    /// `None` if there is no PostgreSQL here: that was said.
    pub fn new() -> Option<Self> {
        let bin = testkit::postgres()?;
        // With KAA_LOG=info the servers' own logs are shown.
        let filter = tracing_subscriber::EnvFilter::try_from_env("KAA_LOG").unwrap_or_else(|_| "off".into());
        let _ = tracing_subscriber::fmt().with_env_filter(filter).try_init();
        let free = |path: &str| {
            nix::sys::statvfs::statvfs(path).map_or(0, |volume| volume.blocks_available() * volume.fragment_size())
        };
        let root = directory_in(PLACES.into_iter().find(|path| free(path) >= ROOM).expect("2 GB in /dev/shm or /tmp"));
        let programs = directory_in("/tmp");
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        secret(&root.path().join("replication"), &[("username", "replicator"), ("password", REPLICATION_PASSWORD)]);
        let application = [("username", "app"), ("password", APPLICATION_PASSWORD), ("dbname", "shop")];
        secret(&root.path().join("application"), &application);
        set_parameters(root.path(), "shared_buffers = 16MB\nmax_connections = 60\nautovacuum_naptime = 5s\n");
        // The user of the servers need not be able to enter the directory of the build.
        let shim = programs.path().join("kaa-engine");
        let built = Path::new(env!("CARGO_BIN_EXE_kaa-engine"));
        if std::fs::hard_link(built, &shim).is_err() {
            std::fs::copy(built, &shim).unwrap();
        }
        Some(Self { root, _programs: programs, bin, shim, port })
    }

    pub fn set_password(&self, secret: &str, value: &str) {
        std::fs::write(self.root.path().join(secret).join("password"), value).unwrap();
    }

    pub fn set_parameters(&self, text: &str) {
        set_parameters(self.root.path(), text);
    }

    /// The authority and a certificate for `*.shop.test`, mounted. Servers that are made from now on use them.
    pub fn set_tls(&self, authority: &Authority) {
        let key = KeyPair::generate().unwrap();
        let mut named = CertificateParams::new(vec!["*.shop.test".to_owned()]).unwrap();
        named.distinguished_name.push(DnType::CommonName, "server");
        let signed = named.signed_by(&key, &Issuer::from_params(&authority.parameters, &authority.key)).unwrap();
        let directory = self.root.path().join("tls");
        std::fs::create_dir_all(&directory).unwrap();
        let files = [("tls.crt", signed.pem()), ("tls.key", key.serialize_pem()), ("ca.crt", authority.pem.clone())];
        for (name, text) in files {
            std::fs::write(directory.join(name), text).unwrap();
        }
    }

    /// Runs `psql` as the application at a server, and gives what it printed.
    pub fn psql(&self, member: &Member, options: &str) -> Result<String, String> {
        let conninfo = format!(
            "hostaddr={} port={} user=app dbname=shop connect_timeout=5 {options}",
            member.settings.listen, self.port
        );
        let mut command = std::process::Command::new(self.bin.join("psql"));
        command.args(["-X", "-At", "-c", "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &conninfo]);
        let output = command.env("PGPASSWORD", APPLICATION_PASSWORD).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Starts a program that receives the log, as the replication role under another name.
    pub fn receives(&self, member: &Member, program: &str, name: &str, more: &[&str]) -> std::process::Child {
        self.receives_by(member.address(), program, name, more)
    }

    /// The same, by way of this address.
    pub fn receives_by(&self, way: SocketAddr, program: &str, name: &str, more: &[&str]) -> std::process::Child {
        let directory = self.root.path().join(format!("{program}-{name}"));
        std::fs::create_dir_all(&directory).unwrap();
        let conninfo = format!("host={} port={} user=replicator", way.ip(), way.port());
        let mut command = std::process::Command::new(self.bin.join(program));
        command.arg("-D").arg(&directory).args(["-d", &conninfo]).args(more);
        command.envs([("PGPASSWORD", REPLICATION_PASSWORD), ("PGAPPNAME", name)]).spawn().unwrap()
    }

    /// How a client verifies a server's certificate.
    pub fn verifies(&self, host: &str) -> String {
        format!("host={host} sslmode=verify-full sslrootcert={}", self.root.path().join("tls/ca.crt").display())
    }

    /// The directory of the programs.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// A file below the directory of all servers.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The volume of a member.
    pub fn volume(&self, number: u64) -> PathBuf {
        let directory = self.root.path().join(format!("m{number}"));
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn settings(&self, number: u64) -> Settings {
        Settings {
            directory: self.volume(number),
            bin: self.bin.clone(),
            major: check_programs(&self.bin).unwrap(),
            user: is_root().then_some((UNPRIVILEGED, UNPRIVILEGED)),
            listen: format!("127.0.0.{number}"),
            port: self.port,
            parameters: Some(self.root.path().join("parameters.conf")),
            hba: Some(self.root.path().join("hba.conf")).filter(|it| it.exists()),
            replication: self.root.path().join("replication"),
            application: Some(self.root.path().join("application")),
            tls: Some(self.root.path().join("tls")).filter(|it| it.exists()),
            tls_optional: false,
            domain: Some("shop.test".to_owned()).filter(|_| self.root.path().join("tls").exists()),
            shim: self.shim.clone(),
        }
    }

    pub fn mounted(&self, name: &str) -> String {
        std::fs::read_to_string(self.root.path().join(name)).unwrap()
    }

    pub fn mount(&self, name: &str, text: &str) {
        std::fs::write(self.root.path().join(name), text).unwrap();
    }

    pub fn unmount(&self, name: &str) {
        std::fs::remove_file(self.root.path().join(name)).unwrap();
    }

    pub fn member(&self, number: u64) -> Member {
        self.member_with(number, |_| {})
    }

    pub fn member_with(&self, number: u64, change: impl FnOnce(&mut Settings)) -> Member {
        let mut settings = self.settings(number);
        change(&mut settings);
        Member { archive: ArchiveId(number), server: Server::new(settings.clone()), settings, port: self.port }
    }

    /// A server that is the open primary of generation 2, alone.
    pub async fn primary(&self, number: u64) -> (Member, Begins) {
        let mut member = self.member(number);
        member.server.initialize().await.unwrap();
        member.server.start_fenced().await.unwrap();
        let begins = member.lead(2, &[]).await;
        member.server.prepare_roles().await.unwrap();
        let client = member.client().await.unwrap();
        client.batch_execute("CREATE TABLE rows (id bigint PRIMARY KEY, generation int)").await.unwrap();
        (member, begins)
    }
}

impl Lab {
    /// An open primary of generation 2 on archive 1, alone in its rule, with standbys on 2 and 3.
    pub async fn three(&self) -> ([Member; 3], Begins) {
        let (mut a, begins) = self.primary(1).await;
        let (mut b, mut c) = (self.member(2), self.member(3));
        a.server.provide_slots(&[b.archive, c.archive]).await.unwrap();
        b.join(&a, 2, &[begins]).await;
        c.join(&a, 2, &[begins]).await;
        ([a, b, c], begins)
    }
}

pub struct Member {
    pub archive: ArchiveId,
    pub server: Server,
    pub settings: Settings,
    port: u16,
}

impl Member {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (self.settings.listen.parse::<IpAddr>().unwrap(), self.port).into()
    }

    pub fn source(&self) -> Source {
        let address = self.settings.listen.clone();
        Source { archive: self.archive, host: "localhost".to_owned(), address, port: self.port }
    }

    /// Promotes a fenced server, and opens it.
    pub async fn lead(&mut self, generation: u32, rule: &[ArchiveId]) -> Begins {
        let begins = self.server.promote(generation, rule).await.unwrap();
        self.server.establish().await.unwrap();
        self.server.open().await.unwrap();
        begins
    }

    /// Copies the primary and follows it.
    pub async fn join(&mut self, primary: &Member, generation: u32, history: &[Begins]) {
        self.server.overwrite(&primary.source(), false).await.unwrap();
        self.server.start_fenced().await.unwrap();
        self.follow(primary, generation, history).await;
    }

    pub async fn follow(&mut self, primary: &Member, generation: u32, history: &[Begins]) {
        let follows = self.server.follow(self.archive, &primary.source(), generation, history).await.unwrap();
        assert_eq!(follows, Follows::Streams);
        self.streams(generation).await;
    }

    pub async fn streams(&mut self, generation: u32) {
        assert!(!self.lacks_log(generation).await, "its primary has removed log that it lacks");
    }

    /// Waits until it streams, or until it is known that its primary has no log for it.
    pub async fn lacks_log(&mut self, generation: u32) -> bool {
        let (mut lacks, mut streams) = (false, 0);
        eventually_async("a standby that streams, or lacks log", async || {
            let reading = self.server.read().await.map_err(|error| error.to_string())?;
            lacks = reading.lacks_log;
            // It streams for a moment before the primary says what it has removed.
            streams = if reading.streams_from == Some(generation) { streams + 1 } else { 0 };
            if lacks || streams > 2 { Ok(()) } else { Err(format!("{reading:?}")) }
        })
        .await;
        lacks
    }

    /// A client over TCP, as the application.
    pub async fn client(&self) -> Result<Client, tokio_postgres::Error> {
        self.client_as("app", APPLICATION_PASSWORD, "shop").await
    }

    pub async fn client_as(&self, user: &str, password: &str, database: &str) -> Result<Client, tokio_postgres::Error> {
        let mut config = tokio_postgres::Config::new();
        config.host(&self.settings.listen).port(self.port).user(user).password(password).dbname(database);
        config.connect_timeout(std::time::Duration::from_secs(5));
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// A superuser over the socket.
    pub async fn superuser(&self) -> Client {
        self.superuser_of("shop").await
    }

    pub async fn superuser_of(&self, database: &str) -> Client {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.settings.directory.join("run")).port(self.port).user("kaa").dbname(database);
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// The ids of the rows that this server shows.
    pub async fn rows(&self) -> Vec<i64> {
        let client = self.superuser().await;
        let rows = client.query("SELECT id FROM rows ORDER BY id", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// The process id of its postmaster.
    pub fn postmaster(&self) -> i32 {
        let text = std::fs::read_to_string(self.settings.directory.join("pgdata/postmaster.pid")).unwrap();
        text.lines().next().unwrap().parse().unwrap()
    }

    /// The processes that work in its data.
    pub fn processes(&self) -> Vec<String> {
        let pgdata = self.settings.directory.join("pgdata");
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let inside =
            entries.filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == pgdata));
        inside.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

pub fn system(data: &Data) -> u64 {
    match data {
        Data::Initialized { system, .. } => *system,
        Data::Empty => panic!("no data"),
    }
}

/// The processes of a server that have this word in their titles.
pub fn titled(member: &Member, word: &str) -> Vec<i32> {
    let is_one = |pid: &String| {
        let title = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        title.contains(word) && !title.contains("kaa-engine")
    };
    member.processes().into_iter().filter(is_one).map(|pid| pid.parse().unwrap()).collect()
}

/// Signals processes that may have ended.
pub fn hold(pids: &[i32], signal: nix::sys::signal::Signal) {
    for pid in pids {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), signal);
    }
}

pub fn kill(pid: i32) {
    signal(pid, nix::sys::signal::Signal::SIGKILL);
}

pub fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}
