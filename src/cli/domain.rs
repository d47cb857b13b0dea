//! `kaa domain`: what concerns the domain as a whole.

mod file;

use super::api;
use super::{Asking, Format, prompt};
use crate::http::{BroughtArchive, Document, MAX_DOCUMENT_BYTES, RestoreAnswer};
use axum::http::Method;
use clap::{Args, Subcommand};
use file::Target;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// `kaa domain`.
#[derive(Debug, Subcommand)]
pub(super) enum Domain {
    /// Saves and restores the domain
    #[command(subcommand)]
    Snapshot(Snapshot),
}

/// `kaa domain snapshot`.
#[derive(Debug, Subcommand)]
pub(super) enum Snapshot {
    /// Writes the domain's databases, archives and values to a file, as one JSON document
    Save(Save),
    /// Restores a file into a new, unused domain of another cluster. Archives are bound to their volumes by the markers on them
    Restore(Restore),
}

/// `kaa domain snapshot save`.
#[derive(Debug, Args)]
pub(super) struct Save {
    /// The file; default: standard output
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Overwrites an existing file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    asking: Asking,
}

/// `kaa domain snapshot restore`.
#[derive(Debug, Args)]
pub(super) struct Restore {
    /// The file; `-` is standard input, which needs --dry-run or --yes
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Shows what would be restored, what would not, and whether the file is accepted. Changes nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Skips the confirmation
    #[arg(long)]
    yes: bool,
    /// Excludes an archive whose volume was not restored; otherwise a cold start waits for it indefinitely. Repeatable
    #[arg(long, value_name = "ARCHIVE")]
    without: Vec<u64>,
    #[command(flatten)]
    asking: Asking,
}

/// Why there is no snapshot, or nothing was restored.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Api(#[from] api::Error),
    #[error(transparent)]
    File(#[from] file::Error),
    #[error("the file is read from standard input, which cannot confirm then: add --yes or --dry-run")]
    NobodyToAsk,
    #[error(transparent)]
    Prompt(#[from] prompt::Error),
    #[error("the file has {0} bytes, more than {MAX_DOCUMENT_BYTES}: it does not fit into one entry of the log")]
    TooLarge(usize),
}

impl Domain {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Snapshot(Snapshot::Save(_)) => "domain snapshot save",
            Self::Snapshot(Snapshot::Restore(_)) => "domain snapshot restore",
        }
    }

    pub(super) async fn run(self) -> Result<String, Error> {
        match self {
            Self::Snapshot(Snapshot::Save(save)) => save.run().await,
            Self::Snapshot(Snapshot::Restore(restore)) => restore.run().await,
        }
    }
}

impl Save {
    async fn run(self) -> Result<String, Error> {
        let target = Target::new(&self.file, self.force)?;
        let api = self.asking.api()?.patient();
        let answer: Value = api.get(&["kaa", "snapshot"], &[]).await?;
        let text = api::raw(&answer);
        let length = answer.to_string().len();
        // What cannot be read back is not taken for a snapshot.
        let document = Document::read(answer).map_err(|why| file::Error::unusable(&self.file, why))?;
        if length > MAX_DOCUMENT_BYTES {
            prompt::tell(&format!("warning: {}\n", Error::TooLarge(length)))?;
        }
        match target {
            Target::Standard => Ok(text),
            Target::File(file) => {
                file.write(text.as_bytes())?;
                Ok(saved(&document, &self.file.display().to_string()))
            }
        }
    }
}

impl Restore {
    async fn run(self) -> Result<String, Error> {
        self.asking(prompt::line).await
    }

