//! The roles and the database of the mounted Secrets.

use super::credentials::{self, Replication, is_reserved};
use super::error::Error;
use super::files::secret;
use super::session::Session;
use super::{Server, Settings};
use postgres_protocol::password::scram_sha_256;
use std::path::Path;

/// What the Secrets say.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Roles {
    replication: Replication,
    /// Name, password and database.
    application: Option<(String, String, String)>,
}

/// Passwords are not shown.
impl std::fmt::Debug for Roles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Roles").finish_non_exhaustive()
    }
}

impl Roles {
    /// What is of use, each Secret by itself; and why the application's is not.
    fn read(settings: &Settings) -> Result<(Self, Option<String>), Error> {
        let replication = credentials::needed(credentials::known(settings))?;
        let application = settings.application.as_deref().map(|directory| application(directory, &replication.name));
        let (application, complaint) = match application.transpose() {
            Ok(application) => (application, None),
            Err(why) => (None, Some(format!("{why}. The application's role stays as it is"))),
        };
        Ok((Self { replication, application }, complaint))
    }
}

/// The application's name, password and database.
fn application(directory: &Path, replication: &str) -> Result<(String, String, String), Error> {
    let name = secret(directory, "username")?;
    let wrong = if name == replication {
        "is the name of the replication role"
    } else if is_reserved(&name) {
        "is a reserved name"
    } else {
        let database = secret(directory, "dbname")?;
        if OWN_DATABASES.contains(&database.as_str()) {
            let path = directory.join("dbname");
            let why = "is a database of PostgreSQL's own, in which this role could make no table: choose another one";
            return Err(Error::Unusable(format!("{}: {database} {why}", path.display())));
        }
        return Ok((name, secret(directory, "password")?, database));
    };
    let path = directory.join("username");
    Err(Error::Unusable(format!("{}: {name} {wrong}: choose another one", path.display())))
}

/// The names of the application's role and database, by its Secret; `None` if there is none that can be used.
pub fn application_of(settings: &Settings) -> Option<(String, String)> {
    let directory = settings.application.as_deref()?;
    let replication = credentials::known(settings).role?;
    let (user, _, database) = application(directory, &replication.name).ok()?;
    Some((user, database))
}

/// What every database cluster has. The wrapper connects to the first one.
const OWN_DATABASES: [&str; 3] = ["postgres", "template0", "template1"];

