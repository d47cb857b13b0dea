//! Replaces a server's data by that of a primary: by a rewind, or by a copy.

use super::configuration::TABLESPACES;
use super::control_file::{self, ControlFile};
use super::error::Error;
use super::{Data, Role, Running, Server, Settings, Source, Stop, files, histories};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::statvfs::statvfs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The `application_name` of rewinds and copies. It names no member, so what they receive never confirms a commit.
pub(super) const COPY: &str = "copy_to_standby";
/// What `pg_basebackup` says, at its end, of pages that it found to be damaged.
const WRONG_CHECKSUM: &str = "checksum error occurred";
/// How long the source waits for an answer of the program that copies. It syncs the log to a disk that the copy keeps busy, and gives none
/// meanwhile; without its connection all of the copy begins again. No commit waits for it, unlike for a standby.
const COPY_OPTIONS: &str = "options='-c wal_sender_timeout=60s'";

/// How long a new primary may take until its first checkpoint names its timeline. Before that `pg_rewind` of PostgreSQL 15 finds nothing to
/// rewind; a copy would take longer than the checkpoint does.
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(300);
/// What it says then.
const SAME_TIMELINE: &str = "on the same timeline";
/// The pause between two rewinds that find nothing to do.
const REWIND_PERIOD: Duration = Duration::from_secs(1);

/// What an overwrite has made.
#[derive(Debug)]
pub struct Overwritten {
    /// What is on the volume now.
    pub data: Data,
    /// Whether it is a copy, and has all log that its recovery needs. Data that was rewound needs more of the source's.
    pub copied: bool,
}

impl Server {
    /// Stops the server, and replaces its data by the source's. Leaves it stopped. The caller has recorded durably that
    /// the data is not whole from now on. A rewind is done only if asked for, on a server that could be started fenced
    /// and stopped; otherwise, and if it fails, the source is copied.
    ///
    /// # Errors
    /// If the copy fails. The data is then what it was, unless a rewind was begun: then only another call makes it
    /// whole. Dropped, it leaves the same.
    pub async fn overwrite(&mut self, source: &Source, rewind: bool) -> Result<Overwritten, Error> {
        // What was given up of an earlier step and is written later would change the new data.
        self.files.run(|| Ok(())).await?;
        if rewind {
            match self.rewind(source).await {
                Ok(()) => return self.overwritten(false).await,
                Err(error) => tracing::warn!(%error, "the rewind has failed: the source is copied"),
            }
        }
        self.stop(Stop::Immediate).await?;
        self.copy(source).await?;
        self.overwritten(true).await
    }

    /// What is on the volume now. It has no time limit: after an error all would be copied again.
    async fn overwritten(&mut self, copied: bool) -> Result<Overwritten, Error> {
        let settings = self.settings.clone();
        let data = self.files.run(move || control_file::inspect(&settings)).await?;
        Ok(Overwritten { data, copied })
    }

    /// Rewinds once, as soon as the source is ready for it. A second try could find a new divergence, or none where there is one.
    async fn rewind(&mut self, source: &Source) -> Result<(), Error> {
        let is_fenced = matches!(&self.running, Some(Running { role: Role::Fenced, .. }));
        if !is_fenced {
            self.stop(Stop::Immediate).await?;
            self.start_fenced().await?;
        }
        // What it has is replayed, so that the program need not recover it.
        self.fence().await?;
        self.stop(Stop::Fast).await?;
        let server = format!("{} dbname=postgres", self.conninfo(source, COPY.to_owned()).await?);
        let settings = self.settings.clone();
        let pgdata = settings.pgdata().display().to_string();
        // Its own recovery of the target would write a checkpoint there.
        let words = ["--target-pgdata", &pgdata, "--source-server", &server, "--no-ensure-shutdown"];
        let arguments = words.map(str::to_owned);
        let began = Instant::now();
        loop {
            // It keeps no slot: those that were here are of another history.
            let said = self.starter.run("pg_rewind", &arguments, &settings.run()).await?;
            let label = pgdata_label(&settings);
            if self.files.run(move || files::read(&label)).await?.is_some() {
                let check = move || check_log(&settings).and_then(|()| refuse_tablespaces(&settings.pgdata()));
                return self.files.run(check).await;
            }
            if !said.contains(SAME_TIMELINE) || began.elapsed() > CHECKPOINT_LIMIT {
                return Err(Error::Stuck(format!("pg_rewind has found nothing to rewind: {said}")));
            }
            sleep(REWIND_PERIOD).await;
        }
    }