    /// The same; `typed` is what the operator types who is asked.
    pub(super) async fn asking(self, typed: impl FnOnce() -> std::io::Result<String>) -> Result<String, Error> {
        let standard = self.file.as_os_str() == "-";
        if standard && !self.yes && !self.dry_run {
            return Err(Error::NobodyToAsk);
        }
        let document = json!(file::read(&self.file)?);
        let length = document.to_string().len();
        if length > MAX_DOCUMENT_BYTES {
            return Err(Error::TooLarge(length));
        }
        let api = self.asking.api()?.patient();
        let ask = async |domain: Option<&str>| -> Result<RestoreAnswer, api::Error> {
            let word = json!({
                "domain": domain, "document": document, "without": self.without, "dryRun": domain.is_none()
            });
            api.change(Method::POST, &["kaa", "snapshot"], Some(word)).await
        };
        let shown = ask(None).await?;
        if self.dry_run {
            return Ok(self.asking.agent.print(&shown, text));
        }
        if let (Some(why), false) = (&shown.refusal, shown.restored) {
            return Err(api::Error::Refused(why.clone()).into());
        }
        if !self.yes {
            let question = "To restore this";
            prompt::confirm(&text(&shown), question, &shown.name, typed)?;
        } else if self.asking.agent.output == Format::Text {
            prompt::tell(&text(&shown))?;
        }
        Ok(self.asking.agent.print(&ask(Some(&shown.name)).await?, done))
    }
}

fn saved(document: &Document, file: &str) -> String {
    let snapshot = &document.snapshot;
    let (databases, archives, values) = (snapshot.databases.len(), snapshot.archives.len(), snapshot.values.len());
    format!(
        "Domain {} ({}) up to entry {} is in {file}: databases {databases}, archives {archives}, values {values}.\n\
         sha256 {}\n",
        snapshot.name, snapshot.domain, snapshot.index, document.sha256
    )
}

/// What would be restored.
fn text(answer: &RestoreAnswer) -> String {
    let RestoreAnswer { name, domain, from, left_behind: left, .. } = answer;
    let mut text = format!("Domain {name} ({domain}) would be restored from a snapshot of domain {}:\n", from.name);
    let mut line = |line: String| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{line}");
    };
    line(format!("  taken {} at {} in cluster {}, up to entry {}", from.taken, from.server, from.cluster, from.index));
    line(format!("  domain {}, sha256 {}", from.domain, from.sha256));
    answer.databases.iter().for_each(|database| line(format!("  database {database}")));
    answer.archives.iter().for_each(|archive| line(format!("  {}", brought(archive))));
    line(format!("  values: {}", answer.values));
    let servers: Vec<&str> = left.servers.iter().map(|server| server.as_str()).collect();
    line(format!(
        "Not in the snapshot: servers {}; processes {}, exited processes {}, records of the audit trail {}{}",
        servers.join(", "),
        left.processes,
        left.exited,
        left.records,
        if left.paused { "; a pause of the resync" } else { "" }
    ));
    if let Some(waits) = waits_for(answer) {
        line(format!("{waits} Exclude those that are not restored: --without ARCHIVE"));
    }
    if answer.restored {
        line("It has been restored from this file already.".to_owned());
    } else if let Some(why) = &answer.refusal {
        line(format!("Would be refused: {why}"));
    }
    text
}

/// Which archives a cold start waits for.
fn waits_for(answer: &RestoreAnswer) -> Option<String> {
    let waited = answer.archives.iter().filter(|archive| archive.waited_for);
    let waited: Vec<String> = waited.filter(|archive| !archive.without).map(|archive| archive.id.to_string()).collect();
    let which = if waited.len() == 1 { "volume of archive" } else { "volumes of archives" };
    (!waited.is_empty()).then(|| format!("A cold start waits for the {which} {}.", waited.join(", ")))
}

fn brought(archive: &BroughtArchive) -> String {
    let BroughtArchive { id, database, .. } = archive;
    let was = archive.was.as_ref().map_or("on no known claim".to_owned(), |was| format!("was on {was}"));
    let removed = archive.removed.as_ref().map_or(String::new(), |why| format!(", removed: {why}"));
    let without = if archive.without { ", left behind" } else { "" };
    format!("archive {id} of {database}, {was}{removed}{without}")
}

/// What was done.
fn done(answer: &RestoreAnswer) -> String {
    let RestoreAnswer { name, domain, from, .. } = answer;
    let mut text = format!(
        "Domain {name} ({domain}) was restored from domain {} ({}) as of entry {}.\n\
         Each archive is bound as soon as its storage manager registers here.\n",
        from.name, from.domain, from.index
    );
    if let Some(waits) = waits_for(answer) {
        text += &waits;
        text.push('\n');
    }
    text
}
