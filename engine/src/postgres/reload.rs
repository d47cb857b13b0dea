//! Changes the configuration of a server that runs: by a reload, and by a session that shows that it was read.

use super::configuration::{self, Changeable};
use super::error::Error;
use super::hba;
use super::session::Session;
use super::start::not_running;
use super::{Role, Server};
use nix::sys::signal::Signal;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often a new session is tried after a reload.
const RELOAD_PERIOD: Duration = Duration::from_millis(3);
/// How long the postmaster may take to reload. It starts no session meanwhile.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);

/// The number of the last reload, the rule, and why the server has not taken over the lines of `pg_hba.conf`: it ignores all of them
/// if one is wrong. One that no connection can match is not wrong: of `hostssl`, say, while there is no TLS.
const CONFIGURATION: &str = "SELECT current_setting('kaa.reload'), current_setting('synchronous_standby_names'), \
    (SELECT error FROM pg_hba_file_rules WHERE error NOT LIKE '%record cannot match because%' LIMIT 1)";

/// Whether a parameter of the files takes effect with the next start only.
const PENDING: &str = "SELECT EXISTS (SELECT FROM pg_settings WHERE pending_restart)";

/// Whether what is mounted is read when the configuration is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mounts {
    Used,
    /// No client is let in, and what the server has of it stays.
    Unread,
}

impl Server {
    /// Changes what can be changed while the server runs, durably; gives a session that was made under the new
    /// configuration.
    ///
    /// The postmaster starts no process while it reads the configuration, so such a session proves that it has told all
    /// others.
    pub(super) async fn reload(&mut self, change: impl FnOnce(&mut Changeable)) -> Result<Session, Error> {
        self.reload_with(Mounts::Used, change).await
    }

    /// The same; what is mounted may be left out where no client is let in.
    pub(super) async fn reload_with(
        &mut self,
        mounts: Mounts,
        change: impl FnOnce(&mut Changeable),
    ) -> Result<Session, Error> {
        let mut number = self.begin_reload(mounts, change).await?;
        let give_up_at = Instant::now() + RELOAD_LIMIT;
        loop {
            self.living()?;
            let session = Session::connect(&self.settings).await?;
            let shown = session.row("show the configuration", CONFIGURATION).await?;
            if shown.get::<_, &str>(0) == number.to_string() {
                self.check_rule(shown.get(1))?;
                match shown.get::<_, Option<&str>>(2) {
                    None => return self.accepted().await.map(|()| session),
                    Some(why) if self.own.refuse(&self.settings, why) => {
                        number = self.begin_reload(Mounts::Used, |_| {}).await?;
                    }
                    Some(why) => return Err(Error::Unusable(format!("the server refuses its pg_hba.conf: {why}"))),
                }
            }
            if Instant::now() > give_up_at {
                return Err(Error::Stuck("the server does not read its configuration".to_owned()));
            }
            sleep(RELOAD_PERIOD).await;
        }
    }

    /// Uses what is mounted now.
    ///
    /// # Errors
    /// If the server does not run, or does not obey; if something is of no use, and nothing earlier takes its place.
    pub async fn refresh(&mut self) -> Result<(), Error> {
        let running = self.living()?;
        let role = running.role;
        let mut connects = None;
        if let (Role::Follows { generation }, Some((own, source))) = (role, running.follows.clone()) {
            // The same server under the same name. The role and its password may be others.
            let conninfo = self.conninfo(&source, configuration::member(own, generation)).await?;
            connects = Some((conninfo, configuration::slot(own)));
        }
        let change = |changeable: &mut Changeable| changeable.follows = connects.or(changeable.follows.take());
        let session = match (self.reload(change).await, role) {
            // One that was rewound or copied accepts no session before it has received more, perhaps with the new password.
            (Err(Error::NoSql { .. }), Role::Follows { .. }) => return Ok(()),
            (reloaded, _) => reloaded?,
        };
        // It would start with what it uses already.
        let pending = session.row("look for parameters that wait for a start", PENDING).await?;
        if !pending.get::<_, bool>(0) {
            self.keep_started_parameters().await;
        }
        match role {
            Role::Primary { .. } => self.prepare_roles().await,
            Role::Follows { .. } | Role::Fenced => Ok(()),
        }
    }

    /// Writes the configuration and signals the server; gives the number that a session shows.
    async fn begin_reload(&mut self, mounts: Mounts, change: impl FnOnce(&mut Changeable)) -> Result<u64, Error> {
        if mounts == Mounts::Used {
            self.try_libraries().await;
        }
        let mut wanted = self.running()?.changeable.clone();
        change(&mut wanted);
        let written = self.write(wanted, mounts).await?;
        let running = self.running.as_mut().ok_or_else(not_running)?;
        running.changeable = written;
        running.process.signal(Signal::SIGHUP);
        Ok(self.reloads)
    }

    /// Writes the configuration under the next number.
    pub(super) async fn write(&mut self, changeable: Changeable, mounts: Mounts) -> Result<Changeable, Error> {
        let (settings, mut own) = (self.settings.clone(), self.own.clone());
        let (libraries, unstartable) = (self.libraries.clone(), self.unstartable.clone());
        let refused = move |text: &str| {
            let libraries = libraries.filter(|tried| tried.text == text).and_then(|tried| tried.refused);
            libraries.or(unstartable.filter(|it| it.text == text).map(|it| it.why))
        };
        self.reloads += 1;
        let number = self.reloads;
        let written = self.in_time(move || match mounts {
            Mounts::Used => {
                let complaints = changeable.write(&settings, number, &mut own, refused)?;
                Ok((changeable, own, Some(complaints)))
            }
            Mounts::Unread => {
                changeable.write_closed(&settings, number)?;
                own.written = None;
                Ok((changeable, own, None))
            }
        });
        let (changeable, own, complaints) = written.await?;
        self.own = own;
        self.complaints = complaints.unwrap_or_else(|| std::mem::take(&mut self.complaints));
        Ok(changeable)
    }

    /// The server uses the lines of `pg_hba.conf` that were written.
    async fn accepted(&mut self) -> Result<(), Error> {
        let Some(text) = self.own.written.take() else { return Ok(()) };
        let settings = self.settings.clone();
        self.in_time(move || hba::keep(&settings, &text)).await
    }

    /// The rule that a new session shows is the one that was written. A superuser may have changed it since.
    pub(super) fn check_rule(&self, shown: &str) -> Result<(), Error> {
        let wanted = &self.running()?.changeable.rule;
        if shown == *wanted {
            return Ok(());
        }
        Err(Error::Stuck(format!(
            "synchronous_standby_names is {shown:?}, and not {wanted:?}: it was changed from outside"
        )))
    }
}