/// What `pg_rewind` reads of its source.
const REWIND: [&str; 4] = [
    "pg_ls_dir(text, boolean, boolean)",
    "pg_stat_file(text, boolean)",
    "pg_read_binary_file(text)",
    "pg_read_binary_file(text, bigint, bigint, boolean)",
];

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn literal(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

impl Server {
    /// Makes the replication role, the application's role and its database at a primary, and sets their passwords. Does
    /// nothing if the Secrets are as they were the last time. Waits for no standby. A Secret of the application's that is of no use, or
    /// that the server refuses, is among [`Server::complaints`], and keeps back nothing else.
    ///
    /// # Errors
    /// If the server is no primary, there never was a name or password of the replication role, or the server refuses that one.
    pub async fn prepare_roles(&mut self) -> Result<(), Error> {
        let generation = self.primary()?;
        let (roles, complaint) = Roles::read(&self.settings)?;
        self.unprepared = complaint;
        let wanted = Some((generation, roles));
        if self.prepared == wanted {
            return Ok(());
        }
        let Some((_, roles)) = &wanted else { return Ok(()) };
        // If this is dropped half-way, it is not known which password counts.
        self.prepared = None;
        let session = Session::connect(&self.settings).await?;
        // It is no client's commit. If it waited for a standby that is away, that one could never log in with a new password.
        session.run("not wait for standbys", "SET synchronous_commit = local").await?;
        // This extension refuses verifiers by default. A server without it takes the setting for one that means nothing, or refuses it.
        match session.run("allow verifiers", "SET credcheck.encrypted_password_allowed = on").await {
            Err(error) if !error.is_from_server() => return Err(error),
            _ => {}
        }
        let Replication { name, password } = &roles.replication;
        make_role(&session, name, "NOSUPERUSER NOCREATEDB NOCREATEROLE REPLICATION LOGIN", password).await?;
        let is_alone = end_earlier(&session, name).await?;
        let granted: String =
            REWIND.iter().map(|it| format!("GRANT EXECUTE ON FUNCTION {it} TO {};", identifier(name))).collect();
        session.run("let the replication role rewind", &granted).await?;
        let mut is_done = is_alone;
        if let Some(application) = &roles.application {
            match prepare_application(&session, application).await {
                Ok(()) => {}
                // It keeps back nothing else: neither the next change of the Secret nor another step.
                Err(error) if error.is_from_server() => {
                    let complaint = format!("{error}. The application's role or database is not as its Secret says");
                    tracing::error!(complaint);
                    (self.unprepared, is_done) = (Some(complaint), false);
                }
                Err(error) => return Err(error),
            }
        }
        self.prepared = wanted.filter(|_| is_done);
        Ok(())
    }

    /// Whether this is a primary whose roles are to be prepared again in a while: the earlier replication role may still log in, or the
    /// server has refused the application's role or database.
    pub fn prepares_again(&self) -> bool {
        self.primary().is_ok() && self.prepared.is_none()
    }
}

async fn prepare_application(session: &Session, application: &(String, String, String)) -> Result<(), Error> {
    let (name, password, database) = application;
    make_role(session, name, "NOSUPERUSER NOREPLICATION NOCREATEROLE LOGIN", password).await?;
    make_database(session, database, name).await
}

async fn is_there(session: &Session, table: &str, column: &str, name: &str) -> Result<bool, Error> {
    let statement = format!("SELECT count(*) FROM {table} WHERE {column} = {}", literal(name));
    Ok(session.row("look for a role or a database", &statement).await?.get::<_, i64>(0) > 0)
}

async fn make_role(session: &Session, name: &str, rights: &str, password: &str) -> Result<(), Error> {
    let verb = if is_there(session, "pg_roles", "rolname", name).await? { "ALTER" } else { "CREATE" };
    session.run("make a role", &role(verb, name, rights, password)).await
}

/// The statement has what the server would make of the password, and not the password: others may read statements, in
/// `pg_stat_statements`, for example. As the server does, it takes a verifier as it is.
fn role(verb: &str, name: &str, rights: &str, password: &str) -> String {
    let is_verifier = password.starts_with("SCRAM-SHA-256$");
    let verifier = if is_verifier { password.to_owned() } else { scram_sha_256(password.as_bytes()) };
    format!("{verb} ROLE {} {rights} PASSWORD {}", identifier(name), literal(&verifier))
}

/// What marks the replication role, so that it is known after the Secret has named another one.
const MARK: &str = "the replication role of Kaa";

/// Marks the replication role, and keeps out the one that it was before: its password may have been the reason for the change. A server that
/// still uses it knows no other one yet, and may be the next primary. False if so: [`Server::prepares_again`].
async fn end_earlier(session: &Session, name: &str) -> Result<bool, Error> {
    let mark = format!("COMMENT ON ROLE {} IS {}", identifier(name), literal(MARK));
    session.run("mark the replication role", &mark).await?;
    let others = format!(
        "SELECT rolname::text, EXISTS (SELECT FROM pg_stat_activity WHERE usesysid = pg_roles.oid) FROM pg_roles \
        WHERE shobj_description(oid, 'pg_authid') = {} AND rolname <> {}",
        literal(MARK),
        literal(name)
    );
    let mut all = true;
    for row in session.rows("look for an earlier replication role", &others).await? {
        let (other, is_used) = (identifier(row.get(0)), row.get(1));
        if is_used {
            tracing::warn!(role = other, "the earlier replication role is still in use: it may log in");
            all = false;
            continue;
        }
        session
            .run("keep out the earlier replication role", &format!("ALTER ROLE {other} NOLOGIN NOREPLICATION"))
            .await?;
        session.run("unmark the earlier replication role", &format!("COMMENT ON ROLE {other} IS NULL")).await?;
    }
    Ok(all)
}

async fn make_database(session: &Session, database: &str, owner: &str) -> Result<(), Error> {
    if is_there(session, "pg_database", "datname", database).await? {
        return Ok(());
    }
    let statement = format!("CREATE DATABASE {} OWNER {}", identifier(database), identifier(owner));
    session.run("make the application's database", &statement).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_quoted() {
        assert_eq!(r#""a""b""#, identifier(r#"a"b"#));
        assert_eq!("'it''s'", literal("it's"));
    }

    #[test]
    fn no_statement_has_a_password() {
        let statement = role("CREATE", "app", "LOGIN", "Pa55 word");
        assert!(!statement.contains("Pa55"), "{statement}");
        assert!(statement.starts_with("CREATE ROLE \"app\" LOGIN PASSWORD 'SCRAM-SHA-256$4096:"), "{statement}");
        let verifier = "SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy";
        assert_eq!(role("ALTER", "app", "LOGIN", verifier), format!("ALTER ROLE \"app\" LOGIN PASSWORD '{verifier}'"));
    }

    #[test]
    fn a_secret_of_the_application_that_is_of_no_use_keeps_back_nothing_else() {
        let (replication, application) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let volume = tempfile::tempdir().unwrap();
        let settings = Settings {
            replication: replication.path().to_owned(),
            application: Some(application.path().to_owned()),
            ..Settings::of_test(volume.path())
        };
        std::fs::create_dir(settings.conf()).unwrap();
        let mount = |directory: &tempfile::TempDir, name: &str, text: &str| {
            std::fs::write(directory.path().join(name), text).unwrap();
        };
        mount(&replication, "username", "replicator");
        mount(&replication, "password", "secret");
        mount(&application, "password", "another");
        mount(&application, "dbname", "shop");
        for (name, wrong) in
            [("pg_monitor", "a reserved name"), ("replicator", "the name of the replication role"), ("", "is empty")]
        {
            mount(&application, "username", name);
            let (roles, complaint) = Roles::read(&settings).unwrap();
            assert_eq!((roles.replication.name.as_str(), roles.application), ("replicator", None));
            let complaint = complaint.unwrap();
            let path = application.path().join("username").display().to_string();
            assert!(complaint.contains(&path) && complaint.contains(wrong), "{complaint}");
        }
        mount(&application, "username", "app");
        mount(&application, "dbname", "template1");
        let complaint = Roles::read(&settings).unwrap().1.unwrap();
        assert!(complaint.contains("/dbname: template1 is a database of PostgreSQL's own"), "{complaint}");
        mount(&application, "dbname", "shop");
        // And the other way round: the last good one of the replication role is enough.
        credentials::keep(&settings).unwrap();
        std::fs::remove_file(replication.path().join("username")).unwrap();
        mount(&application, "username", "app");
        let (roles, complaint) = Roles::read(&settings).unwrap();
        assert_eq!((roles.replication.name.as_str(), complaint), ("replicator", None));
        assert_eq!(roles.application.unwrap().0, "app");
        assert_eq!(application_of(&settings), Some(("app".to_owned(), "shop".to_owned())));
        assert_eq!(application_of(&Settings { application: None, ..settings }), None);
    }
}
