//! The roles and the database of the mounted Secrets.

use super::error::Error;
use super::files::secret;
use super::session::Session;
use super::{Server, Settings};

/// What the Secrets say.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Roles {
    /// Name and password.
    replication: (String, String),
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
    fn read(settings: &Settings) -> Result<Self, Error> {
        let directory = &settings.replication;
        let replication = (secret(directory, "username")?, secret(directory, "password")?);
        let application = match &settings.application {
            None => None,
            Some(directory) => {
                let name = secret(directory, "username")?;
                if name == replication.0 {
                    return Err(Error::Unusable(format!(
                        "{name} is the replication role's name, and the application's"
                    )));
                }
                Some((name, secret(directory, "password")?, secret(directory, "dbname")?))
            }
        };
        Ok(Self { replication, application })
    }
}

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
    /// nothing if the Secrets are as they were the last time. Waits for no standby.
    ///
    /// # Errors
    /// If the server is no primary, a Secret cannot be read or is of no use, or the server refuses.
    pub async fn prepare_roles(&mut self) -> Result<(), Error> {
        let generation = self.primary()?;
        let roles = Roles::read(&self.settings)?;
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
        let (name, password) = &roles.replication;
        make_role(&session, name, "NOSUPERUSER NOCREATEDB NOCREATEROLE REPLICATION LOGIN", password).await?;
        let granted: String =
            REWIND.iter().map(|it| format!("GRANT EXECUTE ON FUNCTION {it} TO {};", identifier(name))).collect();
        session.run("let the replication role rewind", &granted).await?;
        if let Some((name, password, database)) = &roles.application {
            make_role(&session, name, "NOSUPERUSER NOREPLICATION NOCREATEROLE LOGIN", password).await?;
            make_database(&session, database, name).await?;
        }
        self.prepared = wanted;
        Ok(())
    }
}

async fn is_there(session: &Session, table: &str, column: &str, name: &str) -> Result<bool, Error> {
    let statement = format!("SELECT count(*) FROM {table} WHERE {column} = {}", literal(name));
    Ok(session.row("look for a role or a database", &statement).await?.get::<_, i64>(0) > 0)
}

async fn make_role(session: &Session, name: &str, rights: &str, password: &str) -> Result<(), Error> {
    if name == super::configuration::SUPERUSER || name.starts_with("pg_") {
        return Err(Error::Unusable(format!("{name} cannot be a role of a Secret: the name is reserved")));
    }
    let verb = if is_there(session, "pg_roles", "rolname", name).await? { "ALTER" } else { "CREATE" };
    let statement = format!("{verb} ROLE {} {rights} PASSWORD {}", identifier(name), literal(password));
    session.run("make a role", &statement).await
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
}
