//! Who may connect: the lines of `pg_hba.conf`, Kaa's and the user's own.
//!
//! A server ignores all lines if one is wrong, and stays as closed as it was. So the user's own lines are kept only once the server has
//! accepted them, and what it refuses is left out until the mounted file changes.

use super::configuration::SUPERUSER;
use super::credentials::Known;
use super::error::Error;
use super::{Settings, files};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admits {
    /// This wrapper alone.
    Wrapper,
    /// Standbys as well.
    Standbys,
    /// Clients and standbys.
    All,
    /// Clients, but no standbys: only the primary is followed.
    Readers,
}

/// The lines of `pg_hba.conf`. The first that matches a connection decides. `own` are the user's.
///
/// The socket is in a directory that only the server's user and root can enter, so who reaches it owns the data anyway.
/// `peer` would not work: it needs an entry in the passwd file for the wrapper's user id, which a pod need not have.
pub(super) fn lines(admits: Admits, settings: &Settings, replication: &Known, own: &str) -> Result<String, Error> {
    let mut lines = format!("local all {SUPERUSER} trust\n");
    let host = if settings.needs_tls() { "hostssl" } else { "host" };
    if matches!(admits, Admits::Standbys | Admits::All) {
        let Known { role: Some(role), .. } = replication else {
            return Err(Error::Unusable(replication.complaint.clone().unwrap_or_default()));
        };
        let role = role.name.replace('"', "\"\"");
        // `pg_rewind` reads files by SQL.
        let _ = write!(
            lines,
            "{host} replication \"{role}\" all scram-sha-256\n{host} postgres \"{role}\" all scram-sha-256\n"
        );
    }
    if matches!(admits, Admits::All | Admits::Readers) {
        let _ = writeln!(lines, "host all {SUPERUSER} all reject\n{own}\n{host} all all all scram-sha-256");
    }
    Ok(lines)
}

/// What is known of the user's own lines.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// Those that were written last, if clients are admitted by them.
    written: Option<String>,
    /// Those that the server has refused, and why.
    refused: BTreeMap<String, String>,
}

impl Own {
    /// The lines to use, and a sentence if the mounted ones are of no use. Then the last good ones stay, if there are.
    pub fn write(&mut self, settings: &Settings, admits: Admits) -> Result<(String, Option<String>), Error> {
        self.written = None;
        let Some(path) = &settings.hba else { return Ok((String::new(), None)) };
        let good = files::read(&kept(settings))?;
        let mounted = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let mounted = mounted.and_then(|text| check(&text).map(|()| text));
        self.refused.retain(|text, _| mounted.as_ref() == Ok(text) || good.as_ref() == Some(text));
        let (used, wrong) = match mounted {
            Ok(text) if !self.refused.contains_key(&text) => (Some(text), None),
            Ok(text) => (None, self.refused.get(&text).cloned()),
            Err(why) => (None, Some(why)),
        };
        let used = used.or(good.filter(|text| !self.refused.contains_key(text)));
        let meanwhile = if used.is_some() { "the last good ones stay" } else { "the server runs without them" };
        let complaint = wrong.map(|why| format!("the mounted lines of pg_hba.conf are not used: {why}; {meanwhile}"));
        self.written = used.clone().filter(|_| matches!(admits, Admits::All | Admits::Readers));
        Ok((used.unwrap_or_default(), complaint))
    }

    /// The server uses the lines that were written.
    pub fn accepted(&mut self, settings: &Settings) -> Result<(), Error> {
        let (Some(text), path) = (self.written.take(), kept(settings)) else { return Ok(()) };
        if files::read(&path)?.as_ref() != Some(&text) {
            files::replace(&path, text.as_bytes(), settings.user)?;
        }
        Ok(())
    }

    /// The server ignores what was written. Says whether the user's own lines may be why: they are not written again.
    pub fn refuse(&mut self, why: &str) -> bool {
        let Some(text) = self.written.take() else { return false };
        tracing::error!(why, "the server refuses the user's own lines of pg_hba.conf");
        self.refused.insert(text, format!("the server refuses them: {why}"));
        true
    }
}