    /// Copies the source into another directory, and replaces the data by the copy.
    async fn copy(&mut self, source: &Source) -> Result<(), Error> {
        let settings = self.settings.clone();
        // The new copy may need the room.
        let old = old(&settings);
        self.files.run(move || files::remove(&old)).await?;
        let draft = self.draft().await?;
        let server = format!("{} {COPY_OPTIONS}", self.conninfo(source, COPY.to_owned()).await?);
        let path = draft.display().to_string();
        let words = ["-D", &path, "-d", &server, "-X", "stream", "-c", "fast"];
        let copied = self.starter.run("pg_basebackup", &words.map(str::to_owned), &settings.run()).await;
        copied.map_err(|error| match error {
            Error::Program { said, .. } if said.contains(WRONG_CHECKSUM) => {
                Error::DamagedSource { source_host: source.host.clone(), said }
            }
            error => error,
        })?;
        self.files
            .run(move || {
                refuse_tablespaces(&draft)?;
                replace(&settings, &draft)?;
                keep_or_remove(&settings)
            })
            .await
    }
}

/// Replaces the data, if there is any, by a copy of the source. What was replaced is `pgdata.old` then.
fn replace(settings: &Settings, draft: &Path) -> Result<(), Error> {
    let pgdata = settings.pgdata();
    let replaced = match pgdata.exists() {
        true => put_aside(&pgdata, draft, &old(settings), exchange),
        false => std::fs::rename(draft, &pgdata),
    };
    let failed = |source| Error::File { path: pgdata.clone(), source };
    replaced.and_then(|()| files::sync(&settings.directory)).map_err(failed)
}

/// Puts a copy in the place of the data, and the data beside it.
fn put_aside(
    pgdata: &Path,
    draft: &Path,
    old: &Path,
    exchange: impl Fn(&Path, &Path) -> Result<(), Errno>,
) -> io::Result<()> {
    match exchange(draft, pgdata) {
        Ok(()) => std::fs::rename(draft, old),
        // A file system on a network may not know that. Between the steps there is neither of the two: the volume remembers that its data is
        // being overwritten, and another call copies again.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
            std::fs::rename(pgdata, old)?;
            std::fs::rename(draft, pgdata)
        }
        Err(error) => Err(error.into()),
    }
}

/// Exchanges two names: at no moment is there neither of the two.
fn exchange(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE)
}

/// The files of a tablespace would be outside the volume.
fn refuse_tablespaces(pgdata: &Path) -> Result<(), Error> {
    match control_file::has_tablespaces(pgdata)? {
        true => Err(Error::Unusable(TABLESPACES.to_owned())),
        false => Ok(()),
    }
}

/// What data that was rewound or copied has until its first start.
fn pgdata_label(settings: &Settings) -> PathBuf {
    settings.pgdata().join("backup_label")
}

/// The data that the last copy has replaced.
fn old(settings: &Settings) -> PathBuf {
    settings.directory.join("pgdata.old")
}

/// That data which was rewound has all the log that its recovery needs. The program does not look whether the source has
/// it: one that was copied has nothing from before its copy.
fn check_log(settings: &Settings) -> Result<(), Error> {
    let label = files::read(&pgdata_label(settings))?.unwrap_or_default();
    let from = control_file::label_of(&label, "START WAL LOCATION: ");
    let from = from.ok_or_else(|| Error::Stuck("data that was rewound has no label".to_owned()))?;
    match histories::missing(settings, &ControlFile::read(settings)?, from)? {
        Some(name) => {
            Err(Error::Stuck(format!("the source has not the whole log since the divergence: {name} is missing")))
        }
        None => Ok(()),
    }
}

/// What was replaced stays until the next copy if more than half of the volume is free now: an operator may want to look at it.
fn keep_or_remove(settings: &Settings) -> Result<(), Error> {
    let has_room = statvfs(&settings.directory).is_ok_and(|volume| volume.blocks_available() > volume.blocks() / 2);
    if has_room { Ok(()) } else { files::remove(&old(settings)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `pgdata`, `pgdata.new` and `pgdata.old` hold after a copy was made, on a file system that exchanges names in this way; and
    /// whether that succeeded.
    fn after(exchange: fn(&Path, &Path) -> Result<(), Errno>) -> ([String; 3], bool) {
        let volume = tempfile::tempdir().unwrap();
        let places = ["pgdata", "pgdata.new", "pgdata.old"].map(|name| volume.path().join(name));
        let [pgdata, draft, old] = &places;
        for (directory, text) in [(pgdata, "data"), (draft, "copy")] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("file"), text).unwrap();
        }
        let done = put_aside(pgdata, draft, old, exchange).is_ok();
        (places.map(|place| std::fs::read_to_string(place.join("file")).unwrap_or_default()), done)
    }

    #[test]
    fn a_copy_replaces_the_data_at_once_or_in_two_steps() {
        let replaced = (["copy", "", "data"].map(str::to_owned), true);
        assert_eq!(after(exchange), replaced);
        assert_eq!(after(|_, _| Err(Errno::EINVAL)), replaced, "on NFS");
        let unchanged = (["data", "copy", ""].map(str::to_owned), false);
        assert_eq!(after(|_, _| Err(Errno::EIO)), unchanged);
    }
}