/// The last lines that the server has accepted.
fn kept(settings: &Settings) -> PathBuf {
    settings.conf().join("own_hba.conf")
}

/// What may be at the beginning of a line. `local` is this wrapper's way in.
const TYPES: [&str; 5] = ["host", "hostssl", "hostnossl", "hostgssenc", "hostnogssenc"];

/// Refuses what would let in more than clients of databases, or reads other files. The rest is for the server to judge.
fn check(text: &str) -> Result<(), String> {
    for (line, number) in text.lines().zip(1..) {
        let wrong = |why: &str| Err(format!("line {number}: {why}"));
        if line.trim_end().ends_with('\\') {
            return wrong("it has to end in one line");
        }
        let fields = fields(line);
        let Some(first) = fields.first() else { continue };
        if !matches!(&first[..], [word] if TYPES.contains(&word.text.as_str())) {
            return wrong("it has to begin with host, hostssl, hostnossl, hostgssenc or hostnogssenc");
        }
        if fields.get(1).into_iter().flatten().any(|word| word.text == "replication" && !word.quoted) {
            return wrong("Kaa decides who replicates");
        }
        if fields[1..].iter().take(2).flatten().any(|word| word.text.starts_with('@') && !word.quoted) {
            return wrong("names in another file are not supported");
        }
    }
    Ok(())
}

/// One of the words of a field that are separated by commas.
#[derive(Debug, Default, PartialEq, Eq)]
struct Word {
    text: String,
    /// Whether it begins with a quote: then it is no keyword.
    quoted: bool,
}

/// The fields of a line, as the server reads them: a comma continues a field, also before blanks; quotes take all but a quote.
fn fields(line: &str) -> Vec<Vec<Word>> {
    let (mut fields, mut rest, mut continued) = (Vec::<Vec<Word>>::new(), line.chars().peekable(), false);
    loop {
        while rest.next_if(|it| it.is_ascii_whitespace() || *it == ',').is_some() {}
        if rest.peek().is_none_or(|it| *it == '#') {
            return fields;
        }
        let mut word = Word { quoted: rest.peek() == Some(&'"'), ..Word::default() };
        let mut inside = false;
        while let Some(next) = rest.next_if(|it| inside || !(it.is_ascii_whitespace() || matches!(it, ',' | '#'))) {
            match next {
                '"' => inside = !inside,
                other => word.text.push(other),
            }
        }
        match fields.last_mut().filter(|_| continued) {
            Some(field) => field.push(word),
            None => fields.push(vec![word]),
        }
        continued = rest.peek() == Some(&',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_for_clients_are_taken_and_others_are_named() {
        let taken = "# ours\n\nhostssl all all 10.0.0.0/8 cert\nhost shop,\"replication\" +staff all ldap ldapserver=x\n\
                     host replication_log all all reject # replication\n";
        assert_eq!(check(taken), Ok(()));
        for (text, why) in [
            ("host all all all md5\nlocal all all trust", "line 2: it has to begin with host,"),
            ("include other.conf", "line 1: it has to begin with host,"),
            ("\"host\",local all all all trust", "line 1: it has to begin with host,"),
            ("host replication all all trust", "line 1: Kaa decides who replicates"),
            ("host all,replication all all trust", "line 1: Kaa decides who replicates"),
            ("host all, rep\"lication\" all all trust", "line 1: Kaa decides who replicates"),
            ("host ,replication all all trust", "line 1: Kaa decides who replicates"),
            ("host @databases all all md5", "line 1: names in another file are not supported"),
            ("host all x,@users all md5", "line 1: names in another file are not supported"),
            ("host all \\\n all all md5", "line 1: it has to end in one line"),
        ] {
            let refused = check(text).expect_err(text);
            assert!(refused.starts_with(why), "{text:?}: {refused}");
        }
    }
}
